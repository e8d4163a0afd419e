"""Cases of readings: what instruments printed, windows of use, labels and selectors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tenure.domain import label, selector
from tenure.domain import use as verdicts
from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.probes import command, discovery, nvml_parse, proc, smi
from tenure.testing.replay.cases import Case, NotBuilt, name_of

MIB = 1 << 20
#: The times of a window's case count from the end of the grace.
GRACE_S = 120.0
AT = 1.0


# -- labels and selectors ----------------------------------------------------------------------------------------------


def selectors(body: Mapping[str, Any]) -> Iterator[Case]:
    """What each selector matches, why not, and what is no selector."""
    fleet = {
        device: {key: label.read_label(value, "detected", AT) for key, value in labels.items()}
        for device, labels in body["fleet"].items()
    }
    for text, right in body.get("right", {}).items():
        wanted = selector.parse(text)
        yield Case(text, right, sorted(name for name, labels in fleet.items() if selector.matches(wanted, labels)))
    for text, reasons in body.get("explain", {}).items():
        told = selector.explain(selector.parse(text), fleet)
        yield Case(f"explain {text}", reasons, {name: str(one.outcome) for name, one in told.items()})
    for text in body.get("malformed", ()):
        try:
            found = f"parsed as {selector.parse(text).canonical}"
        except selector.SelectorError:
            found = "malformed"
        yield Case(f"malformed {text}", "malformed", found)


# -- windows of use ----------------------------------------------------------------------------------------------------


def use(case: Mapping[str, Any], number: int) -> Case:
    """A window of readings, sampled online as an agent does it."""
    return Case(name_of(case, number), case["right"], _judge(case))


def _judge(case: Mapping[str, Any]) -> dict[str, Any]:
    names = [f"h:gpu{told['i']}" for told in case["samples"][0]["devices"]]
    resting: Sequence[int | None] = case.get("resting_baseline", [None] * len(names))
    job = verdicts.begin_job(
        verdicts.begin(name, started_at=-GRACE_S, baseline=_baseline(rest))
        for name, rest in zip(names, resting, strict=True)
    )
    before: verdicts.JobVerdict | None = None
    said: list[verdicts.Announcement] = []
    for instant in case["samples"]:
        at = float(instant["t"])
        job = verdicts.observe_job(job, [_sample(at, told) for told in instant["devices"]])
        after = verdicts.judge_job(job, now=at)
        said += _announced(before, after, said)
        before = after
    end = verdicts.judge_job(job, final=True)
    said += _announced(before, end, said)
    warnings = [one for one in said if one.kind is verdicts.AnnouncementKind.WARNING]
    got: dict[str, Any] = {
        "job": end.label,
        "devices": [str(device.verdict) for device in end.devices],
        "reasons": {str(index): str(device.reason) for index, device in enumerate(end.devices) if device.reason},
        "warnings": len(warnings),
        "conclusive_warning": warnings[0].conclusive if warnings else None,
        "contended": end.contended,
        "verdict_changes": [change.label for change in end.changes],
        "first_context_at": min(
            (d.first_context_at for d in end.devices if d.first_context_at is not None), default=None
        ),
        # What has been decided may be announced; nothing in the product can stop a job for it.
        "stopped": False,
    }
    if "cpu" in case:
        told = case["cpu"]
        first, last = (verdicts.CpuMark(told[f"t{n}_s"], told[f"cpu_s{n}"]) for n in (0, 1))
        cpu = verdicts.CpuUse.between(first, last)
        got["cores"] = None if cpu is None else cpu.cores
    if "claim" in case["right"]:
        got["claim"] = _claim(case, end)
    return got


def _claim(case: Mapping[str, Any], end: verdicts.JobVerdict) -> str:
    try:
        from tenure.domain import claim
    except ImportError as error:
        raise NotBuilt("claims (domain/claim.py)") from error
    return str(claim.judge(case["claim"].get("cuda_context"), end).outcome)


def _announced(
    before: verdicts.JobVerdict | None, after: verdicts.JobVerdict, said: Sequence[verdicts.Announcement]
) -> list[verdicts.Announcement]:
    found = verdicts.announcement(before, after, {one.kind for one in said})
    return [found] if found is not None else []


def _baseline(mib: int | None) -> Reading[int]:
    if mib is None:
        return Unavailable(Reason.BASELINE_UNKNOWN, 0.0, "baseline", Scope.DEVICE)
    return Value(mib * MIB, 0.0, "baseline", Scope.DEVICE)


def _sample(at: float, told: Mapping[str, Any]) -> verdicts.DeviceSample:
    def listed(first: int, key: str) -> tuple[verdicts.ListedProcess, ...]:
        return tuple(verdicts.ListedProcess(first + number) for number in range(told.get(key, 0)))

    def device(value: Any) -> Value[Any]:
        return Value(value, at, "nvml", Scope.DEVICE)

    def without(reason: Reason, scope: Scope = Scope.DEVICE, detail: str = "") -> Unavailable:
        return Unavailable(reason, at, "nvml", scope, detail)

    printed = smi.number_field(str(told["memory_used"]), at)
    memory: Reading[int] = device(round(printed.value * MIB)) if isinstance(printed, Value) else printed
    utilisation = smi.number_field(str(told["util"]), at)
    processes = verdicts.Processes(
        listed(100, "own_pids"), listed(10_000, "foreign_pids"), listed(20_000, "unresolvable_pids")
    )
    own = told.get("own_util")
    handles: Mapping[str, Reading[verdicts.Handles]] = {
        "none": Value(verdicts.Handles(1), at, "proc", Scope.PROCESS),
        "open": Value(verdicts.Handles(1, ("/dev/nvidia-uvm",)), at, "proc", Scope.PROCESS),
        "unreadable": Unavailable(Reason.NO_PERMISSION, at, "proc", Scope.PROCESS),
    }
    return verdicts.DeviceSample(
        device=f"h:gpu{told['i']}",
        at=at,
        memory_used=memory,
        utilisation=device(float(utilisation.value)) if isinstance(utilisation, Value) else utilisation,
        processes=device(processes) if told.get("list_ok") else without(Reason.TIMEOUT),
        own_utilisation=without(Reason.NOT_SUPPORTED, Scope.PROCESS)
        if own is None
        else Value(float(own), at, "nvml", Scope.PROCESS),
        handles=handles[told["handles"]],
    )


# -- instruments -------------------------------------------------------------------------------------------------------


def instrument(case: Mapping[str, Any], number: int) -> Case:
    """What an instrument printed, through the reader that would get it."""
    reader = _READERS.get(case["kind"])
    if reader is None:
        raise NotBuilt(f"a reader of {case['kind']!r}")
    return Case(name_of(case, number), case["right"], reader(case["input"]))


def _plain(reading: Reading[Any] | proc.Vanished) -> Any:
    if isinstance(reading, Unavailable):
        return str(reading.reason)
    return reading.value if isinstance(reading, Value) else "vanished"


def _memory(raw: Mapping[str, int]) -> Any:
    known = (("v1_mb", "nvmlDeviceGetMemoryInfo"), ("v2_mb", "nvmlDeviceGetMemoryInfo_v2"))
    calls = {name: {"v": {"total": 1 << 37, "used": raw[key] * MIB}} for key, name in known if key in raw}
    used = nvml_parse.device_sample("GPU-a", calls, AT).memory_used
    return {"used_mb": used.value // MIB} if isinstance(used, Value) else _plain(used)


def _utilisation(raw: str) -> Any:
    calls = {"nvmlDeviceGetUtilizationRates": {"v": {"gpu": int(raw), "memory": 0}}}
    return _plain(nvml_parse.device_sample("GPU-a", calls, AT).utilisation)


def _memory_bytes(raw: str) -> Any:
    calls = {"nvmlDeviceGetMemoryInfo_v2": {"v": {"total": int(raw), "used": 0}}}
    return _plain(nvml_parse.device_sample("GPU-a", calls, AT).memory_total)


def _error_code(raw: str) -> Any:
    code = int(raw.removeprefix("NVMLError(").removesuffix(")"))
    return _plain(nvml_parse.device_sample("GPU-a", {"nvmlDeviceGetPowerUsage": {"e": code, "m": ""}}, AT).clocks.power)


def _open_files(raw: str) -> Any:
    """A process whose open files the system really refuses, read by a child without rights where this one has all."""
    if raw != "EACCES":
        raise NotBuilt(f"open files that answer {raw!r}")
    return _without_rights(os.getpid() if os.geteuid() == 0 else 1)


def _without_rights(pid: int) -> str:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os.write(write, str(_plain(proc.handles(pid))).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def _command(raw: str) -> Any:
    return _plain(asyncio.run(command.run(["sh", "-c", raw], deadline_s=0.5)))


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "smi_csv": lambda raw: {name: _plain(found) for name, found in smi.query_csv(raw, AT)[0].items()},
    "smi_row": lambda raw: [_plain(smi.text_field(cell, AT)) for cell in smi.rows(raw)[0]],
    "smi_field": lambda raw: _plain(smi.number_field(raw, AT)),
    "smi_field_second": lambda raw: _plain(smi.number_field(smi.rows(raw)[0][1], AT)),
    "smi_pair": lambda raw: [_plain(smi.number_field(cell, AT)) for cell in smi.rows(raw)[0]],
    "smi_process_table": lambda raw: _plain(smi.process_table(raw, AT)),
    "smi_compute_app": lambda raw: _plain(smi.compute_app(raw, AT, set())),
    "smi_error": lambda raw: _plain(smi.error(raw, AT)),
    "smi_header": smi.throttle_reason,
    "nvml_memory": _memory,
    "nvml_memory_bytes": _memory_bytes,
    "nvml_utilisation": _utilisation,
    "nvml_error": _error_code,
    "dcgm_field": lambda raw: _plain(smi.dcgm_field(raw, AT)),
    "proc_fd": _open_files,
    "probe_command": _command,
    "visible_for_nvml0": lambda raw: discovery.visible_environment([raw["nvml0"]])["CUDA_VISIBLE_DEVICES"],
    "device_name": discovery.device_uuid,
}
