"""What a worker has, read from files alone: executables, CUDA toolkits, mounts, scratch. Standard library only.

Each function gives what it found as (items, blind): name -> identity, and prefix -> why it could not be read. Nothing
is run, but for the versions of a few tools. A missing folder is a fact; one that cannot be read is not.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Found: TypeAlias = tuple[dict[str, str], dict[str, str]]

#: What says that something is not there, as against not readable.
ABSENT = (FileNotFoundError, NotADirectoryError)
#: Text of a mount's options that is kept: those of an overlay may fill a page.
_OPTIONS = 200
#: Mounts that come and go with containers and sessions, and are nobody's leftovers.
_PASSING = ("/proc/", "/sys/", "/run/", "/var/lib/docker/", "/var/lib/containers/", "/var/lib/kubelet/", "/snap/")
#: Entries of one scratch folder that are counted before it is called too large to count.
_MOST_ENTRIES = 200_000


def why(error: OSError) -> str:
    """An error as the reason why something could not be read."""
    reason = "no_permission" if isinstance(error, PermissionError) else "unparseable"
    return f"{reason}: {error.strerror}"


def names_in(folder: str) -> list[str]:
    """The names in a folder. Raises ``OSError``."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def expand(pattern: str) -> tuple[list[str], dict[str, str]]:
    """The folders that a path with at most one ``*`` component stands for, and what could not be listed."""
    head, star, tail = pattern.partition("*")
    if not star:
        return [pattern], {}
    parent, _, prefix = head.rpartition("/")
    wanted, _, rest = tail.partition("/")
    try:
        names = sorted(names_in(parent or "/"))
    except ABSENT:
        return [], {}
    except OSError as error:
        return [], {parent: why(error)}
    glob = f"{prefix}*{wanted}"
    return [f"{parent}/{n}" + (f"/{rest}" if rest else "") for n in names if fnmatch.fnmatchcase(n, glob)], {}


