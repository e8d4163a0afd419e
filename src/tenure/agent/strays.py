"""Processes that somebody else runs for a job: a daemon that the job asked started them, so they are in no tree of its.

A container's daemon, a job server, a scheduler: their child is nobody's descendant of ours, bears no mark and sits in
no group of the job's. What gives it away is a label:

    environment  RC_JOB_ID of the job, and of its other variables (attempt, lease, scratch) none that says otherwise
    cgroup       a group whose name is that of the job's (``tenure-JOB.ATTEMPT``), such as a container's put under it
    descent      a child of any of these

They are part of the job: its end is theirs, by SIGTERM and, a moment later, SIGKILL. One that does not end keeps the
job's devices ``dirty``, by name. What carries no label is not the job's as far as anybody can tell: on a leased GPU it
is seen all the same, and the device is ``occupied`` by it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tenure.agent import survivors
from tenure.agent.survivors import Sign, Survivor

#: In seconds: how long they have after SIGTERM, how long after that before who is left is named, and how long nobody
#: may have come after the last one for all of them to be gone.
TERM_S, KILL_S, QUIET_S = 0.5, 1.0, 0.3
_PAUSE_S = 0.01
_ENVIRON_BYTES = 1 << 17


@dataclass(frozen=True, slots=True)
class Label:
    """What a process of one attempt carries. ``since``: its start in clock ticks since boot, 0 where it is not known;
    whoever began before is passed over. ``own``: the variables by which another attempt's process is told apart."""

    job: str
    attempt: int
    since: int
    own: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ended:
    """``gone``: those that were found and are no more. ``left``: those that SIGKILL did not end."""

    gone: tuple[Survivor, ...] = ()
    left: tuple[Survivor, ...] = ()


def label_of(job: str, attempt: int, folder: Path, leases: str) -> Label:
    """The label of the attempt in that folder; ``leases`` as in its RC_LEASE_ID."""
    own = {"RC_ATTEMPT": str(attempt), "RC_SCRATCH": str(folder / "scratch"), "RC_LEASE_ID": leases}
    try:
        since = int(json.loads((folder / "supervisor.json").read_bytes())["leader_start_ticks"])
    except (OSError, ValueError, KeyError, TypeError):
        since = 0
    return Label(job, attempt, since, own)


def find(label: Label) -> tuple[Survivor, ...]:
    """Looks once, at every process that is young enough: some 5 us for each that is not, blocking."""
    young: dict[int, tuple[int, int, str]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - after every job, and half the cost of pathlib
        if name.isdigit() and (seen := _begun(name, label.since)) is not None:
            young[int(name)] = seen
    signs: dict[int, Sign] = {}
    for pid in young:
        if pid != os.getpid() and (sign := _sign(pid, label)) is not None:
            signs[pid] = sign
    while signs and (more := {pid for pid, seen in young.items() if pid not in signs and seen[1] in signs}):
        signs.update(dict.fromkeys(more, "descent"))
    return tuple(Survivor(pid, young[pid][0], young[pid][2], sign) for pid, sign in sorted(signs.items()))


def end(label: Label) -> Ended:
    """Ends all there are, and those that come meanwhile: a daemon may start its worker again. Blocks, where there are
    any, until nobody came for ``QUIET_S``, or for ``TERM_S`` + ``KILL_S``."""
    gone: dict[tuple[int, int], Survivor] = {}
    told: set[tuple[int, int, int]] = set()
    began = seen_at = time.monotonic()
    left = find(label)
    while left or gone:
        now = time.monotonic()
        if left:
            seen_at = now
        if now - seen_at >= QUIET_S or now - began >= TERM_S + KILL_S:
            break
        number = signal.SIGTERM if now - began < TERM_S else signal.SIGKILL
        for stray in left:
            gone[stray.pid, stray.start_ticks] = stray
            if (stray.pid, stray.start_ticks, number) not in told:
                told.add((stray.pid, stray.start_ticks, number))
                survivors.send(stray, number)
                survivors.send(stray, signal.SIGCONT)  # a stopped one would not see SIGTERM without it
        time.sleep(_PAUSE_S)
        left = find(label)
    for stray in left:
        gone.pop((stray.pid, stray.start_ticks), None)
    return Ended(tuple(gone.values()), left)


def names_of(strays: tuple[Survivor, ...]) -> tuple[str, ...]:
    """As people read them, the first few."""
    return tuple(f"pid {stray.pid} ({stray.name})" for stray in strays[:8])


def _begun(pid: str, since: int) -> tuple[int, int, str] | None:
    """(start ticks, parent, name) of a living process that did not begin before; None for any other."""
    text = _read(f"/proc/{pid}/stat", 1024)
    name, _, rest = text.partition(b"(")[2].rpartition(b")")
    fields = rest.split(None, 20)
    if len(fields) < 20 or int(fields[19]) < since or not survivors.lives(fields):
        return None
    return int(fields[19]), int(fields[1]), name.decode(errors="replace")


def _sign(pid: int, label: Label) -> Sign | None:
    variables = _read(f"/proc/{pid}/environ", _ENVIRON_BYTES).split(b"\0")
    if f"RC_JOB_ID={label.job}".encode() in variables:
        told = dict(v.decode(errors="replace").partition("=")[::2] for v in variables)
        if all(told.get(name, value) == value for name, value in label.own.items()):
            return "environment"
    group = f"/tenure-{label.job}.{label.attempt}".encode()
    lines = _read(f"/proc/{pid}/cgroup", 1 << 14).splitlines()
    return "cgroup" if any(line.endswith(group) or group + b"/" in line for line in lines) else None


def _read(path: str, count: int) -> bytes:
    """The beginning of a file in /proc; empty where it cannot be read: the process ended, or is another user's."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, count)
    except OSError:
        return b""
    finally:
        os.close(fd)
