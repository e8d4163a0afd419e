"""Requirements: what a job needs of the host that is to run it. Each has one canonical text.

Three forms. ``KIND:NAME`` asks that a thing be there, ``KIND:NAME>=VERSION`` that it be new enough, and a measure
(``disk>=20G``) that there be so much. A name of ``BUNDLES`` stands for several requirements: a part of a toolkit is no
toolkit, so what a build needs is asked for by name, each piece on its own.

======================  ==============================================================================================
``tool:cmake>=3.20``    a program on the job's PATH (or a path); its version as ``TOOL --version`` says it
``file:/etc/x``         a file or folder that can be read; ``file:/etc/`` must be a folder
``lib:cudart``          a shared library as the dynamic loader finds it; ``lib:libcudart.so.12`` is one exact file name
``header:cuda.h``       a header as the C or C++ compiler finds it
``python:torch>=2.1``   a module of the Python that the job gets; its version is its distribution's
``mount:/data,exec``    a mount point; ``exec``, ``symlink``, ``write`` and ``free>=100G`` must work there too
``disk>=20G``           free room on the file system of the job's scratch
``memory>=16G``         MemAvailable
``driver>=535.0``       the driver of every leased device
``compute>=8.0``        the compute capability of every leased device
======================  ==============================================================================================

There is one bound, ``>=``. How versions and sizes compare is told in ``quantity``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tenure.domain.label import printable
from tenure.domain.quantity import comparable

EXAMPLE: Final = "tool:cmake>=3.20"
LIMIT: Final = 200
LENGTH: Final = 500

#: One name for several requirements: what must be there for the thing to be of use.
BUNDLES: Final[Mapping[str, tuple[str, ...]]] = {
    "cuda-toolkit": ("tool:nvcc", "header:cuda_runtime.h", "lib:cudart"),
}


class Kind(StrEnum):
    """What is looked for. The value is the word of the grammar."""

    TOOL = "tool"
    FILE = "file"
    LIBRARY = "lib"
    HEADER = "header"
    PYTHON = "python"
    MOUNT = "mount"
    DISK = "disk"
    MEMORY = "memory"
    DRIVER = "driver"
    COMPUTE = "compute"


_SIZES: Final = (Kind.DISK, Kind.MEMORY)
_MEASURES: Final = (*_SIZES, Kind.DRIVER, Kind.COMPUTE)
_VERSIONED: Final = (Kind.TOOL, Kind.PYTHON)
_PROPERTIES: Final = ("exec", "symlink", "write")
_EXAMPLES: Final[Mapping[Kind, str]] = {
    Kind.TOOL: EXAMPLE,
    Kind.FILE: "file:/etc/hosts",
    Kind.LIBRARY: "lib:cudart",
    Kind.HEADER: "header:cuda_runtime.h",
    Kind.PYTHON: "python:torch>=2.1",
    Kind.MOUNT: "mount:/data,exec,free>=100G",
    Kind.DISK: "disk>=20G",
    Kind.MEMORY: "memory>=16G",
    Kind.DRIVER: "driver>=535.0",
    Kind.COMPUTE: "compute>=8.0",
}
_NAMES: Final[Mapping[Kind, tuple[re.Pattern[str], str]]] = {
    Kind.TOOL: (re.compile(r"[\w.+/@][\w.+/@-]*", re.ASCII), "the name or path of a program"),
    Kind.FILE: (re.compile(r".+"), "the path of a file or folder"),
    Kind.LIBRARY: (re.compile(r"[\w.+][\w.+-]*", re.ASCII), "the name of a shared library, without a folder"),
    Kind.HEADER: (re.compile(r"[\w.+-]+(?:/[\w.+-]+)*", re.ASCII), "a header as it is included"),
    Kind.PYTHON: (
        re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII),
        "a module's name as it is imported (sklearn, not scikit-learn)",
    ),
    Kind.MOUNT: (re.compile(r"/[^,]*"), "the absolute path of a mount point, without a comma"),
}
_WORD = re.compile(r"[a-z-]+")
_VERSION = re.compile(r"[0-9]{1,24}(?:\.[0-9]{1,24}){0,7}")
_SIZE = re.compile(r"[0-9]{1,24}(?:\.[0-9]{1,12})?[KMGT]")


class RequirementError(ValueError):
    """A requirement that cannot be read. ``position`` counts characters from 0; the message is bounded, printable."""

    def __init__(self, text: str, position: int, expected: str, example: str = EXAMPLE) -> None:
        found = f"found {text[position]!r}" if position < len(text) else "it ends"
        super().__init__(
            f"the requirement {printable(text, 80)!r} cannot be read at character {position + 1}: {found}, expected "
            f"{expected}; for example {example}"
        )
        self.position, self.expected, self.example = position, expected, example


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement. ``least`` is the bound in its normal text, empty where there is none; ``free`` that of a mount's
    room; ``properties`` what else must work on a mount, in a fixed order."""

    kind: Kind
    name: str = ""
    least: str = ""
    properties: tuple[str, ...] = ()
    free: str = ""

    @property
    def canonical(self) -> str:
        """The requirement in its one normal spelling."""
        if self.kind in _MEASURES:
            return f"{self.kind}>={self.least}"
        bound = f">={self.least}" if self.least else ""
        asked = "".join(f",{name}" for name in self.properties) + (f",free>={self.free}" if self.free else "")
        return f"{self.kind}:{self.name}{bound}{asked}"

    def __str__(self) -> str:
        return self.canonical


