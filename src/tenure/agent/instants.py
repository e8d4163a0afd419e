"""One instant as the fold takes it: NVML's answers and /proc's, sorted into the job's, others' and not to be told."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from tenure.agent.watch import describe_process, listed, rests
from tenure.domain import use
from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.probes import nvml_records, proc
from tenure.probes.nvml_parse import attribute

_OWN_UTILISATION = "nvml.nvmlDeviceGetProcessUtilization"


def cpu_of(tree: Sequence[proc.ProcEntry]) -> Reading[float]:
    """CPU-seconds of the tree since its start, ended processes included."""
    at = time.monotonic()
    if not tree:
        return Unavailable(Reason.SAMPLING_GAP, at, "proc.stat", Scope.PROCESS, "the tree is gone")
    # The supervisor is the subreaper: what nobody waited for is in its own account, so the sum never falls.
    return Value(proc.cpu_seconds(tree), at, "proc.stat", Scope.PROCESS)


def convert(
    device: str,
    sample: nvml_records.DeviceSample,
    own: Iterable[int],
    here: set[int],
    *,
    handles: Reading[use.Handles] | None,
    cpu: Reading[float],
    same_namespace: bool,
    resting: Sequence[str] = (),
) -> use.DeviceSample:
    """An NVML sample as the fold takes it: its processes sorted into the job's, others' and those not to be found."""
    mine = frozenset(own)
    at, utilisation = sample.at, sample.utilisation
    return use.DeviceSample(
        device=device,
        at=at,
        memory_used=sample.memory_used,
        utilisation=Value(float(utilisation.value), utilisation.at, utilisation.instrument, Scope.DEVICE)
        if isinstance(utilisation, Value)
        else utilisation,
        processes=_processes(sample, mine, here, same_namespace, resting),
        own_utilisation=_own_utilisation(sample, mine),
        handles=handles,
        accounting=_accounting(sample, mine),
        cpu_s=cpu,
    )


def _processes(
    sample: nvml_records.DeviceSample, own: frozenset[int], here: set[int], same: bool, resting: Sequence[str]
) -> Reading[use.Processes]:
    everyone = listed(sample)
    if isinstance(everyone, Unavailable):
        return everyone
    # A context of the job's is one in the compute or MPS list; its graphics contexts prove no compute work.
    compute = {p.pid for r in (sample.compute, sample.mps) if isinstance(r, Value) for p in r.value}
    shown = Value(
        tuple(p for p in everyone.value if p.pid in compute or p.pid not in own),
        everyone.at,
        everyone.instrument,
        everyone.scope,
    )
    sorted_ = attribute(shown, own, here, same_namespace=same)
    if isinstance(sorted_, Unavailable):
        return sorted_
    a = sorted_.value
    groups = [tuple(_describe(p, resting) for p in group) for group in (a.own, a.foreign, a.unresolvable)]
    return Value(use.Processes(*groups), shown.at, shown.instrument, Scope.PROCESS)


def _describe(process: nvml_records.GpuProcess, resting: Sequence[str]) -> use.ListedProcess:
    user, command = describe_process(process.pid)
    memory = process.memory.value if isinstance(process.memory, Value) else None
    return use.ListedProcess(process.pid, user or None, command or None, memory, rests(command, resting))


def _own_utilisation(sample: nvml_records.DeviceSample, own: frozenset[int]) -> Reading[float]:
    told = sample.process_utilisation
    if isinstance(told, Unavailable):
        return told
    entries = [entry.sm for entry in told.value if entry.pid in own]
    values = [sm.value for sm in entries if isinstance(sm, Value)]
    if not values:
        first = next((sm for sm in entries if isinstance(sm, Unavailable)), None)
        if first is not None:
            return first
        detail = "the driver has no entry for the job's processes"
        return Unavailable(Reason.SAMPLING_GAP, told.at, _OWN_UTILISATION, Scope.PROCESS, detail)
    return Value(float(max(values)), told.at, _OWN_UTILISATION, Scope.PROCESS)


def _accounting(sample: nvml_records.DeviceSample, own: frozenset[int]) -> Reading[use.Accounting] | None:
    if isinstance(sample.accounting, Unavailable):
        return sample.accounting if sample.accounting.reason is not Reason.NOT_SUPPORTED else None
    records = [record for record in sample.accounting.value if record.pid in own]
    figures = [r.gpu_utilisation.value for r in records if isinstance(r.gpu_utilisation, Value)]
    told = use.Accounting(
        # Only the pids that were seen at some instant are asked for, so a process between two looks may be missing.
        whole_life=False,
        contexts=len(records),
        running=sum(record.running for record in records),
        utilisation=float(max(figures)) if figures else None,
    )
    return Value(told, sample.at, "nvml.accounting", Scope.PROCESS)


def gather_handles(found: Mapping[int, Reading[proc.Handles] | proc.Vanished], at: float) -> Reading[use.Handles]:
    """The open files of a whole tree as one reading: unavailable where any living process could not be read."""
    opened: set[str] = set()
    count = 0
    for reading in found.values():
        if isinstance(reading, proc.Vanished):
            continue
        if isinstance(reading, Unavailable):
            return reading
        count += 1
        if reading.value.compute_capable:
            opened.update((*reading.value.device_files, *reading.value.libraries))
    return Value(use.Handles(count, tuple(sorted(opened))), at, "proc.handles", Scope.PROCESS)
