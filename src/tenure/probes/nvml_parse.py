"""Turns what the NVML child reported into readings: samples, clocks, inventories, and whose a process list is. Pure.

How one reported call is read is in ``nvml_calls``; here the calls of a device become its records.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.probes.nvml_calls import (
    ALL_ONES_32,
    ALL_ONES_64,
    NOT_FOUND,
    PID_MAX,
    Calls,
    failure,
    first,
    flag,
    number,
    one,
    text,
)
from tenure.probes.nvml_records import (
    AccountingRecord,
    ClockSample,
    DeviceSample,
    GpuProcess,
    LostHandle,
    NvmlDevice,
    NvmlInventory,
    ProcessUtilisation,
)

_EXPECTED = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetAccountingMode",
    "nvmlDeviceGetClockInfo.sm",
    "nvmlDeviceGetClockInfo.memory",
    "nvmlDeviceGetMaxClockInfo.sm",
    "nvmlDeviceGetMaxClockInfo.memory",
    "nvmlDeviceGetApplicationsClock.sm",
    "nvmlDeviceGetApplicationsClock.memory",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPersistenceMode",
)


def memory(calls: Calls, at: float, notes: list[str]) -> tuple[Reading[int], Reading[int]]:
    """(used, total) in bytes. The second version of the call first: the first counts the driver's reserve as used."""
    name, bad = first(calls, ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"), at, notes)
    if bad is not None:
        return bad, bad
    instrument, raw = f"nvml.{name}", calls[name]["v"]
    if not isinstance(raw, Mapping):
        unread = Unavailable(Reason.UNPARSEABLE, at, instrument, Scope.DEVICE, repr(raw)[:100])
        return unread, unread
    total = number(raw.get("total"), at, instrument, low=1)
    used = number(raw.get("used"), at, instrument)
    if isinstance(total, Value) and isinstance(used, Value) and used.value > total.value:
        detail = f"used {used.value} of {total.value}"
        used = Unavailable(Reason.OUT_OF_RANGE, at, instrument, Scope.DEVICE, detail)
    return used, total


def utilisation(calls: Calls, at: float) -> tuple[Reading[int], Reading[int]]:
    """(of the engines, of the memory bus) in percent, of the whole device whoever uses it."""
    name = "nvmlDeviceGetUtilizationRates"
    bad = failure(calls.get(name), at, f"nvml.{name}")
    if bad is not None:
        return bad, bad
    raw = calls[name]["v"] if isinstance(calls[name]["v"], Mapping) else {}
    return (
        number(raw.get("gpu"), at, f"nvml.{name}", high=100),
        number(raw.get("memory"), at, f"nvml.{name}", high=100),
    )


def processes(calls: Calls, base: str, at: float, notes: list[str]) -> Reading[tuple[GpuProcess, ...]]:
    """One process list. A pid that no kernel hands out voids the list: who else is missing then cannot be known."""
    name, bad = first(calls, (f"{base}_v3", f"{base}_v2", base), at, notes)
    if bad is not None:
        return bad
    instrument, raw = f"nvml.{name}", calls[name]["v"]
    if not isinstance(raw, list):
        return Unavailable(Reason.UNPARSEABLE, at, instrument, Scope.DEVICE, repr(raw)[:100])
    found: list[GpuProcess] = []
    for entry in raw:
        if not isinstance(entry, Mapping):
            return Unavailable(Reason.UNPARSEABLE, at, instrument, Scope.DEVICE, repr(entry)[:100])
        pid = number(entry.get("pid"), at, instrument, low=1, high=PID_MAX)
        if isinstance(pid, Unavailable):
            return Unavailable(pid.reason, at, instrument, Scope.DEVICE, f"pid {pid.detail}")
        used: Reading[int]
        if entry.get("memory") is None:  # the driver's documented "not available", which the bindings turn into None
            used = Unavailable(Reason.NOT_SUPPORTED, at, instrument, Scope.PROCESS, "not available for this process")
        else:
            used = number(entry["memory"], at, instrument, scope=Scope.PROCESS)
        found.append(GpuProcess(pid.value, used, _instance(entry.get("gi")), _instance(entry.get("ci"))))
    return Value(tuple(found), at, instrument, Scope.DEVICE)


def _instance(raw: Any) -> int | None:
    return raw if isinstance(raw, int) and raw != ALL_ONES_32 else None


def process_utilisation(calls: Calls, at: float) -> Reading[tuple[ProcessUtilisation, ...]]:
    """Per process, the highest figure since the sample before. NOT_FOUND is the driver's way to say "no samples"."""
    name = "nvmlDeviceGetProcessUtilization"
    instrument, call = f"nvml.{name}", calls.get(name)
    if isinstance(call, Mapping) and call.get("e") == NOT_FOUND:
        return Value((), at, instrument, Scope.DEVICE)
    bad = failure(call, at, instrument)
    if bad is not None:
        return bad
    raw = calls[name]["v"]
    if not isinstance(raw, list) or not all(isinstance(entry, Mapping) for entry in raw):
        return Unavailable(Reason.UNPARSEABLE, at, instrument, Scope.DEVICE, repr(raw)[:100])
    by_pid: dict[int, list[Mapping[str, Any]]] = {}
    for entry in raw:
        if entry.get("pid") == 0 and entry.get("at") == 0:
            continue  # a slot of the driver's ring buffer that was never filled
        pid = number(entry.get("pid"), at, instrument, low=1, high=PID_MAX)
        if isinstance(pid, Unavailable):
            return Unavailable(pid.reason, at, instrument, Scope.DEVICE, f"pid {pid.detail}")
        by_pid.setdefault(pid.value, []).append(entry)
    return Value(
        tuple(
            ProcessUtilisation(
                pid,
                _highest((e.get("sm") for e in entries), at, instrument),
                _highest((e.get("memory") for e in entries), at, instrument),
                len(entries),
            )
            for pid, entries in sorted(by_pid.items())
        ),
        at,
        instrument,
        Scope.DEVICE,
    )


def _highest(raws: Iterable[Any], at: float, instrument: str) -> Reading[int]:
    """One figure out of range voids the maximum only where nothing above zero was read: work seen stays seen."""
    readings = [number(raw, at, instrument, high=100, scope=Scope.PROCESS) for raw in raws]
    values = [r for r in readings if isinstance(r, Value)]
    best = max(values, key=lambda r: r.value, default=None)
    bad = next((r for r in readings if isinstance(r, Unavailable)), None)
    if best is not None and (bad is None or best.value > 0):
        return best
    return bad if bad is not None else Unavailable(Reason.SAMPLING_GAP, at, instrument, Scope.PROCESS, "no samples")


def accounting(calls: Calls, at: float) -> tuple[Reading[bool], Reading[tuple[AccountingRecord, ...]]]:
    """(is accounting on, the records of the processes that were asked for and are on the driver's books)."""
    name = "nvmlDeviceGetAccountingStats"
    instrument = f"nvml.{name}"
    on = flag(calls, "nvmlDeviceGetAccountingMode", at)
    if isinstance(on, Unavailable):
        return on, on
    if not on.value:
        return on, Unavailable(Reason.NOT_SUPPORTED, at, instrument, Scope.DEVICE, "accounting mode is off")
    bad = failure(calls.get(name), at, instrument)
    if bad is not None:
        return on, bad
    records: list[AccountingRecord] = []
    entries = calls[name]["v"]
    if not isinstance(entries, list):
        return on, Unavailable(Reason.UNPARSEABLE, at, instrument, Scope.DEVICE, repr(entries)[:100])
    scope = Scope.PROCESS
    for entry in entries:
        bad = failure(entry, at, instrument)
        if bad is not None:
            return on, bad
        raw = entry["v"]
        if not isinstance(raw, Mapping) or not isinstance(raw.get("pid"), int):
            return on, Unavailable(Reason.UNPARSEABLE, at, instrument, scope, repr(raw)[:100])
        records.append(
            AccountingRecord(
                pid=raw["pid"],
                running=bool(raw.get("running")),
                gpu_utilisation=number(raw.get("gpu"), at, instrument, high=100, scope=scope),
                memory_utilisation=number(raw.get("memory"), at, instrument, high=100, scope=scope),
                max_memory=number(raw.get("max_memory"), at, instrument, scope=scope),
                time_ms=number(raw.get("time"), at, instrument, scope=scope),
            )
        )
    return on, Value(tuple(records), at, instrument, Scope.DEVICE)


def clocks(calls: Calls, at: float, notes: list[str]) -> ClockSample:
    """The clock record of one instant. Both spellings of the throttle call are read, the newer one first."""
    event, bad = first(
        calls, ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"), at, notes
    )
    return ClockSample(
        sm=one(calls, "nvmlDeviceGetClockInfo.sm", at, high=20_000),
        memory=one(calls, "nvmlDeviceGetClockInfo.memory", at, high=50_000),
        max_sm=one(calls, "nvmlDeviceGetMaxClockInfo.sm", at, high=20_000),
        max_memory=one(calls, "nvmlDeviceGetMaxClockInfo.memory", at, high=50_000),
        application_sm=one(calls, "nvmlDeviceGetApplicationsClock.sm", at, high=20_000),
        application_memory=one(calls, "nvmlDeviceGetApplicationsClock.memory", at, high=50_000),
        throttle_bits=bad if bad is not None else one(calls, event, at, high=ALL_ONES_64 - 1),
        performance_state=one(calls, "nvmlDeviceGetPerformanceState", at, high=15),
        temperature=one(calls, "nvmlDeviceGetTemperature", at, low=-60, high=250),
        power=one(calls, "nvmlDeviceGetPowerUsage", at, high=10_000_000),
        power_limit=one(calls, "nvmlDeviceGetEnforcedPowerLimit", at, high=10_000_000),
        persistence=flag(calls, "nvmlDeviceGetPersistenceMode", at),
    )


def device_sample(
    uuid: str, calls: Calls, at: float, *, simulated: bool = False, missing: Unavailable | None = None
) -> DeviceSample:
    """All readings of one device out of the calls that its child reported; ``missing``: why others are not there."""
    if missing is not None:
        calls = {**{name: {"u": missing} for name in _EXPECTED}, **calls}
    lost = failure(calls["handle"], at, "nvml.nvmlDeviceGetHandleByUUID", handle=True) if "handle" in calls else None
    if lost is not None:
        return unavailable_sample(uuid, lost, simulated=simulated)
    notes: list[str] = []
    used, total = memory(calls, at, notes)
    engines, bus = utilisation(calls, at)
    accounting_on, books = accounting(calls, at)
    return DeviceSample(
        uuid=uuid,
        at=at,
        simulated=simulated,
        memory_used=used,
        memory_total=total,
        utilisation=engines,
        memory_utilisation=bus,
        compute=processes(calls, "nvmlDeviceGetComputeRunningProcesses", at, notes),
        graphics=processes(calls, "nvmlDeviceGetGraphicsRunningProcesses", at, notes),
        mps=processes(calls, "nvmlDeviceGetMPSComputeRunningProcesses", at, notes),
        process_utilisation=process_utilisation(calls, at),
        accounting_on=accounting_on,
        accounting=books,
        clocks=clocks(calls, at, notes),
        fallbacks=tuple(notes),
    )


def unavailable_sample(uuid: str, why: Unavailable, *, simulated: bool = False) -> DeviceSample:
    """A sample of a device that could not be asked at all: every figure is unavailable for that one reason."""
    held = ClockSample(why, why, why, why, why, why, why, why, why, why, why, why)
    return DeviceSample(uuid, why.at, simulated, why, why, why, why, why, why, why, why, why, why, held)


def inventory(reply: Mapping[str, Any], at: float, *, library: str, simulated: bool) -> NvmlInventory:
    """The inventory out of the child's reply. A device without a readable UUID is a lost handle, never a device."""
    system = reply.get("system", {})
    found: list[NvmlDevice] = []
    lost: list[LostHandle] = []
    for entry in reply.get("devices", []):
        calls: Calls = entry.get("calls", {})
        index = int(entry.get("index", -1))
        bad = failure(calls.get("handle"), at, "nvml.nvmlDeviceGetHandleByIndex", handle=True)
        uuid = text(calls, "nvmlDeviceGetUUID", at) if bad is None else bad
        if isinstance(uuid, Unavailable):
            lost.append(LostHandle(index, uuid))
            continue
        _, total = memory(calls, at, [])
        mig = one(calls, "nvmlDeviceGetMigMode", at, high=1)
        found.append(
            NvmlDevice(
                uuid=uuid.value,
                index=index,
                mig_parent=entry.get("mig_parent"),
                mig_enabled=isinstance(mig, Value) and mig.value == 1,
                name=text(calls, "nvmlDeviceGetName", at),
                pci=text(calls, "nvmlDeviceGetPciInfo", at),
                minor=one(calls, "nvmlDeviceGetMinorNumber", at, high=ALL_ONES_32 - 1),
                memory_total=total,
                capability=text(calls, "nvmlDeviceGetCudaComputeCapability", at),
                accounting_on=flag(calls, "nvmlDeviceGetAccountingMode", at),
                persistence=flag(calls, "nvmlDeviceGetPersistenceMode", at),
            )
        )
    whole = failure(system.get("nvmlDeviceGetCount"), at, "nvml.nvmlDeviceGetCount")
    return NvmlInventory(
        devices=tuple(found),
        lost=tuple(lost),
        driver=text(system, "nvmlSystemGetDriverVersion", at),
        cuda=text(system, "nvmlSystemGetCudaDriverVersion", at),
        library=library,
        simulated=simulated,
        at=at,
        failure=whole,
    )


def failed_inventory(why: Unavailable, *, library: str = "", simulated: bool = False) -> NvmlInventory:
    """No answer at all: nothing is known of any device of this source."""
    return NvmlInventory((), (), why, why, library, simulated, why.at, why)


@dataclass(frozen=True, slots=True)
class Attribution:
    """Whose the entries of a process list are: the job's own, somebody else's here, or nobody's to be found here."""

    own: tuple[GpuProcess, ...]
    foreign: tuple[GpuProcess, ...]
    unresolvable: tuple[GpuProcess, ...]


def attribute(
    listed: Reading[tuple[GpuProcess, ...]], own: Container[int], here: Container[int], *, same_namespace: bool = True
) -> Reading[Attribution]:
    """Sorts a process list by owner. ``here`` holds every pid that exists in this PID namespace.

    Take ``here`` from tables read before and after the list, or a process that just ended reads as unresolvable. A
    list of another namespace (``same_namespace`` false: the observer's is not the driver's own) resolves to nobody:
    a number alone is not a process. Who judges a list with unresolvable entries says foreign_namespace, not "nobody".
    """
    if isinstance(listed, Unavailable):
        return listed
    own_pids = [p.pid in own and same_namespace for p in listed.value]
    here_pids = [p.pid in here and same_namespace for p in listed.value]
    sorted_out = list(zip(listed.value, own_pids, here_pids, strict=True))
    return Value(
        Attribution(
            own=tuple(p for p, mine, _ in sorted_out if mine),
            foreign=tuple(p for p, mine, known in sorted_out if known and not mine),
            unresolvable=tuple(p for p, mine, known in sorted_out if not known and not mine),
        ),
        listed.at,
        listed.instrument,
        Scope.PROCESS,
    )
