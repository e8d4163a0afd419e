"""Field inputs with right answers (tests/cases/unused_gpu.json), sampled online as the agent does it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.domain.use import (
    Announcement,
    AnnouncementKind,
    CpuMark,
    CpuUse,
    DeviceSample,
    Handles,
    JobVerdict,
    ListedProcess,
    Processes,
    announcement,
    begin,
    begin_job,
    exit_code,
    explain,
    fold,
    job_verdict,
    job_verdict_from_dict,
    judge_job,
    observe_job,
    to_dict,
    verdict,
)

CASES = json.loads((Path(__file__).parents[2] / "cases" / "unused_gpu.json").read_text())["cases"]
MIB = 1 << 20
GRACE = 120.0  # the case times count from the end of the grace, the job started that much earlier


def reading_of_memory(printed: Any, at: float) -> Reading[int]:
    if isinstance(printed, int):
        return Value(printed * MIB, at, "nvml", Scope.DEVICE)
    assert printed in ("[N/A]", "Not Supported")
    return Unavailable(Reason.NOT_SUPPORTED, at, "nvml", Scope.DEVICE, printed)


def sample_of(t: float, told: dict[str, Any]) -> DeviceSample:
    def entries(first: int, key: str) -> tuple[ListedProcess, ...]:
        return tuple(ListedProcess(first + n) for n in range(told.get(key, 0)))

    listed = Processes(entries(100, "own_pids"), entries(200, "foreign_pids"), entries(300, "unresolvable_pids"))
    handles: dict[str, Reading[Handles]] = {
        "none": Value(Handles(3), t, "proc", Scope.PROCESS),
        "open": Value(Handles(3, ("/dev/nvidia-uvm",)), t, "proc", Scope.PROCESS),
        "unreadable": Unavailable(Reason.NO_PERMISSION, t, "proc", Scope.PROCESS, "EACCES"),
    }
    own = told.get("own_util")
    return DeviceSample(
        device=f"h:gpu{told['i']}",
        at=t,
        memory_used=reading_of_memory(told["memory_used"], t),
        utilisation=Value(float(told["util"]), t, "nvml", Scope.DEVICE),
        processes=Value(listed, t, "nvml", Scope.DEVICE)
        if told["list_ok"]
        else Unavailable(Reason.TIMEOUT, t, "nvml", Scope.DEVICE),
        own_utilisation=Value(float(own), t, "nvml", Scope.PROCESS)
        if own is not None
        else Unavailable(Reason.NOT_SUPPORTED, t, "nvml", Scope.PROCESS),
        handles=handles[told["handles"]],
    )


def play(case: dict[str, Any]) -> tuple[JobVerdict, list[Announcement]]:
    """Sample by sample, deciding about announcements after each, as the agent does."""
    count = len(case["samples"][0]["devices"])
    resting = case.get("resting_baseline", [None] * count)
    states = []
    for i in range(count):
        unknown = Unavailable(Reason.BASELINE_UNKNOWN, 0.0, "baseline", Scope.DEVICE)
        known = None if resting[i] is None else Value(resting[i] * MIB, 0.0, "baseline", Scope.DEVICE)
        states.append(begin(f"h:gpu{i}", started_at=-GRACE, baseline=known or unknown))
    job, before = begin_job(states), None
    announced: list[Announcement] = []
    for instant in case["samples"]:
        job = observe_job(job, [sample_of(float(instant["t"]), told) for told in instant["devices"]])
        after = judge_job(job, now=float(instant["t"]))
        said = announcement(before, after, {one.kind for one in announced})
        announced += [said] if said else []
        before = after
    end = judge_job(job, final=True)
    said = announcement(before, end, {one.kind for one in announced})
    return end, announced + ([said] if said else [])


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_case_is_judged_right(case: dict[str, Any]) -> None:
    right = case["right"]
    end, announced = play(case)
    assert end.label == right["job"]
    assert [device.verdict.value for device in end.devices] == right["devices"]
    for index, reason in right.get("reasons", {}).items():
        assert end.devices[int(index)].reason == reason
    warnings = [one for one in announced if one.kind is AnnouncementKind.WARNING]
    if "warnings" in right:
        assert len(warnings) == right["warnings"]
    if "conclusive_warning" in right:
        assert [one.conclusive for one in warnings] == [right["conclusive_warning"]]
    if "contended" in right:
        assert end.contended is right["contended"]
    if "first_context_at" in right:
        assert end.devices[0].first_context_at == right["first_context_at"]
    if "verdict_changes" in right:
        assert [change.label for change in end.changes] == right["verdict_changes"]
    if "cores" in right:
        told = case["cpu"]
        cpu = CpuUse.between(CpuMark(told["t0_s"], told["cpu_s0"]), CpuMark(told["t1_s"], told["cpu_s1"]))
        assert cpu is not None
        beside = job_verdict(end.devices, cpu=cpu)
        assert beside.cpu is not None
        assert round(beside.cpu.cores, 2) == right["cores"]
        assert "4.8 cores beside it (8608 CPU-seconds over 1800 s)" in beside.words


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_batch_says_what_the_online_fold_says(case: dict[str, Any]) -> None:
    end, _ = play(case)
    for device in end.devices:
        index = int(device.device.removeprefix("h:gpu"))
        resting = case.get("resting_baseline")
        baseline: Reading[int] = (
            Value(resting[index] * MIB, 0.0, "baseline", Scope.DEVICE)
            if resting
            else Unavailable(Reason.BASELINE_UNKNOWN, 0.0, "baseline", Scope.DEVICE)
        )
        samples = [sample_of(float(instant["t"]), instant["devices"][index]) for instant in case["samples"]]
        assert verdict(fold(begin(device.device, started_at=-GRACE, baseline=baseline), samples), final=True) == device


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_verdict_travels_as_json(case: dict[str, Any]) -> None:
    end, _ = play(case)
    assert job_verdict_from_dict(json.loads(json.dumps(to_dict(end)))) == end
    assert exit_code(end) == {"used": 0, "unknown": 2}.get(right_of(case), 1)
    assert explain(end)[0] == f"verdict: {right_of(case).replace('_', ' ')}"


def right_of(case: dict[str, Any]) -> str:
    right: str = case["right"]["job"]
    return right