def expand_all(patterns: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """The folders of several patterns in order, each once."""
    folders: dict[str, None] = {}
    blind: dict[str, str] = {}
    for pattern in patterns:
        found, hidden = expand(pattern)
        folders.update(dict.fromkeys(found))
        blind |= hidden
    return list(folders), blind


def tools(pattern: str, patterns: Sequence[str]) -> Found:
    """Every executable in the folders of one pattern: path -> size, mtime, inode, and the target of a link.

    A folder that is another of ``patterns`` by a link (``/bin``) is left to that one.
    """
    items: dict[str, str] = {}
    folders, blind = expand(pattern)
    for folder in folders:
        real = os.path.realpath(folder)
        if real != folder and any(fnmatch.fnmatchcase(real, other) for other in patterns):
            continue
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    _tool(entry, items, blind)
        except ABSENT:
            continue
        except OSError as error:
            blind[folder] = why(error)
    return items, blind


def _tool(entry: os.DirEntry[str], items: dict[str, str], blind: dict[str, str]) -> None:
    try:
        link = entry.is_symlink()
        found = entry.stat()
        if not stat.S_ISREG(found.st_mode) or not found.st_mode & 0o111:
            return
        target = f":{os.path.realpath(entry.path)}" if link else ""
    except FileNotFoundError:  # a link to nothing, or gone meanwhile
        return
    except OSError as error:
        blind[entry.path] = why(error)
        return
    items[entry.path] = f"{found.st_size}:{found.st_mtime_ns}:{found.st_ino}{target}"


# -- CUDA --------------------------------------------------------------------------------------------------------------


def cuda(patterns: Sequence[str], tool_patterns: Sequence[str]) -> Found:
    """CUDA toolkits: folder -> which of nvcc, headers and libcudart are there, then what is missing.

    Also where an ``nvcc`` lies among the tools without a folder of its own: half a toolkit is what gets left behind.
    """
    items: dict[str, str] = {}
    folders, blind = expand_all(patterns)
    homes, hidden = expand_all(tool_patterns)
    blind |= hidden
    beside = [home[: -len("/bin")] for home in homes if home.endswith("/bin") and _own_file(f"{home}/nvcc")]
    seen: set[str] = set()
    for folder in dict.fromkeys((*folders, *beside)):
        try:
            if folder in folders and os.path.islink(folder):  # noqa: PTH114
                items[folder] = f"-> {os.path.realpath(folder)}"
                continue
            real = os.path.realpath(folder)
            there = {name: _has(folder, names) for name, names in _TOOLKIT.items()}
        except OSError as error:
            blind[folder] = why(error)
            continue
        if real in seen or not (any(there.values()) or _looks_like(folder)):
            continue
        seen.add(real)
        has, lacks = [n for n, yes in there.items() if yes], [n for n, yes in there.items() if not yes]
        items[folder] = ",".join(has) + (f";{','.join(lacks)}" if lacks else "")
    return items, blind


def _own_file(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)  # noqa: PTH113, PTH114


_TOOLKIT: Mapping[str, Sequence[str]] = {
    "nvcc": ("bin/nvcc",),
    "headers": ("include/cuda_runtime.h", "targets/*/include/cuda_runtime.h"),
    "libcudart": (
        "lib64/libcudart.so*",
        "lib/libcudart.so*",
        "lib/*/libcudart.so*",
        "targets/*/lib/libcudart.so*",
        "lib64/libcudart_static.a",
    ),
}


def _looks_like(folder: str) -> bool:
    """A folder of that name without any part is told of too: somebody began, or removed, a toolkit there."""
    return "cuda" in os.path.basename(folder) and os.path.isdir(folder)  # noqa: PTH112, PTH119


def _has(folder: str, names: Iterable[str]) -> bool:
    return any(_exists(folder, name.split("/")) for name in names)


def _exists(folder: str, parts: Sequence[str]) -> bool:
    """Whether something of that name is there; raises ``OSError`` where nobody may look."""
    first, *rest = parts
    if "*" not in first:
        path = f"{folder}/{first}"
        if rest:
            return _exists(path, rest)
        try:
            os.stat(path)  # noqa: PTH116
        except ABSENT:
            return False
        return True
    try:
        names = fnmatch.filter(names_in(folder), first)
    except ABSENT:
        return False
    return bool(names) if not rest else any(_exists(f"{folder}/{name}", rest) for name in names)


# -- mounts and scratch ------------------------------------------------------------------------------------------------


def mounts(path: str) -> Found:
    """Mount point -> type, source and options, of what a mountinfo file lists and does not come and go by itself."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except ABSENT:
        return {}, {"": f"not_supported: there is no {path}"}
    except OSError as error:
        return {}, {"": why(error)}
    return parse_mounts(text), {}


def parse_mounts(text: str) -> dict[str, str]:
    """See ``mounts``. Of several mounts on one point all are told, the uppermost last."""
    items: dict[str, str] = {}
    for line in text.splitlines():
        front, dash, back = line.partition(" - ")
        fields, rest = front.split(" "), back.split(" ")
        if not dash or len(fields) < 6 or len(rest) < 2:
            continue
        point = _unescaped(fields[4])
        if f"{point}/".startswith(_PASSING):
            continue
        told = f"{rest[0]} {_unescaped(rest[1])} {fields[5]}"[:_OPTIONS]
        items[point] = told if point not in items else f"{items[point]}; {told}"
    return items


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def scratch(attempts: str) -> Found:
    """What every attempt's scratch takes on the disk: the attempt's folder, whose name says whose it is -> bytes, and
    ``kept`` where it is to stay. Where it lies, and whether it stays, is in the folder's ``scratch.json``."""
    items: dict[str, str] = {}
    blind: dict[str, str] = {}
    try:
        names = sorted(names_in(attempts))
    except ABSENT:
        return items, blind
    except OSError as error:
        return items, {"": why(error)}
    for name in names:
        try:
            place, kept = _scratch_of(f"{attempts}/{name}")
        except (OSError, ValueError) as error:
            blind[name] = why(error) if isinstance(error, OSError) else "unparseable: its scratch.json"
            continue
        size = entries = 0
        for used in _used(place):
            size, entries = size + used, entries + 1
            if entries >= _MOST_ENTRIES:
                blind[name] = f"out_of_range: over {_MOST_ENTRIES} entries"
                break
        else:
            if entries:
                items[name] = f"{size} kept" if kept else str(size)
    return items, blind


def _scratch_of(folder: str) -> tuple[str, bool]:
    try:
        with open(f"{folder}/scratch.json", "rb") as file:
            body = json.loads(file.read())
    except ABSENT:
        return f"{folder}/scratch", False
    if not isinstance(body, dict):
        raise ValueError("no object")
    return str(body.get("path") or f"{folder}/scratch"), bool(body.get("kept"))


def _used(folder: str) -> Iterator[int]:
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    try:
                        yield entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
                    except OSError:
                        continue
        except OSError:
            continue


def first_on_path(names: Iterable[str], tool_patterns: Sequence[str]) -> dict[str, str]:
    """Name -> path of the tool of that name that comes first in the folders."""
    found: dict[str, str] = {}
    homes, _ = expand_all(tool_patterns)
    for name in names:
        for home in homes:
            path = f"{home}/{name}"
            if os.access(path, os.X_OK) and os.path.isfile(path):  # noqa: PTH113
                found[name] = path
                break
    return found


def identity(path: str) -> str:
    """What changes when a file does: size, mtime, inode and where a link leads."""
    found = os.stat(path)  # noqa: PTH116
    return f"{found.st_size}:{found.st_mtime_ns}:{found.st_ino}:{os.path.realpath(path)}"


def version_in(name: str, output: str) -> str:
    """The version in what a tool said of itself; empty where there is none to be seen."""
    pattern = r"release (\d+(?:\.\d+)+)" if name == "nvcc" else r"\b(\d+(?:\.\d+)+)"
    found: Any = re.search(pattern, output)
    return found[1] if found is not None else ""
