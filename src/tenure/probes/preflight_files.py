"""Tools, files and shared libraries, found as the system finds them for the job."""

from __future__ import annotations

import functools
import os
import re
import stat
import threading
from collections.abc import Iterator, Sequence

from tenure.domain.reading import Reason
from tenure.domain.requirement import Look, Requirement
from tenure.domain.versions import reaches, said_version
from tenure.probes.preflight_place import CannotLook, Place, absent, failed, present

CACHE = "/etc/ld.so.cache"
LDCONFIG = ("/sbin/ldconfig", "/usr/sbin/ldconfig", "/usr/local/sbin/ldconfig")
_lock = threading.Lock()
_cached: list[tuple[tuple[str, str], ...] | CannotLook] = []


def tool(need: Requirement, place: Place) -> Look:
    """A program on the job's PATH, as execvp finds it. Its version is the first one that ``TOOL --version`` prints."""
    troubles: list[CannotLook] = []
    path = place.which(need.name, troubles)
    if path is None:
        return _no_tool(need, place, troubles)
    if not need.least:
        return present(need, f"{path}", path=path)
    argv = [path, "--version"]
    said = place.run(argv)
    if said.code != 0:
        raise failed(said, argv)
    version = said_version(said.output)
    enough = reaches(version, need.least) if version is not None else None
    if version is None or enough is None:
        line = (said.output.strip().splitlines() or ["nothing on standard output"])[0]
        raise CannotLook(Reason.UNPARSEABLE, f"{path} --version names no version that can be read: {line[:120]}")
    words = f"{path} is version {version}"
    if enough:
        return present(need, words, path=path, version=version)
    return absent(need, f"{words}, below {need.least}", path=path, version=version)


def _no_tool(need: Requirement, place: Place, troubles: list[CannotLook]) -> Look:
    _all_looked_at(troubles)
    if "/" in need.name:
        path = place.absolute(need.name)
        found = place.stat(path)
        why = f"is not there; {place.ancestor(path)} is" if found is None else "is there and cannot be executed"
        return absent(need, f"{path} {why}")
    control = place.which("sh") or _any_program(place)
    searched = place.env.get("PATH", os.defpath)
    if control is None:
        raise CannotLook(
            Reason.NOT_SUPPORTED, f"no program at all was found on the job's PATH ({searched}), {need.name} among them"
        )
    return absent(need, f"not on the job's PATH ({searched}), where {control} is")


def _all_looked_at(troubles: Sequence[CannotLook]) -> None:
    """Raises ``CannotLook`` where a part of the search was not: what was not found may be there."""
    for problem in troubles:
        raise CannotLook(problem.reason, f"not found, but not everything could be looked at: {problem.words}")


def _any_program(place: Place) -> str | None:
    """Any program on the PATH: where there is one, the search works."""
    for folder in place.search_path():
        place.at(f"list {folder}")
        try:
            names = sorted(os.listdir(folder))[:200]  # noqa: PTH208
        except OSError:
            continue
        for name in names:
            found = place.which(os.path.join(folder, name))  # noqa: PTH118
            if found is not None:
                return found
    return None


def file(need: Requirement, place: Place) -> Look:
    """A file or folder that the job can read; with a ``/`` at its end a folder. Relative to the job's directory."""
    path = place.absolute(need.name.rstrip("/") or "/")
    found = place.stat(path)
    if found is None:
        place.at(f"lstat {path}")
        if os.path.islink(path):  # noqa: PTH114
            return absent(need, f"{path} is a link to {os.readlink(path)}, which is not there")  # noqa: PTH115
        return absent(need, f"{path} is not there; {place.ancestor(path)} is")
    folder = stat.S_ISDIR(found.st_mode)
    if need.name.endswith("/") and not folder:
        return absent(need, f"{path} is there and is no folder", path=path)
    if not os.access(path, os.R_OK | (os.X_OK if folder else 0)):
        return absent(need, f"{path} is there and cannot be read by this user", path=path)
    return present(need, f"{path}, a folder" if folder else f"{path}, {found.st_size} bytes", path=path)


# -- shared libraries --------------------------------------------------------------------------------------------------


def library(need: Requirement, place: Place) -> Look:
    """A shared library, in the order of the dynamic loader (man 8 ld.so): LD_LIBRARY_PATH, the cache of ldconfig, the
    default folders. What a program names in its own RUNPATH is the program's business and is not known here."""
    troubles: list[CannotLook] = []
    passed: list[str] = []
    path = _load(need.name, place, troubles, passed)
    if path is not None:
        return present(need, path, path=path)
    _all_looked_at(troubles)
    control = _load("libc.so.6", place, [], []) or _load("c", place, [], [])
    if control is None:
        raise CannotLook(Reason.NOT_SUPPORTED, "not found, and neither was the C library, which every program here has")
    where = "LD_LIBRARY_PATH, " if place.env.get("LD_LIBRARY_PATH") else ""
    aside = f"; passed over: {', '.join(passed[:3])}, not for this machine" if passed else ""
    elsewhere = _beside_toolkit(need.name, place)
    if elsewhere is not None:
        aside += f"; it lies at {elsewhere}, where the loader does not look (LD_LIBRARY_PATH would name its folder)"
    return absent(need, f"not in {where}the loader's cache or its folders, where {control} is{aside}")


