"""What is seen on a device beside its lease: nobody, somebody (with pid, user and command), or no sight at all.

An unleased device with anybody on it, or with memory above its resting baseline, is occupied. On a leased one the
job's own processes are left out and its memory says nothing, so only listed others count: contention. A device that
could not be looked at is unknown, with the reason, never clear.
"""

from __future__ import annotations

import pwd
from collections.abc import Callable, Collection, Container
from pathlib import Path

from tenure.agent.baseline import SLACK_BYTES, mib
from tenure.domain.device import Condition
from tenure.domain.reading import Reading, Reason, Unavailable, Value
from tenure.probes.nvml_records import DeviceSample, GpuProcess

#: A list that this driver does not have is not missed; any other failure of a list means that nobody could look.
_NOT_THERE = frozenset({Reason.NOT_SUPPORTED, Reason.FUNCTION_MISSING})
_NAMED = 8
_COMMAND_CHARS = 80


def listed(sample: DeviceSample) -> Reading[tuple[GpuProcess, ...]]:
    """Every process on a device, compute, MPS and graphics lists together; unavailable where one of them failed."""
    found: dict[int, GpuProcess] = {}
    for reading in (sample.compute, sample.mps, sample.graphics):
        if isinstance(reading, Value):
            for process in reading.value:
                found.setdefault(process.pid, process)
        elif reading is sample.compute or reading.reason not in _NOT_THERE:
            return reading
    return Value(tuple(found.values()), sample.compute.at, sample.compute.instrument, sample.compute.scope)


def look(
    sample: DeviceSample,
    baseline: Reading[int],
    *,
    resting: Collection[str] = (),
    describe: Callable[[int], tuple[str, str]] | None = None,
) -> Condition:
    """The condition of an unleased device. ``resting``: commands that always sit there."""
    processes = listed(sample)
    if isinstance(processes, Unavailable) and processes.reason not in _NOT_THERE:
        return _unknown(processes)
    pids = [p.pid for p in processes.value] if isinstance(processes, Value) else []
    return _occupied(pids, resting, describe) or _by_memory(sample.memory_used, baseline, processes)


def look_beside(
    sample: DeviceSample,
    own: Collection[int],
    here: Container[int],
    *,
    resting: Collection[str] = (),
    describe: Callable[[int], tuple[str, str]] | None = None,
) -> Condition:
    """Who is on a leased device beside the lease: those listed that are not the job's (``own``) and exist ``here``.

    A pid that is not to be found here is nobody known: it may be another namespace's number of the job itself.
    """
    processes = listed(sample)
    if isinstance(processes, Unavailable):
        return _unknown(processes)
    others = [p.pid for p in processes.value if p.pid not in own]
    found = _occupied([pid for pid in others if pid in here], resting, describe)
    if found is not None:
        return found
    if any(pid not in here for pid in others):
        return Condition("unknown", f"{Reason.FOREIGN_NAMESPACE}: a listed pid is not to be found here")
    return Condition("clear", "nobody else is listed")


def _occupied(
    pids: Collection[int], resting: Collection[str], describe: Callable[[int], tuple[str, str]] | None
) -> Condition | None:
    told = [(pid, *(describe or describe_process)(pid)) for pid in sorted(pids)]
    others = tuple(name_process(pid, user, command) for pid, user, command in told if not _rests(command, resting))
    if not others:
        return None
    many = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return Condition("occupied", "; ".join(others[:_NAMED]) + many, others[:_NAMED])


def _by_memory(memory: Reading[int], baseline: Reading[int], processes: Reading[tuple[GpuProcess, ...]]) -> Condition:
    seen = isinstance(processes, Value)
    if isinstance(memory, Unavailable):
        # Unified memory reads [N/A] for ever: there the list alone has to do, and it answered.
        return (
            Condition("clear", "no process listed; memory does not read here")
            if seen and (memory.reason in _NOT_THERE)
            else _unknown(memory)
        )
    if memory.value == 0 and seen:
        return Condition("clear", "no process listed, no memory used")
    if isinstance(baseline, Unavailable):
        return Condition("unknown", f"{mib(memory.value)} used and nobody listed: {baseline.reason}: {baseline.detail}")
    excess = memory.value - baseline.value
    if excess > SLACK_BYTES:
        detail = f"{mib(excess)} above the resting baseline of {mib(baseline.value)}, held by no process visible here"
        return Condition("occupied", detail, ("not visible from here",))
    return Condition("clear", "no process listed, memory at rest" if seen else "memory at rest; processes not listed")


def _unknown(why: Unavailable) -> Condition:
    # Without what changes from look to look: a report goes out only when something changed.
    return Condition("unknown", f"could not look: {why.reason} ({why.instrument})")


def _rests(command: str, resting: Collection[str]) -> bool:
    if not command:
        return False
    program = command.split(" ")[0]
    return program in resting or program.rsplit("/", 1)[-1] in resting


def name_process(pid: int, user: str, command: str) -> str:
    """``pid 4242 (ann): python train.py``; says so where a process is not visible from here."""
    if not user and not command:
        return f"pid {pid} (not visible from here)"
    return f"pid {pid} ({user or 'user not known'}): {command or 'command not known'}"


def describe_process(pid: int, proc: Path = Path("/proc")) -> tuple[str, str]:
    """(user, command) of a process, each empty where it cannot be seen. Reads no memory of a process that could hang:
    the command is the name in its stat file unless the command line is at hand."""
    folder = proc / str(pid)
    try:
        uid = folder.stat().st_uid
        command = (folder / "comm").read_text(errors="replace").strip()
    except OSError:
        return "", ""
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = f"uid {uid}"
    return user, command[:_COMMAND_CHARS]


#: A CPU device: there is no context to look for, so nobody can be on it but the holder of its claim.
CPU_CLEAR = Condition("clear", "claimed by this agent")
