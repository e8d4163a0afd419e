"""/proc: who runs, whose child it is, what it burnt, and which GPU device files and driver libraries it has open.

Standard library only, parsers pure. ``snapshot`` and the tree are cheap and cannot block; ``handles`` and
``environ_has`` look into one process's memory map, which waits where that process is stuck in the kernel with its map
locked: long-lived programs ask them through ``proc_child.ProcProbe``.

Figures of one process count only while it is the same process: pass ``start_ticks`` and a reused pid reads as
``Vanished``. A process that ended is no failed reading and no "has no handles": it is ``Vanished``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MAX_BYTES = 64 << 20  # of one maps or environ file; more than that is read as unparseable, not cut


class ProcEntry(NamedTuple):
    """One process. ``start_ticks`` is field 22 of its stat file; with the pid and boot id it names the process.

    ``cpu_ticks`` is its own user and system time, ``waited_ticks`` that of its children that ended and were waited
    for. ``uid`` is the owner of its /proc entry (root for a process that may not be dumped).
    """

    pid: int
    ppid: int
    start_ticks: int
    state: str
    comm: str
    cpu_ticks: int
    waited_ticks: int
    uid: int
    session: int


@dataclass(frozen=True, slots=True)
class ProcTable:
    """All processes at about one instant. ``unreadable`` were listed but could not be read (not: had ended)."""

    entries: Mapping[int, ProcEntry]
    at: float
    unreadable: tuple[int, ...] = ()
    children: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def __contains__(self, pid: object) -> bool:
        """Whether a process of that number exists in this PID namespace."""
        return pid in self.entries or pid in self.unreadable


@dataclass(frozen=True, slots=True)
class Vanished:
    """The process ended (or its number belongs to another one by now) before it could be looked at."""

    pid: int
    at: float


@dataclass(frozen=True, slots=True)
class Handles:
    """GPU device files that a process holds open, and libraries of a GPU driver that it has mapped.

    ``kinds`` sums up the device files: nvidia, nvidia-uvm, dxg, kfd, render, nvhost, nvgpu. Device files and
    ``libraries`` alone do not prove a context (listing devices opens some too); none at all is what counts.
    """

    device_files: tuple[str, ...]
    libraries: tuple[str, ...]
    kinds: frozenset[str]

    @property
    def compute_capable(self) -> bool:
        """Whether anything is open without which no context can exist. A query through NVML alone opens none."""
        return bool(self.kinds & COMPUTE_KINDS) or any(_CONTEXT_LIBRARY.match(lib) for lib in self.libraries)


COMPUTE_KINDS = frozenset({"nvidia-uvm", "dxg", "kfd", "nvhost", "nvgpu"})
# Base names of device files. The directory is not matched: containers and sandboxes mount them anywhere.
_DEVICE_FILE = re.compile(
    r"/(?:(?P<uvm>nvidia-uvm(?:-tools)?)|(?P<nvidia>nvidia(?:\d+|ctl|-modeset|-cap\d+|-nvswitch\w*|-caps-imex-\w+))"
    r"|(?P<dxg>dxg)|(?P<kfd>kfd)|(?P<render>renderD\d+)"
    r"|(?P<nvhost>nvhost-[\w-]+|nvmap)|(?P<nvgpu>nvgpu(?:/[\w.-]+)*))(?: \(deleted\))?$"
)
_LIBRARY = re.compile(
    rb"/(lib(?:cuda|nvcuvid|nvidia-ptxjitcompiler|nvidia-nvvm|nvidia-gpucomp|nvidia-ml|cudadebugger|nvrm_gpu|dxcore"
    rb"|amdhip64|hsa-runtime64|hsakmt|ze_intel_gpu|OpenCL|nvidia-opencl)\.so[.\d]*)(?: \(deleted\))?$",
    re.MULTILINE,
)
_CONTEXT_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ptxjitcompiler|nvrm_gpu|dxcore|amdhip64|hsa-runtime64|hsakmt)\.so")


def parse_stat(text: str, uid: int) -> ProcEntry | None:
    """One line of /proc/PID/stat. The command may hold blanks and brackets, so it ends at the last bracket."""
    opening, closing = text.find("("), text.rfind(")")
    rest = text[closing + 2 :].split()
    if opening < 0 or closing < opening or len(rest) < 20:
        return None
    try:
        return ProcEntry(
            pid=int(text[:opening]),
            ppid=int(rest[1]),
            start_ticks=int(rest[19]),
            state=rest[0],
            comm=text[opening + 1 : closing],
            cpu_ticks=int(rest[11]) + int(rest[12]),
            waited_ticks=int(rest[13]) + int(rest[14]),
            uid=uid,
            session=int(rest[3]),
        )
    except ValueError:
        return None


def read_entry(pid: int, proc: Path = PROC) -> ProcEntry | None:
    """One process, or None where it does not exist. Raises PermissionError where it may not be looked at."""
    try:
        fd = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return None
    try:
        text = os.read(fd, 4096).decode("utf-8", "replace")
        return parse_stat(text, os.fstat(fd).st_uid)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)


def snapshot(proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> ProcTable:
    """Every process of this PID namespace. Not atomic: one that is forked meanwhile may be missing."""
    at = clock()
    entries: dict[int, ProcEntry] = {}
    children: dict[int, list[int]] = {}
    unreadable: list[int] = []
    for name in os.listdir(proc):  # noqa: PTH208 - half the cost of pathlib, and this runs every second
        if not name.isdigit():
            continue
        try:
            entry = read_entry(int(name), proc)
        except OSError:
            unreadable.append(int(name))
            continue
        if entry is not None:
            entries[entry.pid] = entry
            children.setdefault(entry.ppid, []).append(entry.pid)
    return ProcTable(entries, at, tuple(unreadable), {parent: tuple(pids) for parent, pids in children.items()})


def tree(root_pid: int, table: ProcTable, *, start_ticks: int | None = None) -> tuple[ProcEntry, ...]:
    """The process and all its descendants, parents first; empty where the root is gone (or is another process now)."""
    root = table.entries.get(root_pid)
    if root is None or (start_ticks is not None and root.start_ticks != start_ticks):
        return ()
    found, seen = [root], {root_pid}
    for entry in found:  # grows while it is walked
        for pid in table.children.get(entry.pid, ()):
            if pid not in seen:
                seen.add(pid)
                found.append(table.entries[pid])
    return tuple(found)


def cpu_seconds(entries: Iterable[ProcEntry]) -> float:
    """CPU seconds burnt by these processes and by those of their children that ended and were waited for.

    Time of children whose parent ended without waiting goes to whoever reaps them: a lower bound, unless the root is
    a subreaper.
    """
    return sum(entry.cpu_ticks + entry.waited_ticks for entry in entries) / TICKS_PER_S


def parse_links(targets: Iterable[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """(device files of GPUs, their kinds) among the targets of a process's open files."""
    files: set[str] = set()
    kinds: set[str] = set()
    for target in targets:
        found = _DEVICE_FILE.search(target)
        if found is None or not found.lastgroup:
            continue
        files.add(target.removesuffix(" (deleted)"))
        kinds.add("nvidia-uvm" if found.lastgroup == "uvm" else found.lastgroup)
    return tuple(sorted(files)), frozenset(kinds)


