"""What is seen on a device beside its lease: nobody, somebody (with pid, user and command), or no sight at all.

An unleased device with anybody on it, or with memory above its resting baseline, is occupied. On a leased one the
job's own processes are left out and its memory says nothing, so only listed others count: contention. A device that
could not be looked at is unknown, with the reason, never clear.

An empty list proves that nobody is there only where the driver lists the whole machine (``sees_all``). In another PID
namespace than the initial one it may leave out whoever is not in it; there memory has to say it, and where memory does
not read either (unified memory), nothing does.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Callable, Collection, Container
from pathlib import Path

from tenure.agent.baseline import NOT_THERE, SLACK_BYTES
from tenure.domain.device import Condition
from tenure.domain.reading import Reading, Reason, Unavailable, Value
from tenure.domain.use_instant import mib
from tenure.probes.nvml_records import DeviceSample, GpuProcess

_NAMED = 8
_COMMAND_CHARS = 80
#: NVML's GPU_IS_LOST and RESET_REQUIRED. Its other codes may mean a driver that is being unloaded, or asked too early.
_BROKEN = re.compile(r"\((?:15|16)\)$")


def sees_all(sample: DeviceSample, initial_namespace: bool | None) -> bool:
    """Whether the driver's lists show the processes of the whole machine: certain in the initial PID namespace, and of
    a simulated driver, which knows of no namespaces."""
    return sample.simulated or initial_namespace is True


def listed(sample: DeviceSample) -> Reading[tuple[GpuProcess, ...]]:
    """Every process on a device, compute, MPS and graphics lists together; unavailable where one of them failed."""
    found: dict[int, GpuProcess] = {}
    for reading in (sample.compute, sample.mps, sample.graphics):
        if isinstance(reading, Value):
            for process in reading.value:
                found.setdefault(process.pid, process)
        elif reading is sample.compute or reading.reason not in NOT_THERE:
            return reading
    return Value(tuple(found.values()), sample.compute.at, sample.compute.instrument, sample.compute.scope)


def look(
    sample: DeviceSample,
    baseline: Reading[int],
    *,
    sees_all: bool,
    resting: Collection[str] = (),
    describe: Callable[[int], tuple[str, str]] | None = None,
) -> Condition:
    """The condition of an unleased device. ``sees_all``: see above; ``resting``: commands that always sit there."""
    processes = listed(sample)
    if isinstance(processes, Unavailable) and processes.reason not in NOT_THERE:
        return could_not_look(processes)
    pids = [p.pid for p in processes.value] if isinstance(processes, Value) else []
    found = occupied_by(pids, resting, describe)
    return found or _by_memory(sample.memory_used, baseline, lists=isinstance(processes, Value), sees_all=sees_all)


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
        return could_not_look(processes)
    others = [p.pid for p in processes.value if p.pid not in own]
    found = occupied_by([pid for pid in others if pid in here], resting, describe)
    if found is not None:
        return found
    if any(pid not in here for pid in others):
        return Condition("unknown", f"{Reason.FOREIGN_NAMESPACE}: a listed pid is not to be found here")
    return Condition("clear", "nobody else is listed")


def occupied_by(
    pids: Collection[int], resting: Collection[str], describe: Callable[[int], tuple[str, str]] | None
) -> Condition | None:
    """Somebody, by name, unless all of them rest there; None for nobody."""
    told = [(pid, *(describe or describe_process)(pid)) for pid in sorted(pids)]
    others = tuple(name_process(pid, user, command) for pid, user, command in told if not rests(command, resting))
    if not others:
        return None
    many = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return Condition("occupied", "; ".join(others[:_NAMED]) + many, others[:_NAMED])


def _by_memory(memory: Reading[int], baseline: Reading[int], *, lists: bool, sees_all: bool) -> Condition:
    if isinstance(memory, Unavailable):
        return by_list_alone(memory, sees_all) if lists else could_not_look(memory)
    if memory.value == 0 and lists:
        return Condition("clear", "no process listed, no memory used")
    if isinstance(baseline, Unavailable):
        return Condition("unknown", f"{mib(memory.value)} used and nobody listed: {baseline.reason}: {baseline.detail}")
    excess = memory.value - baseline.value
    if excess > SLACK_BYTES:
        detail = f"{mib(excess)} above the resting baseline of {mib(baseline.value)}, held by no process visible here"
        return Condition("occupied", detail, ("not visible from here",))
    return Condition("clear", "no process listed, memory at rest" if lists else "memory at rest; processes not listed")


def by_list_alone(memory: Unavailable, sees_all: bool) -> Condition:
    """What an empty list says where memory does not read: unified memory never does, and then the list has to do."""
    if memory.reason not in NOT_THERE:
        return could_not_look(memory)
    if not sees_all:
        why = "memory does not read here, and a list in this PID namespace need not show everybody on the device"
        return Condition("unknown", f"{Reason.FOREIGN_NAMESPACE}: {why}")
    return Condition("clear", "no process listed; memory does not read here")


def could_not_look(why: Unavailable) -> Condition:
    """Unknown, because an instrument did not answer; a fault where the driver said that the device is broken."""
    # Without what changes from look to look: a report goes out only when something changed.
    if why.reason is Reason.GPU_LOST and _BROKEN.search(why.detail):
        return Condition("fault", f"{why.reason}: {why.detail} ({why.instrument})")
    return Condition("unknown", f"could not look: {why.reason} ({why.instrument})")


def rests(command: str, resting: Collection[str]) -> bool:
    """Whether a process was declared as one that always sits on the device: by its program, with or without path."""
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
