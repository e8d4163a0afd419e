"""Processes of a job whose supervisor died: found by five signs, and killed in rounds until none is found.

    mark         the resource limit their supervisor left them with in /proc/PID/limits (see its ``leave_mark``)
    cgroup       they sit in the job's cgroup (version 2, or in the freezer): complete, whatever they did
    leader       the command itself, by pid and start ticks from supervisor.json, and what is in its session
    environment  RC_JOB_ID and RC_ATTEMPT in /proc/PID/environ (as the process was started with)
    descent      children of any of these

In a PID namespace of the job's own they are dead with its init, which dies with the supervisor; what is found of it
meanwhile bears the mark. Without mark and cgroup one kind escapes: a process that cleared its environment, left the
session, and whose parents are gone. And a process may be unreadable (another user's, after setuid). Both limits are
part of the answer: ``unreadable`` lists who could not be looked at, and ``complete`` says whether mark or cgroup stood
behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tenure.agent.adopt import Identity
from tenure.agent.hoppers import hunt
from tenure.agent.marks import same_mark

_EMPTY_LOOKS = 10  # one after the other, before nobody is said to be left
_INIT, _PF_EXITING = b"tenure-init", 0x4  # of a job's PID namespace (see supervisor.py); of linux/sched.h
Sign = Literal["mark", "cgroup", "leader", "session", "environment", "descent"]


@dataclass(frozen=True, slots=True)
class Survivor:
    """A living process of the job. ``start_ticks`` in clock ticks since boot."""

    pid: int
    start_ticks: int
    name: str
    sign: Sign


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A process young enough to belong to the job whose environment could not be read."""

    pid: int
    start_ticks: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Census:
    """Who is left. ``complete``: nobody can be missing but by shedding the mark, or leaving the cgroup, on purpose."""

    survivors: tuple[Survivor, ...]
    unreadable: tuple[Unreadable, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class Cleared:
    """The end of ``kill``: whom it signalled, in how many rounds, and the last census (no ``survivors``: success)."""

    killed: tuple[Survivor, ...]
    rounds: int
    last: Census


@dataclass(frozen=True, slots=True)
class _Stat:
    pid: int
    name: str
    alive: bool
    ppid: int
    session: int
    start: int


def census(job: str, attempt: int, identity: Identity | None) -> Census:
    """Looks once. ``identity`` is that of the dead supervisor, from supervisor.json; None where there was none.

    Processes that began before the command (or, where that is not known, its supervisor) are passed over.
    """
    since = (identity.leader_start_ticks or identity.start_ticks) if identity else 0
    table = {p.pid: p for p in map(_stat, _pids()) if p and p.alive and p.start >= since and p.pid != os.getpid()}
    if identity and identity.pid in table and table[identity.pid].start == identity.start_ticks:
        del table[identity.pid]  # the supervisor itself, where it is not dead after all
    signs: dict[int, Sign] = {}
    inside = cgroup_pids(Path(identity.cgroup)) if identity and identity.cgroup else None
    for pid in inside or ():
        if pid in table:
            signs[pid] = "cgroup"
    mark = identity.mark if identity else None
    if mark is not None:
        for p in table.values():
            if p.pid not in signs and _bears(mark, p.pid):
                signs[p.pid] = "mark"
    if identity and identity.leader_pid is not None:
        _mark_session(identity.leader_pid, identity.leader_start_ticks, table, signs)
    wanted = {f"RC_JOB_ID={job}".encode(), f"RC_ATTEMPT={attempt}".encode()}
    unreadable = []
    for p in table.values():
        if p.pid in signs:
            continue
        try:
            if wanted <= set(Path(f"/proc/{p.pid}/environ").read_bytes().split(b"\0")):
                signs[p.pid] = "environment"
        except (FileNotFoundError, ProcessLookupError):
            pass  # it ended meanwhile
        except OSError as e:
            unreadable.append(Unreadable(p.pid, p.start, p.name, e.strerror or type(e).__name__))
    _mark_descent(table, signs)
    found = tuple(Survivor(pid, table[pid].start, table[pid].name, sign) for pid, sign in sorted(signs.items()))
    return Census(found, tuple(u for u in unreadable if u.pid not in signs), inside is not None or mark is not None)


async def kill(job: str, attempt: int, identity: Identity | None, *, timeout_s: float = 10.0) -> Cleared:
    """Kills whoever is left. Each round stops all it finds first, so that nobody forks away from the list, then kills.

    What the supervisor, or the job itself, left frozen is thawed once it has its SIGKILL: what is frozen does not die.
    Ends when a census finds nobody, or after ``timeout_s``: then ``last.survivors`` names who would not die. Who could
    not be read is in ``last.unreadable``. Blocks the loop for the length of a scan of /proc at a time.
    """
    deadline = time.monotonic() + timeout_s
    group = Path(identity.cgroup) if identity and identity.cgroup else None
    killed: dict[int, Survivor] = {}
    rounds, empty, pause = 0, 0, 0.002
    while True:
        found = census(job, attempt, identity)
        if not found.survivors:
            empty += 1
            # The kernel removes an empty group only. Without one a look can miss who hops from process to process.
            if remove_cgroup(group) if group is not None else empty >= _EMPTY_LOOKS:
                mark = identity.mark if identity is not None and group is None else None
                if mark is not None and not hunt(mark):  # and may go on missing them, ten times in a row
                    found = replace(found, complete=False)
                return Cleared(tuple(killed.values()), rounds, found)
        if time.monotonic() >= deadline:
            complete = found.complete and bool(found.survivors)
            return Cleared(tuple(killed.values()), rounds, replace(found, complete=complete))
        if not found.survivors and group is None:
            continue
        rounds, empty = rounds + 1, 0
        seen: set[tuple[int, int]] = set()
        for _ in range(50):  # until stopping finds nobody new: everyone is still, and the list is whole
            fresh = [s for s in found.survivors if (s.pid, s.start_ticks) not in seen]
            if not fresh:
                break
            for survivor in fresh:
                send(survivor, signal.SIGSTOP)
                seen.add((survivor.pid, survivor.start_ticks))
            found = census(job, attempt, identity)
        for survivor in found.survivors:
            send(survivor, signal.SIGKILL)
            killed.setdefault(survivor.pid, survivor)
        if group is not None:
            _strike(group)
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.25)


