"""What must hold for every history of samples, whatever the instruments answered."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.unit.domain.use_naive import expected_verdict

from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.domain.use import (
    Announcement,
    AnnouncementKind,
    DeviceSample,
    Handles,
    Limits,
    ListedProcess,
    Processes,
    Verdict,
    announcement,
    begin,
    begin_job,
    fold,
    job_verdict,
    job_verdict_from_dict,
    judge_job,
    observe,
    observe_job,
    sample_from_dict,
    to_dict,
    verdict,
)

LIMITS = Limits(grace_s=3, span_s=6, samples=4, max_gap_s=4)
REST = 512
BASELINES: tuple[Reading[int], ...] = (
    Value(REST, 0.0, "baseline", Scope.DEVICE),
    Unavailable(Reason.BASELINE_UNKNOWN, 0.0, "baseline", Scope.DEVICE),
)
OWN, FOREIGN, HIDDEN = ListedProcess(100), ListedProcess(200), ListedProcess(300)


def no(reason: Reason, scope: Scope = Scope.DEVICE) -> Unavailable:
    return Unavailable(reason, 0.0, "probe", scope)


def ok(value: Any, scope: Scope = Scope.DEVICE) -> Value[Any]:
    return Value(value, 0.0, "probe", scope)


NOTHING = DeviceSample(
    device="h:gpu0",
    at=0.0,
    memory_used=ok(0),
    utilisation=ok(0.0),
    processes=ok(Processes()),
    own_utilisation=no(Reason.NOT_SUPPORTED, Scope.PROCESS),
    handles=ok(Handles(2), Scope.PROCESS),
)
LISTS = st.sampled_from(
    [
        ok(Processes(own=(OWN,))),
        ok(Processes(own=(OWN,), foreign=(FOREIGN,))),
        ok(Processes(foreign=(FOREIGN,))),
        ok(Processes(unresolvable=(HIDDEN,))),
        ok(Processes(own=(OWN,), unresolvable=(HIDDEN,))),
        no(Reason.TIMEOUT),
        no(Reason.GPU_LOST),
    ]
)
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "processes": LISTS,
    "memory_used": st.sampled_from([ok(REST), ok(9000), no(Reason.NOT_SUPPORTED), no(Reason.TIMEOUT)]),
    "utilisation": st.sampled_from([ok(50.0), no(Reason.NOT_SUPPORTED), no(Reason.TIMEOUT)]),
    "own_utilisation": st.sampled_from([ok(0.0, Scope.PROCESS), ok(40.0, Scope.PROCESS)]),
    "handles": st.sampled_from(
        [
            None,
            ok(Handles(2, ("/dev/nvidia-uvm",)), Scope.PROCESS),
            ok(Handles(0), Scope.PROCESS),
            no(Reason.NO_PERMISSION, Scope.PROCESS),
        ]
    ),
}
# What a device is like for good (a machine whose memory never reads, a neighbour that stays ...).
KINDS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"memory_used": no(Reason.NOT_SUPPORTED)},
        {"memory_used": ok(REST)},
        {"utilisation": no(Reason.NOT_SUPPORTED)},
        {"memory_used": ok(9000), "utilisation": ok(97.0), "processes": ok(Processes(foreign=(FOREIGN,)))},
        {"processes": ok(Processes(own=(OWN,))), "own_utilisation": ok(0.0, Scope.PROCESS)},
        {"processes": ok(Processes(own=(OWN,))), "utilisation": no(Reason.NOT_SUPPORTED)},
        {"handles": no(Reason.NO_PERMISSION, Scope.PROCESS)},
    ]
)


@st.composite
def histories(draw: st.DrawFn) -> list[DeviceSample]:
    """Mostly undisturbed instants, so that conclusive windows are common, with single disturbances between them."""
    usual = replace(NOTHING, **draw(KINDS))
    samples, at = [], 0.0
    for _ in range(draw(st.integers(0, 16))):
        at += draw(st.sampled_from([1, 1, 1, 2, 2, 3, 4, 5]))
        sample = replace(usual, at=at)
        if draw(st.integers(0, 3)) == 0 and isinstance(sample.handles, Value):
            sample = replace(sample, handles=None)
        if draw(st.integers(0, 9)) == 0:
            name = draw(st.sampled_from(sorted(CHANGES)))
            sample = replace(sample, **{name: draw(CHANGES[name])})
        samples.append(sample)
    return samples


def judge(history: list[DeviceSample], baseline: Reading[int] = BASELINES[0]) -> Any:
    return verdict(fold(begin("h:gpu0", started_at=0.0, baseline=baseline, limits=LIMITS), history))


@settings(max_examples=400, deadline=None)
@given(histories(), st.sampled_from(BASELINES))
def test_a_brute_force_over_all_windows_agrees(history: list[DeviceSample], baseline: Reading[int]) -> None:
    right = expected_verdict(history, 0.0, baseline, LIMITS)
    event(right)
    assert judge(history, baseline).verdict.value == right


@settings(max_examples=120, deadline=None)
@given(histories(), st.sampled_from(BASELINES))
def test_no_context_rests_on_enough_and_on_answers_only(history: list[DeviceSample], baseline: Reading[int]) -> None:
    found = judge(history, baseline)
    assert (found.reason is not None) == (found.verdict is Verdict.UNKNOWN)
    if found.verdict is not Verdict.NO_CONTEXT:
        return
    window = found.window
    assert window.span >= LIMITS.span_s
    assert window.looks >= LIMITS.samples
    assert window.largest_gap <= LIMITS.max_gap_s
    assert window.largest_look_gap <= LIMITS.max_gap_s
    within = [sample for sample in history if window.start <= sample.at <= window.end]
    assert len(within) == window.instants
    assert f"no context at any of {window.instants} instants over" in found.words
    for sample in within:
        assert isinstance(sample.processes, Value)
        assert not isinstance(sample.handles, Unavailable)
        assert isinstance(sample.memory_used, Value) or sample.memory_used.reason is Reason.NOT_SUPPORTED


@settings(max_examples=120, deadline=None)
@given(histories(), st.data())
def test_an_instrument_that_fails_breaks_the_window_that_holds_it(
    history: list[DeviceSample], data: st.DataObject
) -> None:
    if not history:
        return
    k = data.draw(st.integers(0, len(history) - 1))
    name = data.draw(st.sampled_from(["processes", "handles", "memory_used"]))
    reason = data.draw(st.sampled_from([reason for reason in Reason if reason is not Reason.NOT_SUPPORTED]))
    change: dict[str, Any] = {name: no(reason)}
    broken = [*history[:k], replace(history[k], **change), *history[k + 1 :]]
    found = judge(broken)
    if found.verdict is Verdict.NO_CONTEXT:
        assert not found.window.start <= history[k].at <= found.window.end
    # And judged at that very instant it is never conclusive.
    assert judge(broken[: k + 1]).verdict is not Verdict.NO_CONTEXT


@settings(max_examples=120, deadline=None)
@given(histories(), st.sampled_from([None, 0, 9000]))
def test_foreign_processes_never_make_a_job_use_a_device(history: list[DeviceSample], memory: int | None) -> None:
    neighbour = replace(FOREIGN, pid=201, memory=memory)
    crowded = [
        replace(s, processes=replace(s.processes, value=replace(s.processes.value, foreign=(neighbour,))))
        if isinstance(s.processes, Value)
        else s
        for s in history
    ]
    before, after = judge(history), judge(crowded)
    if before.verdict is not Verdict.USED:
        assert after.verdict is not Verdict.USED
    if any(isinstance(sample.processes, Value) for sample in history):
        assert after.contended


@settings(max_examples=50, deadline=None)
@given(st.lists(histories(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_permuted_devices_give_permuted_verdicts(stories: list[list[DeviceSample]], random: Any) -> None:
    named = [[replace(s, device=f"h:gpu{i}") for s in story] for i, story in enumerate(stories)]
    judged = [
        verdict(fold(begin(f"h:gpu{i}", started_at=0.0, baseline=BASELINES[0], limits=LIMITS), story))
        for i, story in enumerate(named)
    ]
    shuffled = judged[:]
    random.shuffle(shuffled)
    one, other = job_verdict(judged), job_verdict(shuffled)
    assert (one.label, Counter(c.reason for c in one.reasons)) == (
        other.label,
        Counter(c.reason for c in other.reasons),
    )
    assert sorted(one.devices, key=lambda d: d.device) == sorted(other.devices, key=lambda d: d.device)
    kinds = {d.verdict for d in judged}
    if one.verdict is Verdict.NO_CONTEXT:
        assert kinds == {Verdict.NO_CONTEXT}


@settings(max_examples=50, deadline=None)
@given(st.lists(histories(), min_size=1, max_size=3))
def test_online_and_batch_agree_and_each_announcement_goes_out_once(stories: list[list[DeviceSample]]) -> None:
    named = {f"h:gpu{i}": [replace(s, device=f"h:gpu{i}") for s in story] for i, story in enumerate(stories)}
    states = [begin(name, started_at=0.0, baseline=BASELINES[0], limits=LIMITS) for name in named]
    job, before = begin_job(states), None
    said: list[Announcement] = []
    for at in sorted({s.at for story in named.values() for s in story}):
        job = observe_job(job, [s for story in named.values() for s in story if s.at == at])
        after = judge_job(job, now=at)
        notice = announcement(before, after, {one.kind for one in said})
        if notice is not None:
            said.append(notice)
            if notice.kind is AnnouncementKind.WARNING and notice.conclusive:
                assert after.verdict is Verdict.NO_CONTEXT
        before = after
    assert len({one.kind for one in said}) == len(said)
    batch = [fold(state, named[state.device]) for state in states]
    assert list(job.devices) == batch
    end = judge_job(job, final=True)
    assert job_verdict_from_dict(json.loads(json.dumps(to_dict(end)))) == end
    labels = [change.label for change in end.changes]
    assert all(a != b for a, b in itertools.pairwise(labels))


@settings(max_examples=50, deadline=None)
@given(histories())
def test_samples_travel_as_json(history: list[DeviceSample]) -> None:
    for sample in history:
        assert sample_from_dict(json.loads(json.dumps(to_dict(sample)))) == sample


@settings(max_examples=50, deadline=None)
@given(histories(), st.data())
def test_a_late_or_repeated_sample_changes_nothing_but_its_count(
    history: list[DeviceSample], data: st.DataObject
) -> None:
    if not history:
        return
    state = fold(begin("h:gpu0", started_at=0.0, baseline=BASELINES[0], limits=LIMITS), history)
    again = observe(state, data.draw(st.sampled_from(history)))
    assert replace(again, late_samples=0) == state
    assert again.late_samples == 1