def parse(text: str) -> Requirement:
    """Reads one requirement (no bundle). Raises ``RequirementError``."""
    start = len(text) - len(text.lstrip(" "))
    text = text.rstrip(" ")
    if len(text) > LENGTH:
        raise RequirementError(text, LENGTH, f"at most {LENGTH} characters")
    if not text.isprintable():
        at = next(i for i, one in enumerate(text) if not one.isprintable())
        raise RequirementError(text, at, "no control character")
    word = _WORD.match(text, start)
    kind = next((kind for kind in Kind if word is not None and word[0] == kind), None)
    if kind is None or word is None:
        bundle = next((name for name in BUNDLES if text.startswith(name, start)), None)
        if bundle is not None:
            end = start + len(bundle)
            raise RequirementError(
                text, end, f"nothing after {bundle}, which takes no version", BUNDLES[bundle][0] + ">=12.4"
            )
        kinds = ", ".join(f"{kind}>=" if kind in _MEASURES else f"{kind}:" for kind in Kind)
        raise RequirementError(text, start, f"one of {kinds} or {', '.join(BUNDLES)}")
    position = word.end()
    if kind in _MEASURES:
        return Requirement(kind, least=_bound(text, position, kind, size=kind in _SIZES))
    if not text.startswith(":", position):
        raise RequirementError(text, position, f"a : after {kind}", _EXAMPLES[kind])
    return _named(text, _skip(text, position + 1), kind)


def expand(texts: Iterable[str]) -> tuple[Requirement, ...]:
    """Reads requirements and bundles, in the order given, without repeats. Raises ``RequirementError``."""
    found: dict[Requirement, None] = {}
    for text in texts:
        for one in BUNDLES.get(text.strip(" "), (text,)):
            found.setdefault(parse(one))
        if len(found) > LIMIT:
            raise RequirementError(text, 0, f"at most {LIMIT} requirements")
    return tuple(found)


def canonical(texts: Iterable[str]) -> tuple[str, ...]:
    """The canonical texts of requirements and bundles. Raises ``RequirementError``."""
    return tuple(one.canonical for one in expand(texts))


def _skip(text: str, position: int) -> int:
    while text.startswith(" ", position):
        position += 1
    return position


