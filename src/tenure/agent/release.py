"""The proof that a device is empty of an attempt, or what is left there, named.

The tree comes first: only the supervisor's exit record (or a scan that found no survivor) says that nothing of the
job's runs. A CPU device needs no more. On a GPU the driver has to agree: no pid of the job in any process list, and
memory back at rest. A driver takes a moment to give memory back, so what is left counts as ``dirty`` only after a
settling time; until then nothing is said, and the device stays in ``ending``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from dataclasses import dataclass

from tenure.agent.baseline import NOT_THERE, SLACK_BYTES
from tenure.agent.watch import by_list_alone, could_not_look, describe_process, listed, name_process, rests
from tenure.domain.device import Condition
from tenure.domain.reading import Reading, Reason, Unavailable, Value
from tenure.domain.use_instant import mib
from tenure.probes.nvml_records import DeviceSample


@dataclass(frozen=True, slots=True)
class Traces:
    """What is known of the attempt: every pid its tree was ever seen to have, and those of strays that ended."""

    pids: frozenset[int] = frozenset()


def of_cpu(tree_proof: str) -> Condition:
    """A CPU device is empty when the tree is."""
    return Condition("clear", tree_proof)


def of_gpu(
    sample: DeviceSample,
    baseline: Reading[int],
    traces: Traces,
    *,
    here: Container[int],
    tree_proof: str,
    settled: bool,
    sees_all: bool,
    resting: Collection[str] = (),
    describe: Callable[[int], tuple[str, str]] = describe_process,
) -> Condition | None:
    """What one sample of a GPU proves, or None while the driver may still be giving back what was the job's.

    ``here`` holds the pids that exist in this PID namespace now; ``settled`` says that the settling time is over,
    ``sees_all`` that the driver's lists show the processes of the whole machine.
    """
    processes = listed(sample)
    if isinstance(processes, Unavailable) and processes.reason not in NOT_THERE:
        return could_not_look(processes) if settled else None
    on_it = processes.value if isinstance(processes, Value) else ()
    gone = [p for p in on_it if p.pid not in here]  # those of the job are: a living pid is somebody else's
    if gone:
        # An entry of a process that just ended, or one of a namespace that we cannot see into: a number is no process.
        pids = ", ".join(str(p.pid) for p in gone[:8])
        of_job = all(p.pid in traces.pids for p in gone)
        if not settled:
            return None
        if of_job:
            return Condition("dirty", f"the driver still lists pid {pids} of this job, which no longer exists", ())
        return Condition("unknown", f"{Reason.FOREIGN_NAMESPACE}: pid {pids} is listed and not to be found here")
    others = [(p, *describe(p.pid)) for p in on_it]
    foreign = [(p, user, command) for p, user, command in others if not rests(command, resting)]
    if foreign:
        by = tuple(name_process(p.pid, user, command) for p, user, command in foreign)
        return Condition("occupied", "; ".join(by[:8]), by[:8])
    lists, memory = isinstance(processes, Value), sample.memory_used
    if isinstance(memory, Unavailable):
        found = by_list_alone(memory, sees_all) if lists else could_not_look(memory)
        if found.outcome == "clear":
            return Condition("clear", f"{tree_proof}; {found.detail}")
        return found if settled else None
    return _by_memory(memory, baseline, lists, tree_proof, settled)


def _by_memory(
    memory: Value[int], baseline: Reading[int], lists: bool, tree_proof: str, settled: bool
) -> Condition | None:
    if memory.value == 0 and lists:
        return Condition("clear", f"{tree_proof}; no process listed, no memory used")
    if isinstance(baseline, Unavailable):
        why = f"{mib(memory.value)} used and {baseline.reason}: {baseline.detail}"
        return Condition("unknown", why) if settled else None
    excess = memory.value - baseline.value
    if excess <= SLACK_BYTES:
        said = "no process listed" if lists else "processes not listed"
        return Condition("clear", f"{tree_proof}; {said}, memory at rest")
    if not settled:
        return None
    return Condition("dirty", f"{mib(excess)} left above the resting baseline of {mib(baseline.value)}, nobody listed")
