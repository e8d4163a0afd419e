"""What processes weigh and spend, read from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third on; ``None`` where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return None


def command(pid: int) -> str:
    """The command line of a process, words apart by blanks; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def descendants(roots: Iterable[int]) -> set[int]:
    """The given processes that are alive, and everything below them."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names alone are wanted
        if name.isdigit() and (fields := stat(int(name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(name))
    found: set[int] = set()
    waiting = [pid for pid in roots if stat(pid) is not None]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def mentioning(text: str) -> set[int]:
    """The processes that were started for one folder: it is named in their environment or command line, or they have
    a file open below it (Slurm's step daemons overwrite the other two)."""
    wanted = os.fsencode(text)
    found = set()
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                said = [Path(f"/proc/{name}/{file}").read_bytes() for file in ("environ", "cmdline")]
                if any(wanted in each for each in (*said, *open_files(int(name)))):
                    found.add(int(name))
    return found


def open_files(pid: int) -> list[bytes]:
    """What the descriptors of a process lead to; those that may not be looked at are left out."""
    found = []
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(os.fsencode(link.readlink()))
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU seconds spent by processes and by those of their children that they have collected.

    The difference of two of these holds also what a child spent that ended in between: it moves to its parent.
    """
    total = 0
    for pid in pids:
        if (fields := stat(pid)) is not None:
            total += sum(int(field) for field in fields[11:15])
    return total / TICKS


def memory_kib(pid: int) -> dict[str, int]:
    """``Pss``, ``Rss`` and ``Private_Dirty`` in KiB; empty where the process is gone or may not be looked at."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii", "replace").splitlines()[1:]
    except OSError:
        return {}
    sizes = {line.partition(":")[0]: int(line.split()[1]) for line in lines}
    return {name: sizes.get(name, 0) for name in ("Pss", "Rss", "Private_Dirty")}


def until(true: Callable[[], object], what: str, *, timeout_s: float, every_s: float = 0.01) -> None:
    """Polls until something holds. Raises ``TimeoutError``."""
    end = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(every_s)


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    fields = stat(pid)
    return fields is None or fields[0] in ("Z", "X")


def end(pids: Iterable[int], *, mark: str, grace_s: float = 5.0) -> None:
    """Ends processes that still carry ``mark`` in environment or command line: SIGTERM, then SIGKILL.

    The mark is the run's own folder, so that a number which meanwhile belongs to somebody else's process is let be.
    """
    ours = set(pids) & mentioning(mark)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        with contextlib.suppress(TimeoutError):
            until(lambda: all(map(gone, ours)), "they end", timeout_s=grace_s)
            return
