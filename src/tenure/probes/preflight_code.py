"""Headers, as the compiler finds them, and Python modules, as the job's Python finds them.

Both are asked of the program itself, on its standard output, with a control in the same question: a header or module
that is certainly there. A compiler that does not find ``stdio.h`` says nothing about any other header.
"""

from __future__ import annotations

import json
import os
import re

from tenure.domain.reading import Reason
from tenure.domain.requirement import Look, Requirement
from tenure.domain.versions import reaches
from tenure.probes.preflight_files import toolkit_folders
from tenure.probes.preflight_place import CannotLook, Place, absent, failed, present

COMPILERS = ("cc", "gcc", "clang")
_LIST = re.compile(
    r"^#include .* search starts here:\n(.*?)(?=^#include |^End of search list)", re.DOTALL | re.MULTILINE
)


def header(need: Requirement, place: Place) -> Look:
    """A header in the search list of the first of ``cc``, ``gcc`` and ``clang`` on the job's PATH, as C++ or else as C.

    The list is the compiler's own (CPATH and its like, its defaults), then ``include`` of CUDA_HOME, of CUDA_PATH and
    of the toolkit that ``nvcc`` lies in. Without a compiler a header can be found in the folders that are known, and
    never be said to be absent. What the C compiler does not find is asked of ``nvcc`` too, where there is one: that
    brings a list of its own.
    """
    extra = [os.path.join(top, "include") for top in toolkit_folders(place)]  # noqa: PTH118
    compiler = next(filter(None, map(place.which, COMPILERS)), None)
    if compiler is None:
        return _without_compiler(need, place, extra)
    words = ""
    question = "".join(
        f"#if __has_include(<{name}>)\n{mark}\n#endif\n"
        for name, mark in (("stdio.h", "tenure_control"), (need.name, "tenure_wanted"))
    )
    for language in ("c++", "c"):
        after = [word for folder in extra for word in ("-idirafter", folder)]
        argv = [compiler, "-x", language, "-E", "-P", "-v", *after, "-"]
        said = place.run(argv, text=question)
        if said.code != 0:
            words = words or failed(said, argv).words
            continue
        marks = said.output.split()
        if "tenure_wanted" in marks:
            return _found(need, place, compiler, said.error)
        if language == "c" and not need.name.endswith(".h"):
            break  # a header of C++ perhaps, which this compiler cannot be asked for
        if "tenure_control" in marks:
            beside = f", with {' and '.join(extra)} besides," if extra else ""
            found, asked = _by_nvcc(need, place, question)
            if found is not None:
                return found
            return absent(need, f"{compiler} (as {language}){beside} does not find it, and finds stdio.h{asked}")
        words = f"{compiler} does not even find stdio.h"
    raise CannotLook(Reason.LIBRARY_MISSING, words)


def _found(need: Requirement, place: Place, compiler: str, error: str) -> Look:
    """Which file it is: from the compiler's list of folders, which is evidence only."""
    folders = [line.strip() for block in _LIST.findall(error) for line in block.splitlines() if line.strip()]
    for folder in folders:
        path = os.path.normpath(os.path.join(place.absolute(folder), need.name))  # noqa: PTH118
        if place.stat(path) is not None:
            return present(need, f"{path}, found by {compiler}", path=path)
    return present(need, f"found by {compiler}")


def _by_nvcc(need: Requirement, place: Place, question: str) -> tuple[Look | None, str]:
    """What ``nvcc`` finds, and what to say of it where it does not. A hang is no answer (``CannotLook``)."""
    compiler = place.which("nvcc")
    if compiler is None:
        return None, ""
    argv = [compiler, "-E", "-x", "cu", "-"]
    said = place.run(argv, text=question)
    if said.code != 0:
        return None, f"; {failed(said, argv[:1]).words}"
    marks = said.output.split()
    if "tenure_wanted" in marks:
        shown = re.search(rf'^# [0-9]+ "(/[^"]*/{re.escape(need.name)})"', said.output, re.MULTILINE)
        path = os.path.normpath(shown[1]) if shown else ""
        return present(need, f"{path}, found by {compiler}" if path else f"found by {compiler}", path=path), ""
    return None, f"; {compiler} does not find it either" * ("tenure_control" in marks)


def _without_compiler(need: Requirement, place: Place, extra: list[str]) -> Look:
    names = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
    given = [place.absolute(one or ".") for name in names if place.env.get(name) for one in place.env[name].split(":")]
    for folder in [*given, *extra]:
        path = os.path.join(folder, need.name)  # noqa: PTH118
        if place.stat(path) is not None:
            return present(need, f"{path} (no compiler is on the job's PATH)", path=path)
    words = f"none of {', '.join(COMPILERS)} is on the job's PATH, so nobody knows where headers would be looked for"
    raise CannotLook(Reason.LIBRARY_MISSING, words)


