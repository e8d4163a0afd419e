"""Runs a program under the recording shim and reads the record back.

``mark`` is for the program under test: it puts "acknowledged X" into the same order as its writes, so that a check can
say: everything acknowledged before the power cut is there after recovery.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

HERE = Path(__file__).parent
_RECORD = struct.Struct("<IIQIiQQQqIII")
_MAGIC = 0x48535243


class Kind(IntEnum):
    """What was done; the numbers are those of shim.c."""

    WRITE = 1
    WRITE_SYNCED = 2
    TRUNCATE = 3
    GROW = 4
    SYNC = 5
    SYNC_ALL = 6
    CREATE = 7
    MKDIR = 8
    SYMLINK = 9
    LINK = 10
    RENAME = 11
    UNLINK = 12
    MARK = 13
    UNSUPPORTED = 14


@dataclass(frozen=True, slots=True)
class Operation:
    """One recorded operation that succeeded. ``offset`` is the new size for TRUNCATE and GROW."""

    number: int
    kind: Kind
    pid: int
    inode: int
    folder: int
    folder2: int
    offset: int
    name: str
    name2: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or link that was there before the program began: all of it counts as durable."""

    inode: int
    kind: str
    data: bytes = b""
    children: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recording:
    """What a program did to the files under ``root``: the folder before, the operations, and how it ended."""

    root: Path
    before: Mapping[int, Entry]
    root_inode: int
    operations: Sequence[Operation]
    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def marks(self) -> list[str]:
        """Every mark, in order."""
        return [each.data.decode() for each in self.operations if each.kind is Kind.MARK]


def build_shim(folder: Path) -> Path:
    """Compiles the shim into a folder; once a test run is enough."""
    library = folder / "crash-shim.so"
    command = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-nonnull", "-shared", "-fPIC", "-pthread"]
    subprocess.run([*command, "-o", library, HERE / "shim.c"], check=True, timeout=60)
    return library


def mark(text: str) -> None:
    """Called by the program under test. Fails where the shim is not loaded: a mark that is lost proves nothing."""
    raw = text.encode()
    if ctypes.CDLL(None).crash_mark(raw, ctypes.c_size_t(len(raw))) != 0:
        raise RuntimeError("the recording shim is loaded, but records nothing")


def snapshot(root: Path) -> dict[int, Entry]:
    """Everything under a folder by inode; sockets and pipes are left out."""
    found: dict[int, Entry] = {}
    pending = [root]
    while pending:
        folder = pending.pop()
        children = {}
        for child in folder.iterdir():
            inode = child.lstat().st_ino
            if child.is_symlink():
                found[inode] = Entry(inode, "link", os.fsencode(child.readlink()))
            elif child.is_dir():
                pending.append(child)
            elif child.is_file():
                found[inode] = Entry(inode, "file", child.read_bytes())
            else:
                continue
            children[child.name] = inode
        inode = folder.stat().st_ino
        found[inode] = Entry(inode, "folder", children=children)
    return found


def read_log(path: Path) -> Iterator[Operation]:
    """The operations of a record. A last one cut short by a SIGKILL is left out: its effect was not seen."""
    raw = path.read_bytes() if path.exists() else b""
    at = 0
    while at + _RECORD.size <= len(raw):
        magic, length, number, kind, pid, inode, folder, folder2, offset, n1, n2, n3 = _RECORD.unpack_from(raw, at)
        if magic != _MAGIC:
            raise ValueError(f"{path}: no record at byte {at}")
        if at + length > len(raw):
            return
        body = raw[at + _RECORD.size : at + length]
        names = os.fsdecode(body[:n1]), os.fsdecode(body[n1 : n1 + n2])
        data = body[n1 + n2 : n1 + n2 + n3]
        yield Operation(number, Kind(kind), pid, inode, folder, folder2, offset, *names, data)
        at += length


def record(
    argv: Sequence[str | os.PathLike[str]],
    root: Path,
    shim: Path,
    *,
    python_path: Sequence[Path] = (),
    timeout: float = 60.0,
    check: bool = True,
) -> Recording:
    """Runs a program with the shim loaded and gives what it did under ``root``. The record lies beside the root.

    ``python_path`` comes before everything else on the child's PYTHONPATH (a patched copy of a package); this folder
    is on it too, so that the child can ``from record import mark``. Raises where the program fails, unless told not to.
    """
    root = root.resolve()
    log = root.parent / f"{root.name}.record"
    for stale in (log, Path(f"{log}.ctl")):
        stale.unlink(missing_ok=True)
    before = snapshot(root)
    environment = os.environ | {
        "LD_PRELOAD": str(shim),
        "CRASH_SHIM_ROOT": str(root),
        "CRASH_SHIM_LOG": str(log),
        "PYTHONPATH": os.pathsep.join(map(str, (*python_path, HERE))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=timeout)
    if check and done.returncode != 0:
        sys.stderr.buffer.write(done.stderr)
        raise subprocess.CalledProcessError(done.returncode, list(map(str, argv)), done.stdout, done.stderr)
    operations = list(read_log(log))
    if [each.number for each in operations] != list(range(len(operations))):
        raise ValueError(f"{log}: the numbers of the record have gaps")
    return Recording(root, before, root.stat().st_ino, operations, done.returncode, done.stdout, done.stderr)
