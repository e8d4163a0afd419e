"""Turns what the NVML child reported into readings. Pure: no I/O, no clock, no NVML.

The child sends, for each call, ``{"v": value}`` or ``{"e": code, "m": words}`` (an NVML error) or ``{"x": words}``
(something else went wrong while it was asked). 2^64-1 and 2^32-1 are the driver's "not available" and never numbers.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
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

Calls: TypeAlias = Mapping[str, Any]

ALL_ONES_32 = 0xFFFFFFFF
ALL_ONES_64 = 0xFFFFFFFFFFFFFFFF
PID_MAX = 1 << 22  # the kernel's own limit (PID_MAX_LIMIT on 64 bit)

_REASON_OF_CODE: Mapping[int, Reason] = {
    2: Reason.NOT_SUPPORTED,  # INVALID_ARGUMENT: what some drivers say of a question that a MIG handle cannot answer
    3: Reason.NOT_SUPPORTED,
    4: Reason.NO_PERMISSION,
    6: Reason.GPU_LOST,  # NOT_FOUND, of a handle; calls for which it means "none" treat it before they come here
    9: Reason.LIBRARY_MISSING,  # DRIVER_NOT_LOADED
    10: Reason.TIMEOUT,
    11: Reason.GPU_LOST,  # IRQ_ISSUE
    12: Reason.LIBRARY_MISSING,
    13: Reason.FUNCTION_MISSING,
    15: Reason.GPU_LOST,
    16: Reason.GPU_LOST,  # RESET_REQUIRED
    17: Reason.NO_PERMISSION,  # OPERATING_SYSTEM: "has blocked the request"
    18: Reason.VERSION_MISMATCH,
    19: Reason.CONFLICT,  # IN_USE
    21: Reason.SAMPLING_GAP,  # NO_DATA
    25: Reason.FUNCTION_MISSING,  # ARGUMENT_VERSION_MISMATCH: the driver does not know this version of the call
    26: Reason.NOT_SUPPORTED,  # DEPRECATED
    27: Reason.SAMPLING_GAP,  # NOT_READY
    28: Reason.GPU_LOST,  # GPU_NOT_FOUND
}
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
NOT_FOUND = 6
UNKNOWN = 999


def reason_of(code: int, *, handle: bool = False) -> Reason:
    """The reason that fits an NVML return code. An unknown error while a handle is opened means the card is gone."""
    if handle and code == UNKNOWN:
        return Reason.GPU_LOST
    return _REASON_OF_CODE.get(code, Reason.UNPARSEABLE)


def failure(call: Any, at: float, instrument: str, *, handle: bool = False) -> Unavailable | None:
    """Why this call gave no value, or None where it gave one. A missing or malformed report is a sampling gap."""
    scope = Scope.DEVICE
    if not isinstance(call, Mapping):
        return Unavailable(Reason.SAMPLING_GAP, at, instrument, scope, "the child did not report this call")
    if isinstance(call.get("u"), Unavailable):  # put there by the client, for a call that was never answered
        why: Unavailable = call["u"]
        return Unavailable(why.reason, at, instrument, scope, why.detail)
    if "e" in call:
        code = call["e"]
        if not isinstance(code, int):
            return Unavailable(Reason.UNPARSEABLE, at, instrument, scope, repr(call)[:200])
        words = f"{call.get('m', '')} ({code})".strip()
        return Unavailable(reason_of(code, handle=handle), at, instrument, scope, words)
    if "x" in call:
        return Unavailable(Reason.UNPARSEABLE, at, instrument, scope, str(call["x"])[:200])
    if "v" not in call:
        return Unavailable(Reason.UNPARSEABLE, at, instrument, scope, repr(call)[:200])
    return None


def number(
    raw: Any, at: float, instrument: str, *, low: int = 0, high: int = ALL_ONES_64 - 1, scope: Scope = Scope.DEVICE
) -> Reading[int]:
    """A whole number inside its possible range. All ones of 32 or 64 bits are out of range whatever the bounds."""
    if isinstance(raw, bool) or not isinstance(raw, int):
        return Unavailable(Reason.UNPARSEABLE, at, instrument, scope, repr(raw)[:100])
    if raw in (ALL_ONES_32, ALL_ONES_64) or not low <= raw <= high:
        return Unavailable(Reason.OUT_OF_RANGE, at, instrument, scope, str(raw))
    return Value(raw, at, instrument, scope)


def _one(calls: Calls, function: str, at: float, *, high: int, low: int = 0) -> Reading[int]:
    instrument = f"nvml.{function}"
    bad = failure(calls.get(function), at, instrument)
    return bad if bad is not None else number(calls[function]["v"], at, instrument, low=low, high=high)


def _text(calls: Calls, function: str, at: float) -> Reading[str]:
    instrument = f"nvml.{function}"
    bad = failure(calls.get(function), at, instrument)
    if bad is not None:
        return bad
    raw = calls[function]["v"]
    if not isinstance(raw, str) or not raw.strip():
        return Unavailable(Reason.UNPARSEABLE, at, instrument, Scope.DEVICE, repr(raw)[:100])
    return Value(raw.strip(), at, instrument, Scope.DEVICE)


def _flag(calls: Calls, function: str, at: float) -> Reading[bool]:
    got = _one(calls, function, at, high=1)
    return got if isinstance(got, Unavailable) else Value(bool(got.value), at, got.instrument, got.scope)


def _first(calls: Calls, functions: Iterable[str], at: float, notes: list[str]) -> tuple[str, Unavailable | None]:
    """The newest of several versions of one call that answered; what the newer ones said is noted.

    Where none answered, the failure is the most telling one: the oldest call's, unless that is merely missing.
    """
    asked = [name for name in functions if name in calls] or list(functions)[:1]
    failures: list[tuple[str, Unavailable]] = []
    for name in asked:
        bad = failure(calls.get(name), at, f"nvml.{name}")
        if bad is None:
            notes.extend(f"{n}: {f.reason} ({f.detail})" for n, f in failures)
            return name, None
        failures.append((name, bad))
    telling = [f for f in failures if f[1].reason is not Reason.FUNCTION_MISSING]
    return (telling or failures)[-1]


def memory(calls: Calls, at: float, notes: list[str]) -> tuple[Reading[int], Reading[int]]:
    """(used, total) in bytes. The second version of the call first: the first counts the driver's reserve as used."""
    name, bad = _first(calls, ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"), at, notes)
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
    name, bad = _first(calls, (f"{base}_v3", f"{base}_v2", base), at, notes)
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
    on = _flag(calls, "nvmlDeviceGetAccountingMode", at)
    if isinstance(on, Unavailable):
        return on, on
    if not on.value:
        return on, Unavailable(Reason.NOT_SUPPORTED, at, instrument, Scope.DEVICE, "accounting mode is off")
    bad = failure(calls.get(name), at, instrument)
    if bad is not None:
        return on, bad
    records: list[AccountingRecord] = []
    for entry in calls[name]["v"]:
        bad = failure(entry, at, instrument)
        if bad is not None:
            return on, bad
        raw = entry["v"]
        scope = Scope.PROCESS
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
    event, bad = _first(
        calls, ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"), at, notes
    )
    return ClockSample(
        sm=_one(calls, "nvmlDeviceGetClockInfo.sm", at, high=20_000),
        memory=_one(calls, "nvmlDeviceGetClockInfo.memory", at, high=50_000),
        max_sm=_one(calls, "nvmlDeviceGetMaxClockInfo.sm", at, high=20_000),
        max_memory=_one(calls, "nvmlDeviceGetMaxClockInfo.memory", at, high=50_000),
        application_sm=_one(calls, "nvmlDeviceGetApplicationsClock.sm", at, high=20_000),
        application_memory=_one(calls, "nvmlDeviceGetApplicationsClock.memory", at, high=50_000),
        throttle_bits=bad if bad is not None else _one(calls, event, at, high=ALL_ONES_64 - 1),
        performance_state=_one(calls, "nvmlDeviceGetPerformanceState", at, high=15),
        temperature=_one(calls, "nvmlDeviceGetTemperature", at, low=-60, high=250),
        power=_one(calls, "nvmlDeviceGetPowerUsage", at, high=10_000_000),
        power_limit=_one(calls, "nvmlDeviceGetEnforcedPowerLimit", at, high=10_000_000),
        persistence=_flag(calls, "nvmlDeviceGetPersistenceMode", at),
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
        uuid = _text(calls, "nvmlDeviceGetUUID", at) if bad is None else bad
        if isinstance(uuid, Unavailable):
            lost.append(LostHandle(index, uuid))
            continue
        _, total = memory(calls, at, [])
        mig = _one(calls, "nvmlDeviceGetMigMode", at, high=1)
        found.append(
            NvmlDevice(
                uuid=uuid.value,
                index=index,
                mig_parent=entry.get("mig_parent"),
                mig_enabled=isinstance(mig, Value) and mig.value == 1,
                name=_text(calls, "nvmlDeviceGetName", at),
                pci=_text(calls, "nvmlDeviceGetPciInfo", at),
                minor=_one(calls, "nvmlDeviceGetMinorNumber", at, high=ALL_ONES_32 - 1),
                memory_total=total,
                capability=_text(calls, "nvmlDeviceGetCudaComputeCapability", at),
                accounting_on=_flag(calls, "nvmlDeviceGetAccountingMode", at),
                persistence=_flag(calls, "nvmlDeviceGetPersistenceMode", at),
            )
        )
    whole = failure(system.get("nvmlDeviceGetCount"), at, "nvml.nvmlDeviceGetCount")
    return NvmlInventory(
        devices=tuple(found),
        lost=tuple(lost),
        driver=_text(system, "nvmlSystemGetDriverVersion", at),
        cuda=_text(system, "nvmlSystemGetCudaDriverVersion", at),
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