def _named(text: str, start: int, kind: Kind) -> Requirement:
    end, least = len(text), ""
    if kind in _VERSIONED and (at := text.find(">=", start)) >= 0:
        end, least = at, _bound(text, at, kind, size=False)
    if kind is Kind.MOUNT:
        comma = text.find(",", start)
        end = comma if comma >= 0 else end
    name = text[start:end].rstrip(" ")
    pattern, expected = _NAMES[kind]
    found = pattern.match(name)
    if found is None or found.end() < len(name):
        at = start + (found.end() if found is not None else 0)
        more = " (or >= and a version)" if kind in _VERSIONED else ""
        raise RequirementError(text, at, expected + more, _EXAMPLES[kind])
    if kind is Kind.HEADER and ".." in name.split("/"):
        raise RequirementError(text, start + name.index(".."), "a header without ..", _EXAMPLES[kind])
    if kind is Kind.LIBRARY and name.startswith("lib") and ".so" not in name:
        raise RequirementError(
            text, start, "a name without lib, or a whole file name such as libcudart.so.12", _EXAMPLES[kind]
        )
    if kind in (Kind.FILE, Kind.MOUNT):
        name = _plain(name)
    if kind is Kind.MOUNT:
        name = name.rstrip("/") or "/"
        if name.endswith(" "):
            raise RequirementError(text, end, "a path without a blank at its end", _EXAMPLES[kind])
        return Requirement(kind, name, "", *_properties(text, end))
    return Requirement(kind, name, least)


def _plain(path: str) -> str:
    """The path without what says nothing (``//``, ``/./``). ``..`` stays: behind a link it leads elsewhere."""
    return re.sub(r"/(?:\.?/)+", "/", path)


def _properties(text: str, position: int) -> tuple[tuple[str, ...], str]:
    """What follows a mount's path: its properties in their order, and the room asked for."""
    wanted: set[str] = set()
    free = ""
    while position < len(text):
        position = _skip(text, position + 1)  # the comma
        end = text.find(",", position)
        end = len(text) if end < 0 else end
        word = text[position:end].rstrip(" ")
        if word in _PROPERTIES:
            wanted.add(word)
        elif word.startswith("free") and not free:
            free = _bound(text[:end], position + 4, Kind.MOUNT, size=True)
        else:
            expected = f"{', '.join(_PROPERTIES)} or, once, free>=SIZE"
            raise RequirementError(text, position, expected, _EXAMPLES[Kind.MOUNT])
        position = end
    return tuple(name for name in _PROPERTIES if name in wanted), free


def _bound(text: str, position: int, kind: Kind, *, size: bool) -> str:
    """The normal text of the bound that begins at ``position`` with its ``>=``."""
    position = _skip(text, position)
    if not text.startswith(">=", position):
        raise RequirementError(text, position, f"a >= after {kind if kind is not Kind.MOUNT else 'free'}", _of(kind))
    position = _skip(text, position + 2)
    pattern = _SIZE if size else _VERSION
    found = pattern.match(text, position)
    if found is None or found.end() < len(text.rstrip(" ")):
        at = position if found is None else found.end()
        expected = "a size with K, M, G or T, and nothing behind it" if size else "a version: numbers and dots"
        raise RequirementError(text, at, expected, _of(kind))
    return comparable(found[0]).text


def _of(kind: Kind) -> str:
    return _EXAMPLES[kind]


# -- what was found ----------------------------------------------------------------------------------------------------


class Result(StrEnum):
    """How a requirement fared. ``ABSENT`` is a fact: something looked where it would have been seen, and the thing, or
    the version or property asked for, is not there. Only ``PRESENT`` lets the command start."""

    PRESENT = "present"
    ABSENT = "absent"
    COULD_NOT_LOOK = "could_not_look"


@dataclass(frozen=True, slots=True)
class Look:
    """What was found of one requirement. ``words`` is a line: what was looked at, and what was met there.

    ``reason`` is one of ``reading.Reason`` where nobody could look; ``path`` and ``version`` are what was found.
    """

    need: Requirement
    result: Result
    words: str
    reason: str = ""
    path: str = ""
    version: str = ""

    def to(self) -> dict[str, str]:
        """As plain values: kind, text, result, words, and what else is known."""
        body = {"kind": str(self.need.kind), "text": self.need.canonical, "result": str(self.result)}
        more = {"reason": str(self.reason), "path": self.path, "version": self.version}
        return {**body, "words": printable(self.words, 600), **{k: v for k, v in more.items() if v}}