def parse_maps(raw: bytes) -> tuple[str, ...]:
    """Base names of the GPU driver libraries in a /proc/PID/maps file."""
    return tuple(sorted({found.decode() for found in _LIBRARY.findall(raw)}))


def handles(
    pid: int,
    *,
    start_ticks: int | None = None,
    proc: Path = PROC,
    clock: Callable[[], float] = time.monotonic,
) -> Reading[Handles] | Vanished:
    """Open GPU device files and mapped driver libraries of one process (all its threads share both)."""
    at = clock()
    try:
        entry = read_entry(pid, proc)
        if entry is None or (start_ticks is not None and entry.start_ticks != start_ticks):
            return Vanished(pid, at)
        base = _live_thread(entry, proc)
        if base is None:
            return Vanished(pid, at)
        targets = [_link(f"{base}/fd/{name}") for name in os.listdir(f"{base}/fd")]  # noqa: PTH208
        libraries = parse_maps(_read(f"{base}/maps"))
        after = read_entry(pid, proc)
    except (FileNotFoundError, ProcessLookupError):
        return Vanished(pid, at)
    except OSError as problem:
        denied = isinstance(problem, PermissionError)
        reason = Reason.NO_PERMISSION if denied else Reason.UNPARSEABLE
        return Unavailable(reason, at, "proc.handles", Scope.PROCESS, f"{pid}: {problem.strerror}")
    if after is None or after.start_ticks != entry.start_ticks:
        return Vanished(pid, at)
    files, kinds = parse_links(targets)
    return Value(Handles(files, libraries, kinds), at, "proc.handles", Scope.PROCESS)


def _live_thread(entry: ProcEntry, proc: Path) -> str | None:
    """Where to look: the process, or a thread that still runs after its main thread ended; None for a real zombie."""
    if entry.state not in "ZX":
        return f"{proc}/{entry.pid}"
    for tid in os.listdir(f"{proc}/{entry.pid}/task"):  # noqa: PTH208
        if int(tid) == entry.pid:
            continue
        thread = read_entry(int(tid), proc / str(entry.pid) / "task")
        if thread is not None and thread.state not in "ZX":
            return f"{proc}/{entry.pid}/task/{tid}"
    return None


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except FileNotFoundError:  # closed since the directory was listed
        return ""


def _read(path: str) -> bytes:
    parts: list[bytes] = []
    total = 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while chunk := os.read(fd, 1 << 18):
            parts.append(chunk)
            total += len(chunk)
            if total > MAX_BYTES:
                raise OSError(27, f"{path} is over {MAX_BYTES} bytes")
    finally:
        os.close(fd)
    return b"".join(parts)


def environ_has(
    pid: int, key: str, value: str, *, proc: Path = PROC, clock: Callable[[], float] = time.monotonic
) -> Reading[bool] | Vanished:
    """Whether the process was started with ``key=value`` in its environment (a program may overwrite it later)."""
    at = clock()
    try:
        raw = _read(f"{proc}/{pid}/environ")
    except (FileNotFoundError, ProcessLookupError):
        return Vanished(pid, at)
    except OSError as problem:
        denied = isinstance(problem, PermissionError)
        reason = Reason.NO_PERMISSION if denied else Reason.UNPARSEABLE
        return Unavailable(reason, at, "proc.environ", Scope.PROCESS, f"{pid}: {problem.strerror}")
    return Value(f"{key}={value}".encode() in raw.split(b"\0"), at, "proc.environ", Scope.PROCESS)


def survivors(
    key: str, value: str, table: ProcTable, *, uid: int | None = None, proc: Path = PROC
) -> tuple[tuple[ProcEntry, ...], tuple[int, ...]]:
    """(processes that carry ``key=value``, pids that could not be looked at), among those of ``uid`` where given."""
    found: list[ProcEntry] = []
    unseen: list[int] = []
    for entry in table.entries.values():
        if uid is not None and entry.uid != uid:
            continue
        has = environ_has(entry.pid, key, value, proc=proc)
        if isinstance(has, Unavailable):
            unseen.append(entry.pid)
        elif isinstance(has, Value) and has.value and entry.state not in "ZX":
            found.append(entry)
    return tuple(found), tuple(unseen)
