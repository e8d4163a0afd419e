"""The memory files of one cgroup, of version 2 or 1: its limit, peak, use, and how many the kernel killed in it.

Where swap is counted with memory (version 1 with swap accounting) the figures are of both together. All in bytes.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value

UNLIMITED = 1 << 60  # above any memory: version 1 says "no limit" by a number near 2^63


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """One look. ``peak`` is since the group was made; ``kills`` counts processes ended by the kernel at a limit.

    ``held`` is what the kernel cannot take back (anonymous and shared memory); ``current`` counts file cache too.
    """

    limit: Reading[int]
    peak: Reading[int]
    current: Reading[int]
    held: Reading[int]
    kills: Reading[int]


def version(group: Path) -> int | None:
    """2 or 1 where the group has memory files, None where it has none."""
    if (group / "memory.max").exists():
        return 2
    return 1 if (group / "memory.limit_in_bytes").exists() else None


def look(group: Path, clock: Callable[[], float] = time.monotonic) -> GroupMemory:
    """Reads all of it. Pseudo-files of the kernel: nothing blocks."""
    if version(group) == 1:
        swap = "memsw." if (group / "memory.memsw.limit_in_bytes").exists() else ""
        return GroupMemory(
            _number(group / f"memory.{swap}limit_in_bytes", clock),
            _number(group / f"memory.{swap}max_usage_in_bytes", clock),
            _number(group / f"memory.{swap}usage_in_bytes", clock),
            _sum(group / "memory.stat", ("total_rss", "total_shmem"), clock),
            _sum(group / "memory.oom_control", ("oom_kill",), clock),
        )
    return GroupMemory(
        _number(group / "memory.max", clock),
        _number(group / "memory.peak", clock),
        _number(group / "memory.current", clock),
        _sum(group / "memory.stat", ("anon", "shmem"), clock),
        _sum(group / "memory.events", ("oom_kill",), clock),
    )


def _text(path: Path, clock: Callable[[], float]) -> str | Unavailable:
    try:
        return path.read_text()
    except OSError as problem:
        missing = isinstance(problem, FileNotFoundError) or problem.errno == errno.ENODEV
        denied = isinstance(problem, PermissionError)
        reason = Reason.NOT_SUPPORTED if missing else Reason.NO_PERMISSION if denied else Reason.UNPARSEABLE
        return Unavailable(reason, clock(), _instrument(path), Scope.PROCESS, problem.strerror or "")


def _number(path: Path, clock: Callable[[], float]) -> Reading[int]:
    text = _text(path, clock)
    if isinstance(text, Unavailable):
        return text
    word = text.strip()
    if word == "max":
        return Value(UNLIMITED, clock(), _instrument(path), Scope.PROCESS)
    if not word.isdigit():
        return Unavailable(Reason.UNPARSEABLE, clock(), _instrument(path), Scope.PROCESS, word[:80])
    return Value(min(int(word), UNLIMITED), clock(), _instrument(path), Scope.PROCESS)


def _sum(path: Path, names: tuple[str, ...], clock: Callable[[], float]) -> Reading[int]:
    """The sum of some lines ``name number``; the first has to be there, the others are 0 where the kernel has none."""
    text = _text(path, clock)
    if isinstance(text, Unavailable):
        return text
    found = {name: int(number) for name, number in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}
    if names[0] not in found:
        detail = f"no line {names[0]}"
        return Unavailable(Reason.NOT_SUPPORTED, clock(), _instrument(path), Scope.PROCESS, detail)
    return Value(sum(found.get(name, 0) for name in names), clock(), _instrument(path), Scope.PROCESS)


def _instrument(path: Path) -> str:
    return f"cgroup.{path.name}"
