"""What samples say of a device beside and after a lease: clear, occupied, dirty, or unknown with its reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tenure.agent import release, watch
from tenure.agent.baseline import Baselines
from tenure.agent.release import Traces
from tenure.domain.device import Condition
from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.probes.nvml_parse import unavailable_sample
from tenure.probes.nvml_records import DeviceSample, GpuProcess

MIB = 1 << 20
WHY = Unavailable(Reason.NOT_SUPPORTED, 0.0, "nvml", Scope.DEVICE)
BASE: Reading[int] = Value(4 * MIB, 0.0, "mem", Scope.DEVICE)
NO_BASE: Reading[int] = Unavailable(Reason.BASELINE_UNKNOWN, 0.0, "baseline", Scope.DEVICE, "never seen at rest")
PEOPLE = {100: ("ann", "python"), 200: ("bob", "Xorg")}


def gone(reason: Reason) -> Unavailable:
    return Unavailable(reason, 0.0, "nvml.x", Scope.DEVICE, "words")


def processes(*pids: int) -> Reading[tuple[GpuProcess, ...]]:
    listed = tuple(GpuProcess(pid, Value(100 * MIB, 0.0, "x", Scope.PROCESS)) for pid in pids)
    return Value(listed, 0.0, "nvml.list", Scope.DEVICE)


def sample(memory_mib: int = 4, pids: tuple[int, ...] = (), **more: Any) -> DeviceSample:
    empty = unavailable_sample("GPU-1", WHY, simulated=True)
    memory = Value(memory_mib * MIB, 0.0, "mem", Scope.DEVICE)
    return replace(empty, **{"memory_used": memory, "compute": processes(*pids), "graphics": processes(), **more})


def describe(pid: int) -> tuple[str, str]:
    return PEOPLE.get(pid, ("", ""))


def look(
    told: DeviceSample, baseline: Reading[int] = BASE, resting: tuple[str, ...] = (), *, sees_all: bool = True
) -> Condition:
    return watch.look(told, baseline, sees_all=sees_all, resting=resting, describe=describe)


def test_nobody_and_memory_at_rest_is_clear() -> None:
    assert look(sample()).outcome == "clear"


def test_somebody_is_named() -> None:
    seen = look(sample(400, (100,)))
    assert seen == Condition("occupied", "pid 100 (ann): python", ("pid 100 (ann): python",))


def test_a_pid_of_another_namespace_is_somebody_too() -> None:
    assert look(sample(400, (31337,))).by == ("pid 31337 (not visible from here)",)


def test_memory_without_a_process_is_somebody() -> None:
    seen = look(sample(4000))
    assert seen.outcome == "occupied"
    assert "3996 MiB above the resting baseline of 4 MiB" in seen.detail


@pytest.mark.parametrize("reason", [Reason.TIMEOUT, Reason.GPU_LOST, Reason.NO_PERMISSION, Reason.VERSION_MISMATCH])
def test_a_list_that_failed_is_unknown_whatever_the_memory(reason: Reason) -> None:
    seen = look(sample(compute=gone(reason)))
    assert seen.outcome == "unknown"
    assert str(reason) in seen.detail


def test_unified_memory_goes_by_the_list_alone() -> None:
    assert look(sample(memory_used=gone(Reason.NOT_SUPPORTED))).outcome == "clear"
    assert look(sample(pids=(100,), memory_used=gone(Reason.NOT_SUPPORTED))).outcome == "occupied"


def test_an_empty_list_of_another_namespace_proves_nothing_where_memory_does_not_read() -> None:
    # A unified-memory box with the agent in a container: whoever is outside shows in no list and in no figure.
    told = sample(memory_used=gone(Reason.NOT_SUPPORTED))
    seen = look(told, sees_all=False)
    assert (seen.outcome, seen.detail.split(":")[0]) == ("unknown", "foreign_namespace")
    assert proof(told, settled=False, sees_all=False) is None
    after = proof(told, settled=True, sees_all=False)
    assert after is not None
    assert after.outcome == "unknown"


def test_memory_speaks_for_those_that_no_list_here_can_show() -> None:
    assert look(sample(4), sees_all=False).outcome == "clear"
    assert look(sample(4000), sees_all=False).outcome == "occupied"
    assert look(sample(4000), NO_BASE, sees_all=False).outcome == "unknown"


def test_only_the_initial_namespace_is_known_to_see_everybody() -> None:
    real = replace(sample(), simulated=False)
    assert [watch.sees_all(real, initial) for initial in (True, False, None)] == [True, False, False]
    assert watch.sees_all(sample(), False)  # a simulated driver knows of no namespaces


def test_nothing_answers_is_unknown() -> None:
    nothing = sample(memory_used=gone(Reason.NOT_SUPPORTED), compute=gone(Reason.NOT_SUPPORTED))
    assert look(nothing).outcome == "unknown"


def test_memory_that_nothing_can_be_compared_with_is_unknown() -> None:
    assert look(sample(600), NO_BASE).outcome == "unknown"
    assert look(sample(0), NO_BASE).outcome == "clear"


def test_a_declared_desktop_rests() -> None:
    told = sample(4, (), graphics=processes(200))
    assert look(told).outcome == "occupied"
    assert look(told, resting=("Xorg",)).outcome == "clear"


def test_beside_a_lease_only_others_count() -> None:
    told = sample(9000, (100, 300))
    assert watch.look_beside(told, {100, 300}, {100, 300}).outcome == "clear"
    beside = watch.look_beside(told, {300}, {100, 300}, describe=describe)
    assert beside.by == ("pid 100 (ann): python",)
    assert watch.look_beside(told, {100}, {100}).outcome == "unknown"  # 300 may be the job's own, counted elsewhere


def proof(told: DeviceSample, traces: Traces = Traces(), *, settled: bool, **more: Any) -> Condition | None:  # noqa: B008
    given = {"here": {100}, "tree_proof": "tree empty", "describe": describe, "sees_all": True, **more}
    return release.of_gpu(told, given.pop("baseline", BASE), traces, settled=settled, **given)


def test_empty_and_at_rest_is_proved_at_once() -> None:
    seen = proof(sample(), settled=False)
    assert seen is not None
    assert (seen.outcome, seen.detail) == ("clear", "tree empty; no process listed, memory at rest")


def test_what_the_driver_has_not_given_back_is_waited_for_then_dirty() -> None:
    for told in (sample(500), sample(500, (77,))):
        assert proof(told, Traces(frozenset({77})), settled=False) is None
        seen = proof(told, Traces(frozenset({77})), settled=True)
        assert seen is not None
        assert seen.outcome == "dirty"


def test_a_stranger_proves_the_job_gone() -> None:
    seen = proof(sample(500, (100,)), Traces(frozenset({100})), settled=False)
    assert seen is not None
    assert (seen.outcome, seen.by) == ("occupied", ("pid 100 (ann): python",))


def test_a_pid_that_cannot_be_found_proves_nothing() -> None:
    seen = proof(sample(500, (31337,)), settled=True)
    assert seen is not None
    assert seen.outcome == "unknown"


def test_a_failed_look_proves_nothing() -> None:
    told = sample(compute=gone(Reason.TIMEOUT))
    assert proof(told, settled=False) is None
    seen = proof(told, settled=True)
    assert seen is not None
    assert seen.outcome == "unknown"


def test_baselines_are_kept_by_driver_and_call_and_only_fall(tmp_path: Path) -> None:
    known = Baselines(tmp_path / "baselines.json")
    told = sample(300)
    assert isinstance(known.of("GPU-1", told.memory_used, "570"), Unavailable)
    assert known.learn(told, "570", sees_all=True)
    assert not known.learn(sample(500), "570", sees_all=True)
    assert known.learn(sample(200), "570", sees_all=True)
    again = Baselines(tmp_path / "baselines.json")
    found = again.of("GPU-1", told.memory_used, "570")
    assert isinstance(found, Value)
    assert found.value == 200 * MIB
    assert isinstance(again.of("GPU-1", told.memory_used, "580"), Unavailable)
    other = Value(1, 0.0, "another call", Scope.DEVICE)
    assert isinstance(again.of("GPU-1", other, "570"), Unavailable)


def test_a_tenants_memory_is_never_taken_for_rest(tmp_path: Path) -> None:
    known = Baselines(tmp_path / "baselines.json")
    assert not known.learn(sample(9000), "570", sees_all=True)
    assert not known.learn(sample(100, (100,)), "570", sees_all=True)
    failed = gone(Reason.TIMEOUT)
    for told in (sample(100, compute=failed), sample(100, graphics=failed), sample(100, mps=failed)):
        assert not known.learn(told, "570", sees_all=True)
    # Somebody in another container shows in no list: 400 MiB may be a context's, 2 MiB cannot be.
    assert not known.learn(sample(400), "570", sees_all=False)
    assert known.learn(sample(2), "570", sees_all=False)


def test_one_rule_says_who_rests() -> None:
    assert watch.rests("/usr/lib/xorg/Xorg :0", ("Xorg",))
    assert watch.rests("Xorg", ("Xorg",))
    assert not watch.rests("python Xorg", ("Xorg",))
    assert not watch.rests("", ("",))
    seen = proof(sample(4, (200,)), settled=True, here={200}, resting=("Xorg",))
    assert seen is not None
    assert seen.outcome == "clear"


def test_a_damaged_file_of_baselines_is_said_and_measured_again(tmp_path: Path) -> None:
    (tmp_path / "baselines.json").write_text("{")
    known = Baselines(tmp_path / "baselines.json")
    assert "measured afresh" in known.problem
    assert known.learn(sample(10), "570", sees_all=True)
