"""Single stories: what is counted, what is said, what goes out."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.domain.use import (
    Accounting,
    AnnouncementKind,
    DeviceSample,
    DeviceVerdict,
    Handles,
    JobVerdict,
    Limits,
    ListedProcess,
    Processes,
    Verdict,
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
    strict_code,
    to_dict,
    verdict,
)

MIB = 1 << 20
OWN = ListedProcess(100, "alice", "python")
AT_REST: Reading[int] = Value(512 * MIB, 0.0, "baseline", Scope.DEVICE)
NO_BASELINE = Unavailable(Reason.BASELINE_UNKNOWN, 0.0, "baseline", Scope.DEVICE)


def no(reason: Reason, detail: str = "") -> Unavailable:
    return Unavailable(reason, 0.0, "probe", Scope.DEVICE, detail)


def _stuck(t: int) -> dict[str, Any]:
    """Every fortieth instant the process list does not answer."""
    return {"processes": no(Reason.TIMEOUT)} if t % 40 == 0 else {}


def at(t: float, *, look: bool = True, device: str = "h:gpu0", **changes: Any) -> DeviceSample:
    """An instant in which every instrument answered and nothing of the job was there, but for ``changes``."""
    values: dict[str, Any] = {"memory_used": 0, "utilisation": 0.0, "processes": Processes()}
    readings: dict[str, Any] = {name: Value(value, t, "probe", Scope.DEVICE) for name, value in values.items()}
    readings["own_utilisation"] = Unavailable(Reason.NOT_SUPPORTED, t, "probe", Scope.PROCESS)
    readings["handles"] = Value(Handles(2), t, "proc", Scope.PROCESS) if look else None
    for name, value in changes.items():
        scope = Scope.PROCESS if name in ("own_utilisation", "handles", "accounting", "cpu_s") else Scope.DEVICE
        readings[name] = value if isinstance(value, Unavailable) else Value(value, t, "probe", scope)
    return DeviceSample(device=device, at=t, **readings)


def every_second(first: int, last: int, look_every: int = 7, **changes: Any) -> list[DeviceSample]:
    """1 Hz; the open files are read at ``first`` and every ``look_every`` seconds from there."""
    return [at(float(t), look=(t - first) % look_every == 0, **changes) for t in range(first, last + 1)]


def judge(samples: Iterable[DeviceSample], *, limits: Limits | None = None, **kwargs: Any) -> DeviceVerdict:
    baseline = kwargs.pop("baseline", NO_BASELINE)
    return verdict(fold(begin("h:gpu0", started_at=0.0, baseline=baseline, limits=limits), samples), **kwargs)


WORKING: dict[str, Any] = {
    "processes": Processes(own=(OWN,)),
    "own_utilisation": 80.0,
    "utilisation": 80.0,
    "memory_used": 900 * MIB,
}
IDLING: dict[str, Any] = {"processes": Processes(own=(OWN,)), "own_utilisation": 0.0, "memory_used": 900 * MIB}


# --- looks at the open files ------------------------------------------------------------------------------------


def test_at_one_hertz_the_window_closes_with_the_look_that_makes_it_56_seconds() -> None:
    assert judge(every_second(120, 175)).verdict is Verdict.UNKNOWN
    found = judge(every_second(120, 176))
    assert found.verdict is Verdict.NO_CONTEXT
    assert found.words == (
        "no context at any of 57 instants over 56 s (largest gap 1.0 s); open files read at 9 of them"
    )


def test_instants_after_the_last_look_are_not_counted_until_the_next_one_agrees() -> None:
    found = judge(every_second(120, 182))
    assert found.window is not None
    assert (found.window.end, found.window.instants) == (176.0, 57)
    found = judge(every_second(120, 183))
    assert found.window is not None
    assert (found.window.end, found.window.instants) == (183.0, 64)


def test_a_look_that_finds_handles_takes_back_the_instants_before_it() -> None:
    samples = [*every_second(120, 182), at(183, handles=Handles(2, ("/dev/nvidia-uvm",)))]
    found = judge(samples)
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, Reason.CONFLICT)
    assert found.earlier is not None
    assert found.earlier.end == 176.0
    assert "earlier: no context at any of 57 instants over 56 s" in found.words
    # The next instant without a look does not make the question go away.
    assert judge([*samples, at(184, look=False)]).reason is Reason.CONFLICT


def test_without_a_look_nothing_is_concluded_however_long_it_lasts() -> None:
    found = judge(at(float(t), look=False) for t in range(120, 400))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, Reason.WINDOW_TOO_SHORT)


def test_looks_that_stop_leave_a_gap() -> None:
    found = judge([*every_second(120, 176), *(at(float(t), look=False) for t in range(177, 195))])
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, Reason.SAMPLING_GAP)


def test_a_tree_without_processes_was_not_looked_at() -> None:
    found = judge(at(float(t), handles=Handles(0)) for t in range(120, 400))
    assert found.verdict is Verdict.UNKNOWN


def test_looks_too_rare_for_the_count_do_not_make_a_window() -> None:
    assert judge(every_second(120, 120 + 84, look_every=14)).verdict is Verdict.UNKNOWN  # 84 s, but 7 looks
    assert judge(every_second(120, 120 + 98, look_every=14)).verdict is Verdict.NO_CONTEXT  # the 8th


# --- gaps, grace, ends ------------------------------------------------------------------------------------------


def test_a_gap_restarts_the_window_and_is_the_reason_until_it_is_full_again() -> None:
    samples = [*every_second(120, 176), *every_second(200, 240)]
    found = judge(samples)
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, Reason.SAMPLING_GAP)
    assert [cause.reason for cause in found.reasons] == [Reason.SAMPLING_GAP, Reason.WINDOW_TOO_SHORT]
    assert judge([*every_second(120, 176), *every_second(200, 256)]).verdict is Verdict.NO_CONTEXT


def test_a_window_that_ended_long_ago_says_nothing_of_now() -> None:
    samples = every_second(120, 176)
    assert judge(samples, now=190.0).verdict is Verdict.NO_CONTEXT
    found = judge(samples, now=192.0, final=True)
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, Reason.SAMPLING_GAP)


def test_within_the_grace_absence_does_not_count_but_work_does() -> None:
    found = judge(every_second(0, 119))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, Reason.WINDOW_TOO_SHORT)
    assert "within the grace of 120 s" in found.words
    assert judge([*every_second(0, 60), at(61, **WORKING)]).verdict is Verdict.USED


def test_no_instant_at_all() -> None:
    found = judge([])
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, Reason.WINDOW_TOO_SHORT)
    assert found.words == "unknown (window_too_short): no instant was looked at"


# --- context and work -------------------------------------------------------------------------------------------


def test_work_seen_early_stays_a_fact_and_the_idle_time_after_it_is_said() -> None:
    found = judge([*every_second(10, 20, **WORKING), *every_second(21, 400)])
    assert (found.verdict, found.current) == (Verdict.USED, Verdict.NO_CONTEXT)
    assert found.idle_since == 120.0  # nothing within the grace counts towards idleness
    assert "idle since 120 s after the start: no context any more in the current window" in found.words
    assert found.last_context_at == 20.0


def test_a_context_that_went_away_rules_out_no_context_for_the_job_but_not_for_the_window() -> None:
    found = judge([*every_second(120, 130, **IDLING), *every_second(131, 250)])
    assert (found.verdict, found.current) == (Verdict.CONTEXT_IDLE, Verdict.NO_CONTEXT)
    assert found.context_seen
    assert "a context at 11 of 131 instants" in found.words


def test_a_context_whose_work_nothing_can_read_is_unknown_and_says_so() -> None:
    blind: dict[str, Any] = {"processes": Processes(own=(OWN,)), "utilisation": no(Reason.NOT_SUPPORTED)}
    found = judge(every_second(120, 200, **blind))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, Reason.NOT_SUPPORTED)
    assert found.context_seen
    assert found.words.startswith(
        "unknown: a context at 81 of 81 instants over 80 s (largest gap 1.0 s), work unknown;"
    )
    # Neither does a quiet time after it settle what it did.
    found = judge([*every_second(120, 200, **blind), *every_second(201, 400)])
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, Reason.NOT_SUPPORTED)


def test_a_context_too_short_to_be_called_idle() -> None:
    found = judge(every_second(120, 150, **IDLING))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, Reason.WINDOW_TOO_SHORT)
    assert "a context at 31 of 31 instants over 30 s (largest gap 1.0 s), no work seen so far" in found.words


def test_device_wide_utilisation_is_the_jobs_only_where_the_job_is_alone() -> None:
    neighbour = ListedProcess(200, "bob", "train")
    alone: dict[str, Any] = {"processes": Processes(own=(OWN,)), "utilisation": 70.0}
    assert judge(every_second(120, 130, **alone)).verdict is Verdict.USED
    shared: dict[str, Any] = {"processes": Processes(own=(OWN,), foreign=(neighbour,)), "utilisation": 70.0}
    found = judge(every_second(120, 200, **shared))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, Reason.SHARED_DEVICE)
    assert "contended: pid 200 (bob, train) listed on the device too" in found.words
    # Zero device-wide is zero for everybody; zero of its own is zero whatever the neighbour does.
    assert judge(every_second(120, 200, **{**shared, "utilisation": 0.0})).verdict is Verdict.CONTEXT_IDLE
    assert judge(every_second(120, 200, **shared, own_utilisation=0.0)).verdict is Verdict.CONTEXT_IDLE


def test_zero_of_the_processes_one_can_see_is_not_zero_of_the_job_where_pids_are_hidden() -> None:
    hidden = Processes(own=(OWN,), unresolvable=(ListedProcess(31337),))
    found = judge(every_second(120, 200, processes=hidden, utilisation=60.0, own_utilisation=0.0))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, Reason.FOREIGN_NAMESPACE)


def test_work_that_no_listed_process_does_is_a_conflict() -> None:
    found = judge(every_second(120, 200, utilisation=30.0))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, Reason.CONFLICT)


def test_a_device_wide_figure_cannot_pass_as_the_jobs_own() -> None:
    with pytest.raises(ValueError, match="scope process"):
        replace(at(1.0), own_utilisation=Value(50.0, 1.0, "nvml", Scope.DEVICE))


# --- accounting -------------------------------------------------------------------------------------------------


def test_only_accounting_of_the_whole_life_says_at_no_time() -> None:
    found = judge(every_second(120, 200, accounting=Accounting(whole_life=True, contexts=0)))
    assert found.words.startswith("at no time up to the last look a context of the job, by accounting")
    for partly in (Accounting(whole_life=False, contexts=0), no(Reason.NOT_SUPPORTED)):
        assert "at no time" not in judge(every_second(120, 200, accounting=partly)).words


def test_a_context_between_two_samples_is_known_to_accounting() -> None:
    quiet, after = Accounting(True, 0), Accounting(True, 1, utilisation=0.0)
    samples = [*every_second(120, 150, accounting=quiet), *every_second(151, 300, accounting=after)]
    found = judge(samples)
    assert (found.first_context_at, found.context_instants) == (151.0, 1)
    assert found.verdict is not Verdict.NO_CONTEXT
    assert found.current is Verdict.NO_CONTEXT  # the ended process breaks the window once, not for ever
    worked = Accounting(True, 1, utilisation=35.0)
    assert judge([*samples, at(301, accounting=worked)]).verdict is Verdict.USED


# --- memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "foreign", "baseline", "right"),
    [
        (512 * MIB, (), AT_REST, None),
        (513 * MIB, (), AT_REST, Reason.CONFLICT),
        (512 * MIB, (), NO_BASELINE, Reason.BASELINE_UNKNOWN),
        (1512 * MIB, (ListedProcess(200, memory=1000 * MIB),), AT_REST, None),
        (9512 * MIB, (ListedProcess(200, memory=1000 * MIB),), AT_REST, Reason.CONFLICT),
        (9512 * MIB, (ListedProcess(200),), AT_REST, None),
        (1000 * MIB, (ListedProcess(200, memory=1000 * MIB),), NO_BASELINE, None),
        (1512 * MIB, (ListedProcess(200, memory=1000 * MIB),), NO_BASELINE, Reason.BASELINE_UNKNOWN),
        # What rests there is part of the baseline and cannot own the excess a second time.
        (1512 * MIB, (ListedProcess(200, memory=1000 * MIB, resting=True),), AT_REST, Reason.CONFLICT),
    ],
)
def test_memory_above_rest_must_be_owned_by_somebody_listed(
    used: int, foreign: tuple[ListedProcess, ...], baseline: Reading[int], right: Reason | None
) -> None:
    found = judge(every_second(120, 200, memory_used=used, processes=Processes(foreign=foreign)), baseline=baseline)
    assert found.reason == right
    assert found.verdict is (Verdict.NO_CONTEXT if right is None else Verdict.UNKNOWN)
    assert found.contended is any(not process.resting for process in foreign)


def test_memory_that_answered_once_is_relied_on_from_then_on() -> None:
    absent: dict[str, Any] = {"memory_used": no(Reason.NOT_SUPPORTED, "[N/A]")}
    assert judge(every_second(120, 200, **absent)).verdict is Verdict.NO_CONTEXT
    assert judge([*every_second(120, 200), at(201, **absent)]).reason is Reason.NOT_SUPPORTED
    assert judge([*every_second(120, 200, **absent), at(201)]).reason is Reason.WINDOW_TOO_SHORT
    assert judge(every_second(120, 200, memory_used=no(Reason.NO_PERMISSION))).reason is Reason.NO_PERMISSION


# --- the job, and what goes out ---------------------------------------------------------------------------------


def run_job(
    samples: list[list[DeviceSample]], **kwargs: Any
) -> tuple[JobVerdict, list[tuple[float | None, str, bool]]]:
    """Several devices, second by second; what was announced as (at, kind, conclusive)."""
    names = [story[0].device for story in samples]
    job, before = begin_job(begin(name, started_at=0.0, baseline=NO_BASELINE, **kwargs) for name in names), None
    said: list[tuple[float | None, str, bool]] = []

    def hear(after: JobVerdict) -> None:
        notice = announcement(before, after, {AnnouncementKind(kind) for _, kind, _ in said})
        if notice is not None:
            assert "nothing is stopped" in notice.procedure
            assert "next phase boundary" in notice.procedure
            said.append((notice.at, notice.kind.value, notice.conclusive))

    for t in sorted({sample.at for story in samples for sample in story}):
        job = observe_job(job, [sample for story in samples for sample in story if sample.at == t])
        after = judge_job(job, now=t)
        hear(after)
        before = after
    end = judge_job(job, final=True)
    hear(end)
    return end, said


def test_a_partial_job_is_an_advisory_once_its_idle_device_is_conclusive() -> None:
    end, said = run_job([every_second(120, 200, **WORKING), every_second(120, 200, device="h:gpu1")])
    assert end.label == "partial 1/2"
    assert said == [(176.0, "advisory", True)]
    assert end.words.startswith("partial 1/2: used 1 of 2 (h:gpu0), no context 1 of 2 (h:gpu1)")


def test_a_mixed_job_is_an_advisory_and_an_idle_context_alone_is_none() -> None:
    end, said = run_job([every_second(120, 200, **IDLING), every_second(120, 200, device="h:gpu1")])
    assert end.verdict is Verdict.CONTEXT_IDLE
    assert said == [(176.0, "advisory", True)]
    end, said = run_job([every_second(120, 200, **IDLING)])
    assert (end.verdict, said) == (Verdict.CONTEXT_IDLE, [])


def test_a_broken_window_does_not_repeat_the_warning() -> None:
    samples = [*every_second(120, 176), at(177, processes=no(Reason.TIMEOUT)), *every_second(178, 300)]
    end, said = run_job([samples])
    assert end.verdict is Verdict.NO_CONTEXT
    assert said == [(176.0, "warning", True)]
    assert [(c.at, c.label) for c in end.changes] == [(176.0, "no_context"), (177.0, "unknown"), (234.0, "no_context")]


def test_zero_memory_warns_without_concluding_where_another_instrument_never_answers() -> None:
    end, said = run_job([every_second(120, 300, processes=no(Reason.TIMEOUT))])
    assert (end.verdict, end.reason) == (Verdict.UNKNOWN, Reason.TIMEOUT)
    assert said == [(176.0, "warning", False)]
    assert "memory read exactly 0 at each of 181 instants" in end.words


def test_a_single_failure_gets_a_second_span_before_the_weaker_warning() -> None:
    samples = [*every_second(120, 150), at(151, processes=no(Reason.TIMEOUT)), *every_second(152, 230)]
    assert run_job([samples])[1] == [(208.0, "warning", True)]
    # A job that ends before that is told what is known.
    assert run_job([samples[:70]])[1] == [(189.0, "warning", False)]
    # An instrument that fails again and again never lets a window close: then after the second span.
    shaky = [at(float(t), look=t % 7 == 0, **_stuck(t)) for t in range(121, 400)]
    assert run_job([shaky])[1] == [(233.0, "warning", False)]


def test_memory_that_was_ever_above_zero_is_not_zero_throughout() -> None:
    samples = [at(100, memory_used=MIB), *every_second(120, 300, processes=no(Reason.TIMEOUT))]
    end, said = run_job([samples])
    assert (end.devices[0].memory_zero_throughout, said) == (False, [])


def test_a_missed_announcement_is_made_up_for() -> None:
    job = begin_job([begin("h:gpu0", started_at=0.0, baseline=NO_BASELINE)])
    for sample in every_second(120, 200):
        job = observe_job(job, [sample])
    now = judge_job(job)
    assert announcement(now, now, set()) is not None
    assert announcement(now, now, {AnnouncementKind.WARNING}) is None


def test_cpu_beside_it_is_measured_over_the_window_itself() -> None:
    samples = [
        replace(sample, cpu_s=Value(100.0 + 4.8 * sample.at, sample.at, "proc", Scope.PROCESS))
        for sample in every_second(120, 176)
    ]
    end, _ = run_job([samples])
    assert end.cpu is not None
    assert end.cpu.span_s == 56.0
    assert end.cpu.cpu_s == pytest.approx(4.8 * 56)
    assert end.words.endswith("; 4.8 cores beside it (269 CPU-seconds over 56 s)")
    fallen = [replace(s, cpu_s=Value(500.0 - s.at, s.at, "proc", Scope.PROCESS)) for s in samples]
    assert run_job([fallen])[0].cpu is None


def cpu(at_s: float) -> Value[float]:
    return Value(100.0 + 4.8 * at_s, at_s, "proc", Scope.PROCESS)


def test_the_line_at_the_end_of_a_run_is_short_and_says_what_was_looked_at() -> None:
    alike = [every_second(120, 200, device=f"h:gpu{n}") for n in range(4)]
    idle, _ = run_job([[replace(sample, cpu_s=cpu(sample.at)) for sample in samples] for samples in alike])
    assert idle.words == (  # up to the last look at the open files, 77 s after the first
        "no context on any of 4 (h:gpu0-3) at any of 78 instants over 77 s (largest gap 1.0 s); "
        "4.8 cores beside it (370 CPU-seconds over 77 s)"
    )
    working = [every_second(120, 200, device="h:gpu0", **WORKING)]
    partly, _ = run_job(working + [every_second(120, 200, device=f"h:gpu{n}") for n in range(1, 8)])
    assert partly.words == "partial 1/8: used 1 of 8 (h:gpu0), no context 7 of 8 (h:gpu1-7)"
    assert max(len(end.words) for end in (idle, partly)) + len("rc: GPU use: ") <= 160


def test_the_report_says_the_same_of_several_devices_once_and_everything_on_request() -> None:
    working = [every_second(120, 200, device="h:gpu0", **WORKING)]
    end, _ = run_job(working + [every_second(120, 200, device=f"h:gpu{n}") for n in range(1, 4)])
    short, full = explain(end), explain(end, verbose=True)
    assert short[0] == full[0] == "verdict: partial 1/4"
    assert [":".join(line.split(":")[:2]) for line in short[1:] if line[0] != " "] == ["h:gpu0", "h:gpu1-3"]
    assert [line for line in full if line.startswith("h:gpu")] == [f"{d.device}: {d.words}" for d in end.devices]
    assert sum("instrument: " in line for line in full) == sum(len(d.instruments) for d in end.devices)
    assert all(d.words in "\n".join(short) for d in end.devices)
    # What could not answer is never left out.
    blind, _ = run_job([every_second(120, 200, processes=no(Reason.TIMEOUT))])
    assert any("could not always answer: process list (81 of 81 times, timeout)" in line for line in explain(blind))


def test_a_lease_without_a_gpu_states_no_verdict() -> None:
    end = judge_job(begin_job([]), final=True)
    assert (end.verdict, end.words) == (Verdict.NOT_APPLICABLE, "not applicable: no GPU was leased")
    assert end == job_verdict([])
    assert (exit_code(end), strict_code(0, end), strict_code(3, end)) == (2, 0, 3)
    assert explain(end) == ["verdict: not applicable", "not applicable: no GPU was leased"]
    assert announcement(None, end, set()) is None
    assert job_verdict_from_dict(to_dict(end)) == end


@pytest.mark.parametrize(
    ("samples", "code"),
    [
        (every_second(120, 200, **WORKING), 0),
        (every_second(120, 200), 1),
        (every_second(120, 200, **IDLING), 1),
        (every_second(120, 130), 2),
    ],
)
def test_exit_codes(samples: list[DeviceSample], code: int) -> None:
    end, _ = run_job([samples])
    assert exit_code(end) == code
    assert strict_code(0, end) == code
    assert strict_code(7, end) == 7


def test_a_shortened_window_says_so_in_the_line_and_in_full_once_in_the_report() -> None:
    short = Limits(grace_s=0, span_s=2, samples=4, max_gap_s=1)
    end, _ = run_job([[at(t / 2) for t in range(10)]], limits=short)
    assert end.verdict is Verdict.NO_CONTEXT
    assert "; shortened window" in end.words
    said = "shortened window: at least 4 samples over at least 2 s, after a grace of 0 s, gaps up to 1 s"
    for lines in (explain(end), explain(end, verbose=True)):
        assert [said in line for line in lines].count(True) == 1
    longer = job_verdict([judge(every_second(120, 300), limits=Limits(span_s=120))])
    assert "changed window" in longer.words
    assert "changed window: at least 8 samples over at least 120 s" in explain(longer)[-1]
    assert "window" not in job_verdict([judge(every_second(120, 300))]).words
    assert short.look_every_s == 0.5
    assert Limits().look_every_s == 7.0


@pytest.mark.parametrize("wrong", [{"samples": 1}, {"span_s": 0}, {"grace_s": -1}, {"max_gap_s": 5}])
def test_limits_that_prove_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"samples|max_gap_s"):
        Limits(**wrong)


def test_what_is_not_leased_to_the_job_is_refused() -> None:
    with pytest.raises(ValueError, match="not leased"):
        observe_job(begin_job([begin("h:gpu0", started_at=0.0, baseline=AT_REST)]), [at(1.0, device="h:gpu7")])


def test_json_of_another_version_is_read_or_refused_by_path() -> None:
    told = to_dict(judge_job(begin_job([begin("h:gpu0", started_at=0.0, baseline=AT_REST)])))
    told["from_a_later_version"] = 1
    del told["changes_dropped"]
    assert job_verdict_from_dict(told).verdict is Verdict.UNKNOWN
    told["devices"][0]["limits"]["span_s"] = "long"
    with pytest.raises(ValueError, match=r"JobVerdict\.devices\[0\]\.limits\.span_s"):
        job_verdict_from_dict(told)


def test_the_state_stays_small_over_a_day_and_an_instant_is_cheap() -> None:
    state = begin("h:gpu0", started_at=0.0, baseline=NO_BASELINE)
    crowd = [Processes(foreign=(ListedProcess(pid),)) for pid in range(200, 240)]
    samples = [at(float(t), look=t % 7 == 0, processes=crowd[t % 40]) for t in range(5000)]
    started = time.perf_counter()
    state = fold(state, samples)
    each = (time.perf_counter() - started) / len(samples)
    assert len(state.contenders) == 8
    assert len(repr(state)) < 6000
    assert each < 0.002  # a bound far above what it takes, so that a busy machine does not fail it
