"""The processes below one, by the kernel's lists of children: costs what the tree is, not what the host is.

On a host with many processes a scan of /proc every second is most of what sampling costs. The lists are per thread and
not atomic: one that is forked or adopted meanwhile may be missing, as in a scan. Where the kernel has no such lists
(CONFIG_PROC_CHILDREN), or the tree has very many threads, the answer is None and a scan does it.
"""

from __future__ import annotations

import os
from pathlib import Path

from tenure.probes.proc import PROC, ProcEntry, read_entry

#: Threads whose lists are read; a tree with more is cheaper to find by a scan.
MOST_THREADS = 400


def below(root_pid: int, *, start_ticks: int | None = None, proc: Path = PROC) -> tuple[ProcEntry, ...] | None:
    """The process and all its descendants, parents first; empty where the root is gone, None where it was not told."""
    root = _entry(root_pid, proc)
    if root is None or (start_ticks is not None and root.start_ticks != start_ticks):
        return ()
    found, seen, threads = [root], {root_pid}, 0
    for entry in found:  # grows while it is walked
        try:
            tasks = os.listdir(f"{proc}/{entry.pid}/task")  # noqa: PTH208 - half the cost of pathlib, every second
        except OSError:
            continue  # it ended
        threads += len(tasks)
        if threads > MOST_THREADS:
            return None
        for task in tasks:
            children = _children(f"{proc}/{entry.pid}/task/{task}")
            if children is None:
                return None
            for pid in children:
                child = None if pid in seen else _entry(pid, proc)
                seen.add(pid)
                if child is not None:
                    found.append(child)
    return tuple(found)


def _entry(pid: int, proc: Path) -> ProcEntry | None:
    try:
        return read_entry(pid, proc)
    except OSError:
        return None


def _children(task: str) -> list[int] | None:
    try:
        fd = os.open(f"{task}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        # A thread that has just ended, or a kernel that has no such file.
        return None if os.path.exists(f"{task}/stat") else []  # noqa: PTH110
    try:
        data = b""
        while chunk := os.read(fd, 1 << 16):
            data += chunk
        return [int(pid) for pid in data.split()]
    except OSError:
        return []
    finally:
        os.close(fd)