def _load(name: str, place: Place, troubles: list[CannotLook], passed: list[str]) -> str | None:
    """The file that the loader would take. ``passed``: those of the name for another machine, or no library."""
    for path in _candidates(name, place, troubles):
        try:
            found = place.stat(path)
            if found is None:
                continue  # the cache may be older than the disk
            head = _head(path) if stat.S_ISREG(found.st_mode) else b""
        except CannotLook as problem:
            troubles.append(problem)
            continue
        if _kind(head) == _our_kind():
            return path
        passed.append(path)
    return None


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as opened:
            return opened.read(20)
    except OSError as problem:
        raise CannotLook.of(path, problem) from None


def _candidates(name: str, place: Place, troubles: list[CannotLook]) -> Iterator[str]:
    exact = ".so" in name
    pattern = re.compile(re.escape(name) if exact else rf"lib{re.escape(name)}\.so(?:\.[0-9]+)*")
    given = [folder for folder in re.split("[:;]", place.env.get("LD_LIBRARY_PATH", "")) if folder]
    for folder in map(place.absolute, given):
        yield from _in_folder(folder, name if exact else "", pattern, place, troubles)
    try:
        cached = _cache(place)
    except CannotLook as problem:
        troubles.append(problem)
        cached = ()
    yield from (path for soname, path in cached if pattern.fullmatch(soname))
    machine = f"{os.uname().machine}-linux-gnu"
    for top in ("/lib64", "/usr/lib64", f"/lib/{machine}", f"/usr/lib/{machine}", "/lib", "/usr/lib"):
        yield from _in_folder(top, name if exact else "", pattern, place, troubles)


def _in_folder(
    folder: str, exact: str, pattern: re.Pattern[str], place: Place, troubles: list[CannotLook]
) -> Iterator[str]:
    if exact:
        yield os.path.join(folder, exact)  # noqa: PTH118
        return
    place.at(f"list {folder}")
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as problem:
        troubles.append(CannotLook.of(folder, problem))
        return
    yield from (os.path.join(folder, one) for one in sorted(names) if pattern.fullmatch(one))  # noqa: PTH118


def _cache(place: Place) -> tuple[tuple[str, str], ...]:
    """(soname, path) of the loader's cache; empty where this loader keeps none. Read once for all requirements."""
    with _lock:
        if not _cached:
            try:
                _cached.append(_read_cache(place))
            except CannotLook as problem:
                _cached.append(problem)
        kept = _cached[0]
    if isinstance(kept, CannotLook):
        raise kept
    return kept


def _read_cache(place: Place) -> tuple[tuple[str, str], ...]:
    if place.stat(CACHE) is None:
        return ()
    program = next((path for path in LDCONFIG if place.stat(path) is not None), None)
    if program is None:
        raise CannotLook(Reason.LIBRARY_MISSING, f"there is no ldconfig here that would read {CACHE}")
    argv = [program, "-p"]
    said = place.run(argv, env={"PATH": os.defpath})
    if said.code != 0:
        raise failed(said, argv)
    return tuple(re.findall(r"^\t(\S+) \(.*\) => (.+)$", said.output, re.MULTILINE))


def _kind(head: bytes) -> tuple[bytes, bytes] | None:
    """(class and byte order, machine) of an ELF file; None for another file, such as a linker's script."""
    return (head[4:6], head[18:20]) if head[:4] == b"\x7fELF" and len(head) >= 20 else None


@functools.cache
def _our_kind() -> tuple[bytes, bytes] | None:
    with open("/proc/self/exe", "rb") as opened:
        return _kind(opened.read(20))


def toolkit_folders(place: Place) -> tuple[str, ...]:
    """Where a CUDA toolkit is, as far as the job's environment tells: CUDA_HOME, CUDA_PATH, what ``nvcc`` lies in."""
    found = [place.absolute(place.env[name]) for name in ("CUDA_HOME", "CUDA_PATH") if place.env.get(name)]
    compiler = place.which("nvcc")
    if compiler is not None:
        place.at(f"follow {compiler}")
        found.append(os.path.dirname(os.path.dirname(os.path.realpath(compiler))))  # noqa: PTH120
    return tuple(dict.fromkeys(found))


def _beside_toolkit(name: str, place: Place) -> str | None:
    """Where a library lies that the loader does not find: a hint, nothing that counts."""
    folders = [*toolkit_folders(place), "/usr/local/cuda"]
    inner = ("lib64", "lib", f"targets/{os.uname().machine}-linux/lib")
    exact = ".so" in name
    pattern = re.compile(re.escape(name) if exact else rf"lib{re.escape(name)}\.so(?:\.[0-9]+)*")
    for folder in (os.path.join(top, one) for top in folders for one in inner):  # noqa: PTH118
        for path in _in_folder(folder, name if exact else "", pattern, place, []):
            if os.path.isfile(path):  # noqa: PTH113
                return path
    return None
