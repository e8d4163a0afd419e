"""What the host has left: memory, swap and of which kind, pressure, load, disk. Parsers are pure; bytes throughout.

Swap on zram is shown as what it is: memory, not room beside it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value


@dataclass(frozen=True, slots=True)
class Swap:
    """One swap area: ``kind`` is zram, partition or file; ``priority`` as the kernel orders them."""

    name: str
    kind: str
    size: int
    used: int
    priority: int


@dataclass(frozen=True, slots=True)
class Pressure:
    """Share of time (percent) that some or all tasks waited for a resource; ``full`` is None where not told."""

    some_avg10: float
    some_avg60: float
    full_avg10: float | None
    full_avg60: float | None


@dataclass(frozen=True, slots=True)
class Disk:
    """Free room for an unprivileged writer, and the size of the file system, in bytes; free inodes (0: not counted)."""

    path: str
    free: int
    size: int
    free_inodes: int


@dataclass(frozen=True, slots=True)
class HostSample:
    """One look at the host. ``at`` is monotonic seconds."""

    at: float
    memory_total: Reading[int]
    memory_available: Reading[int]
    swap_total: Reading[int]
    swap_free: Reading[int]
    swaps: Reading[tuple[Swap, ...]]
    pressure_memory: Reading[Pressure]
    pressure_cpu: Reading[Pressure]
    pressure_io: Reading[Pressure]
    load1: Reading[float]


def _missing(instrument: str, at: float, problem: OSError | None = None, detail: str = "") -> Unavailable:
    reason = Reason.UNPARSEABLE
    if isinstance(problem, PermissionError):
        reason = Reason.NO_PERMISSION
    elif isinstance(problem, FileNotFoundError) or (problem is not None and problem.errno == 95):  # EOPNOTSUPP
        reason = Reason.NOT_SUPPORTED
    return Unavailable(reason, at, instrument, Scope.HOST, detail or (problem.strerror if problem else "") or "")


def parse_meminfo(text: str) -> dict[str, int]:
    """Every ``Name: N kB`` line in bytes."""
    found = re.findall(r"^([\w()]+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: int(number) * 1024 for name, number in found}


def parse_swaps(text: str) -> tuple[Swap, ...] | None:
    """/proc/swaps, or None where it is not one. A device called zramN is memory whatever its type says."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("Filename"):
        return None
    areas: list[Swap] = []
    for line in lines[1:]:
        words = line.rsplit(None, 4)
        if len(words) != 5 or not all(re.fullmatch(r"-?\d+", word) for word in words[2:]):
            return None
        name = words[0].replace("\\040", " ")
        kind = "zram" if re.search(r"/zram\d+$", name) else words[1]
        areas.append(Swap(name, kind, int(words[2]) * 1024, int(words[3]) * 1024, int(words[4])))
    return tuple(areas)


def parse_pressure(text: str) -> Pressure | None:
    """A /proc/pressure file, or None where it is not one. The cpu file of older kernels has no ``full`` line."""
    lines: Mapping[str, tuple[float, float]] = {
        kind: (float(ten), float(sixty))
        for kind, ten, sixty in re.findall(r"^(some|full) avg10=([\d.]+) avg60=([\d.]+)", text, re.MULTILINE)
    }
    if "some" not in lines:
        return None
    full = lines.get("full")
    return Pressure(*lines["some"], *(full if full is not None else (None, None)))


def parse_loadavg(text: str) -> float | None:
    """The mean number of runnable tasks over the last minute."""
    found = re.match(r"(\d+\.\d+) \d+\.\d+ \d+\.\d+ ", text)
    return float(found[1]) if found else None


def _text(path: Path) -> str | OSError:
    try:
        return path.read_text(errors="replace")
    except OSError as problem:
        return problem


def sample(root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> HostSample:
    """Reads /proc. Local pseudo-files only, so it does not block; disks are asked apart (see ``disk_free``)."""
    at = clock()
    proc = root / "proc"
    meminfo = _text(proc / "meminfo")
    figures = parse_meminfo(meminfo) if isinstance(meminfo, str) else {}
    problem = meminfo if isinstance(meminfo, OSError) else None

    def memory(name: str) -> Reading[int]:
        if name in figures:
            return Value(figures[name], at, "proc.meminfo", Scope.HOST)
        return _missing("proc.meminfo", at, problem, "" if problem else f"no line {name}")

    def pressure(name: str) -> Reading[Pressure]:
        text = _text(proc / "pressure" / name)
        got = parse_pressure(text) if isinstance(text, str) else None
        if got is None:
            return _missing(f"proc.pressure.{name}", at, text if isinstance(text, OSError) else None)
        return Value(got, at, f"proc.pressure.{name}", Scope.HOST)

    swaps_text, load_text = _text(proc / "swaps"), _text(proc / "loadavg")
    swaps = parse_swaps(swaps_text) if isinstance(swaps_text, str) else None
    load = parse_loadavg(load_text) if isinstance(load_text, str) else None
    return HostSample(
        at=at,
        memory_total=memory("MemTotal"),
        memory_available=memory("MemAvailable"),
        swap_total=memory("SwapTotal"),
        swap_free=memory("SwapFree"),
        swaps=_missing("proc.swaps", at, swaps_text if isinstance(swaps_text, OSError) else None)
        if swaps is None
        else Value(swaps, at, "proc.swaps", Scope.HOST),
        pressure_memory=pressure("memory"),
        pressure_cpu=pressure("cpu"),
        pressure_io=pressure("io"),
        load1=_missing("proc.loadavg", at, load_text if isinstance(load_text, OSError) else None)
        if load is None
        else Value(load, at, "proc.loadavg", Scope.HOST),
    )


def disk_free(path: str, clock: Callable[[], float] = time.monotonic) -> Reading[Disk]:
    """Room on the file system of ``path``. Blocks where a network mount is stuck: ask it through ``ProcProbe``."""
    at = clock()
    try:
        found = os.statvfs(path)
    except OSError as problem:
        return _missing("statvfs", at, problem, f"{path}: {problem.strerror}")
    disk = Disk(path, found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, found.f_favail)
    return Value(disk, at, "statvfs", Scope.HOST)


def counter(root: Path, name: str, pattern: re.Pattern[str]) -> Reading[int]:
    """One number of a file of /proc."""
    at = time.monotonic()
    text = _text(root / "proc" / name)
    if isinstance(text, OSError):
        return _missing(f"proc.{name}", at, text)
    found = pattern.search(text)
    if found is None:
        return Unavailable(Reason.NOT_SUPPORTED, at, f"proc.{name}", Scope.HOST, "no such line")
    return Value(int(found[1]), at, f"proc.{name}", Scope.HOST)