#: Runs in the job's Python (3.8 or newer). Finds without importing: a module's code may do anything.
_ASK = r"""
import importlib.machinery, importlib.util, json, sys
def find(name):
    where, spec, whole = None, None, ""
    for part in name.split("."):
        whole = whole + "." + part if whole else part
        spec = importlib.machinery.PathFinder.find_spec(whole, where) if where else importlib.util.find_spec(whole)
        if spec is None:
            return None
        where = list(spec.submodule_search_locations or ())
        if not where and whole != name:
            raise ImportError(whole + " is no package, so only its import shows what is below it")
    return spec
def version(top):
    from importlib import metadata
    if hasattr(metadata, "packages_distributions"):
        named = sorted(set(metadata.packages_distributions().get(top, ())))
        if named:
            return [[one, metadata.version(one)] for one in named]
    try:
        return [[top, metadata.version(top)]]
    except metadata.PackageNotFoundError:
        return []
name, bound = sys.argv[1], sys.argv[2]
told = {"python": sys.executable, "version": ".".join(map(str, sys.version_info[:3]))}
told["control"] = importlib.machinery.PathFinder.find_spec("csv") is not None
try:
    spec = find(name)
    told["there"] = spec is not None
    if spec is not None:
        folders = list(spec.submodule_search_locations or ())
        told["folder"] = folders[0] if folders and not spec.has_location and not spec.origin else ""
        told["origin"] = str(spec.origin or "")
        if bound or told["folder"]:
            told["dists"] = version(name.split(".")[0])
except Exception as error:
    told["error"] = type(error).__name__ + ": " + str(error)
sys.stdout.write("\n" + json.dumps(told) + "\n")
"""
_PYTHON = re.compile(r"python[0-9.]*")


def python(need: Requirement, place: Place) -> Look:
    """A module of the Python that the job gets: the one that is its command, else ``python``, else ``python3`` on its
    PATH. It is asked in a process of its own, in the job's directory, and imports nothing of it."""
    named = [place.program] if _PYTHON.fullmatch(os.path.basename(place.program)) else []  # noqa: PTH119
    tried = [*named, "python", "python3"]
    interpreter = next(filter(None, map(place.which, tried)), None)
    if interpreter is None:
        raise CannotLook(Reason.LIBRARY_MISSING, f"none of {', '.join(tried)} is on the job's PATH")
    argv = [interpreter, "-c", _ASK, need.name, need.least]
    said = place.run(argv)
    if said.code != 0:
        raise failed(said, argv[:1])
    try:
        told = json.loads(said.output.rstrip().splitlines()[-1])
        who = f"{told['python'] or interpreter} ({told['version']})"
        if not told["control"]:
            raise CannotLook(Reason.NOT_SUPPORTED, f"{who} does not even find its own csv module")
        if "error" in told:
            raise CannotLook(Reason.UNPARSEABLE, f"{who} cannot look for it: {str(told['error'])[:200]}")
        return _judged(need, who, told)
    except (ValueError, KeyError, IndexError, TypeError):
        raise CannotLook(Reason.UNPARSEABLE, f"{interpreter} gave no answer that can be read") from None


def _judged(need: Requirement, who: str, told: dict[str, object]) -> Look:
    dists = [(str(one[0]), str(one[1])) for one in told.get("dists", ()) or ()]  # type: ignore[attr-defined]
    if not told["there"]:
        return absent(need, f"{who} finds no module {need.name}, and finds its own csv module")
    if told["folder"] and not dists:
        return absent(need, f"{who} finds only a folder of that name, {told['folder']}, that is no package")
    origin = str(told["origin"] or told["folder"])
    if not need.least:
        return present(need, f"{origin} of {who}", path=origin)
    if len(dists) != 1:
        many = ", ".join(name for name, _ in dists)
        why = f"several distributions bring it: {many}" if dists else "no distribution says which version it is"
        raise CannotLook(Reason.UNPARSEABLE, f"{origin} of {who}: {why}")
    name, version = dists[0]
    enough = reaches(version, need.least)
    if enough is None:
        raise CannotLook(Reason.UNPARSEABLE, f"{name} says that it is version {version[:60]!r}, which has no order")
    words = f"{name} {version} at {origin} of {who}"
    if enough:
        return present(need, words, path=origin, version=version)
    return absent(need, f"{words}, below {need.least}", path=origin, version=version)
