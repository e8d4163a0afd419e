"""Processes that hop: each forks a successor and ends, faster than anybody can walk /proc, which then finds nobody.

Whoever hops is an orphan at every moment, or the child of one. Orphans belong to whoever collects them: init, or a
subreaper further up. Their list of children is one short file, and the mark of a child one call of the kernel: quick
enough to meet a hopper before it has hopped on. So nobody is said to be gone on the word of a walk through /proc
alone, but after a span in which not one marked child turned up.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from pathlib import Path

from tenure.agent.marks import same_mark

#: No new marked child for so long: nobody hops. A hop takes well under a millisecond of a core, and even a busy machine
#: gives everybody many turns in this.
QUIET_S = 0.25
#: Looked for at most this long.
LONGEST_S = 5.0
_RLIMIT_LOCKS = 10


def hunt(mark: int, *, quiet_s: float = QUIET_S, longest_s: float = LONGEST_S) -> bool:
    """Kills every marked child of the collectors of orphans. True: for ``quiet_s`` no new one turned up. False: they
    keep coming, or the kernel does not show who is whose child, so that nothing can be said."""
    reapers = _collectors()
    met: set[int] = set()
    innocent: set[int] = set()
    began = heard = time.monotonic()
    while True:
        orphans = _orphans(reapers)
        if orphans is None:
            return False
        fresh = [pid for pid in orphans if pid not in innocent and pid not in met]
        marked = [pid for pid in fresh if _bears(mark, pid, innocent)]
        for pid in marked:
            met.add(pid)
            with contextlib.suppress(OSError):  # it hopped on, or may not be signalled: then it turns up again
                os.kill(pid, signal.SIGKILL)
        now = time.monotonic()
        if marked:
            heard = now
        if now - heard >= quiet_s:
            return True
        if now - began >= longest_s:
            return False
        if not marked:
            time.sleep(0)  # the other side needs a core to show itself


def _bears(mark: int, pid: int, innocent: set[int]) -> bool:
    """Whether a process bears the mark; one that is there and does not is added to the innocent."""
    try:
        if same_mark(mark, resource.prlimit(pid, _RLIMIT_LOCKS)[1]):
            return True
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's: it is not what this user's supervisor started, or beyond us
    innocent.add(pid)
    return False


def _orphans(reapers: list[int]) -> list[int] | None:
    """The children of all collectors; None where those of init are not shown."""
    found: list[int] = []
    for reaper in reapers:
        children = _children(reaper)
        if children is None and reaper == 1:
            return None
        found += children or ()
    return found


def _collectors() -> list[int]:
    """Init, and every process above this one: a service manager of a user is a subreaper, for example."""
    found, pid = [1], os.getpid()
    for _ in range(64):
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
        if pid <= 1:
            break
        found.append(pid)
    return found


def _children(pid: int) -> list[int] | None:
    """The children of a process's threads; None where the kernel does not tell."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - many a second
    except OSError:
        return None
    found: list[int] = []
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children", "rb", buffering=0) as file:
                found += map(int, file.read().split())
        except OSError:
            if task == str(pid):
                return None
    return found