def _strike(group: Path) -> None:
    """SIGKILL to everybody in a cgroup at one stroke: through it, or while it is frozen and nobody in it can fork."""
    _write(group / "cgroup.kill", "1")
    for state in ("FROZEN", "FROZEN", "THAWED") if (group / "freezer.state").exists() else ():
        for pid in filter(None, cgroup_pids(group) or ()):  # 0 stands for one that cannot be seen from here
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for folder in _groups(group):
            _write(folder / "freezer.state", state)


def cgroup_pids(group: Path) -> list[int] | None:
    """The processes in a cgroup and those below it; None where the group cannot be read (or is gone)."""
    pids: list[int] = []
    try:
        for folder in _groups(group):
            pids += [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return None
    return pids


def _groups(group: Path) -> list[Path]:
    """A cgroup and those below it."""
    return [Path(folder) for folder, *_ in os.walk(group)] or [group]


def _write(path: Path, text: str) -> None:
    """Writes to a file of a cgroup, where it is there and we may: they are signalled one by one as well."""
    with contextlib.suppress(OSError), path.open("r+") as file:
        file.write(text)


def remove_cgroup(group: Path) -> bool:
    """Removes an empty cgroup and the groups below it. False where one stays (it is not empty, or not ours)."""
    try:
        for folder in reversed(_groups(group)):
            folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def end_group(group: Path) -> bool:
    """Ends who is in a cgroup, as far as that can be done from here, and removes it. Only True proves something: that
    nobody was left in it. A group that is not there proves nothing, it may be out of sight."""
    _strike(group)
    return group.is_dir() and remove_cgroup(group)


def _bears(mark: int, pid: int) -> bool:
    """Whether a process bears a mark, or one out of its range: that of a supervisor which itself ran inside the job.

    The mark is the hard limit on file locks in /proc/PID/limits, which everybody may read.
    """
    try:
        text = Path(f"/proc/{pid}/limits").read_bytes()
    except OSError:
        return False  # it ended
    words = next((line.split() for line in text.splitlines() if line.startswith(b"Max file locks")), [])
    if len(words) < 5 or not words[4].isdigit():
        return False
    return same_mark(mark, int(words[4]))


def _mark_session(leader: int, leader_ticks: int | None, table: dict[int, _Stat], signs: dict[int, Sign]) -> None:
    """The leader and its session, whose number is the leader's pid and is not reused while anyone is in it."""
    now = table.get(leader)
    if now is not None and now.start != leader_ticks:
        return  # the number has passed on to another process: the session is empty, or not the job's
    for p in table.values():
        if p.session == leader:
            signs.setdefault(p.pid, "leader" if p.pid == leader else "session")


def _mark_descent(table: dict[int, _Stat], signs: dict[int, Sign]) -> None:
    children: dict[int, list[int]] = {}
    for p in table.values():
        children.setdefault(p.ppid, []).append(p.pid)
    queue = list(signs)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in signs:
                signs[child] = "descent"
                queue.append(child)


def send(survivor: Survivor, number: signal.Signals) -> None:
    """Signals that very process. One that ended, or that may not be signalled, shows in the next census."""
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(survivor.pid)
        try:
            now = _stat(survivor.pid)
            if now is not None and now.start == survivor.start_ticks:
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def lives(fields: Sequence[bytes]) -> bool:
    """Whether a process lives, by what follows its name in /proc/PID/stat. A zombie that has threads does: only its
    first one ended."""
    return fields[0] not in (b"Z", b"X") or int(fields[17]) > 1


def _pids() -> Iterable[int]:
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None  # it ended; nothing else makes this file unreadable to anyone who sees the process
    name, _, rest = text.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    alive = lives(fields)
    if name == _INIT and int(fields[6]) & _PF_EXITING:
        alive = False  # it never had anything open, and waits for others to be collected, perhaps by a lazy pid 1
    return _Stat(pid, name.decode(errors="replace"), alive, int(fields[1]), int(fields[3]), int(fields[19]))
