"""When a job is warned and when it is ended: told one look at a time, and by every history Hypothesis thinks of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.unit.domain.bounds_naive import expected

from tenure.domain.bounds import Instant, Limits, Stop, Warn, Watch, decide, due, spell, warned
from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value

IDLE = Limits(idle_timeout_s=10.0)


def ok(value: Any, at: float = 0.0) -> Value[Any]:
    return Value(value, at, "probe", Scope.PROCESS)


def no(detail: str = "hidden", at: float = 0.0) -> Unavailable:
    return Unavailable(Reason.NO_PERMISSION, at, "probe", Scope.PROCESS, detail)


def look(at: float, output: int = 0, cpu: float = 0.0, gpu: Reading[float] | None = None) -> Instant:
    return Instant(at, at, ok(output), ok(cpu), gpu)


@dataclass
class Job:
    """A watch that is fed looks; ``told`` is what it asked for, by the time of the look."""

    limits: Limits = IDLE
    keeps: bool = True
    watch: Watch = field(init=False)
    told: list[tuple[float, Warn | Stop]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = Watch(self.limits)

    def look(self, *looks: Instant) -> Job:
        for one in looks:
            self.watch, decision = decide(self.watch, one)
            if decision is not None:
                self.told.append((one.at, decision))
            if isinstance(decision, Warn) and self.keeps:
                self.watch = warned(self.watch, one.at)
        return self

    @property
    def kinds(self) -> list[tuple[float, str]]:
        return [(at, type(one).__name__) for at, one in self.told]


def every(step: float, end: float, **what: Any) -> Iterator[Instant]:
    return (look(number * step, **what) for number in range(int(end / step) + 1))


def test_an_idle_job_is_warned_at_four_fifths_and_ended_at_the_span_with_its_numbers() -> None:
    job = Job().look(*every(0.5, 10))
    assert job.kinds == [(8.0, "Warn"), (10.0, "Stop")]
    (_, warning), (_, stop) = job.told
    assert isinstance(warning, Warn)
    assert warning.words == (
        "no output, no CPU work (0.00 s of CPU) for 8.0 s: the idle timeout of 10 s ends it in 2.0 s unless it does "
        "something"
    )
    assert warning.facts == {
        "bound": "idle_timeout",
        "idle_s": 8.0,
        "idle_timeout_s": 10.0,
        "idle_signal": "work",
        "left_s": 2.0,
    }
    assert isinstance(stop, Stop)
    assert stop.reason == "idle timeout of 10 s reached: no output, no CPU work (0.00 s of CPU) for 10.0 s"


def test_a_warning_that_could_not_be_kept_is_asked_for_again_and_nothing_ends_without_it() -> None:
    job = Job(keeps=False).look(*every(0.5, 30))
    assert {kind for _, kind in job.kinds} == {"Warn"}
    job.keeps = True
    job.look(look(30.5), look(31.0), look(32.0), look(32.4), look(32.6))
    assert job.kinds[-2:] == [(30.5, "Warn"), (32.6, "Stop")], "a fifth of the span is waited out from the warning on"


def test_work_after_the_warning_takes_it_back_and_the_next_idle_time_is_warned_of_anew() -> None:
    job = Job().look(*every(0.5, 9), look(9.5, output=1))
    job.look(*(look(9.5 + number / 2, output=1) for number in range(1, 21)))
    assert job.kinds == [(8.0, "Warn"), (17.5, "Warn"), (19.5, "Stop")]


@pytest.mark.parametrize(
    "reading", [{"output": no()}, {"cpu_s": no()}, {"gpu": no()}, {"cpu_s": ok(-1.0)}], ids=lambda r: next(iter(r))
)
def test_what_could_not_be_read_counts_as_work(reading: dict[str, Any]) -> None:
    job = Job()
    for number in range(100):
        body = {"output": ok(0), "cpu_s": ok(5.0), "gpu": ok(-1.0, number / 2)}
        body |= reading if number % 16 == 15 else {}
        job.look(Instant(number / 2, number / 2, **body))
    assert job.kinds == []
    assert job.watch.unread, "and what it was is kept for the record"


def test_with_the_signal_output_neither_cpu_nor_gpu_keeps_a_job_alive() -> None:
    job = Job(Limits(idle_timeout_s=10, idle_signal="output"))
    job.look(*(look(n / 2, cpu=float(n), gpu=no()) for n in range(21)))
    assert job.kinds == [(8.0, "Warn"), (10.0, "Stop")]
    assert isinstance(job.told[1][1], Stop)
    assert job.told[1][1].reason == "idle timeout of 10 s reached: no output for 10.0 s"


@pytest.mark.parametrize(
    ("share", "outlives"),
    [(0.0, False), (0.002, False), (0.005, False), (0.02, True), (1.0, True)],
)
def test_steady_cpu_work_of_two_per_cent_is_work_and_half_a_per_cent_is_not(share: float, outlives: bool) -> None:
    limits = Limits(idle_timeout_s=600)
    job = Job(limits).look(*(look(30.0 * n, cpu=30.0 * n * share) for n in range(100)))
    assert ("Stop" not in {kind for _, kind in job.kinds}) == outlives


def test_a_compiler_run_every_few_seconds_is_work_on_any_span() -> None:
    for span_s in (10.0, 60.0, 3600.0):
        limits = Limits(idle_timeout_s=span_s)
        steps = int(3 * span_s / limits.pace_s)
        looks = (look(limits.pace_s * n, cpu=0.05 * int(limits.pace_s * n / 3)) for n in range(steps))
        assert Job(limits).look(*looks).kinds == [], span_s


def test_time_in_which_nobody_looked_is_not_idle_time() -> None:
    job = Job().look(*every(0.5, 7.5), look(100.0))
    assert job.kinds == []
    job.look(*(look(100 + n / 2) for n in range(1, 21)))
    assert job.kinds == [(108.0, "Warn"), (110.0, "Stop")]
    assert job.watch.unread["looks"] == "nobody looked for 92.5 s"


def test_an_end_rests_on_a_gpu_only_as_far_as_it_was_sampled() -> None:
    job = Job().look(*(look(n / 2, gpu=ok(-1.0, min(n / 2, 9.0))) for n in range(24)))
    assert job.kinds == [(8.0, "Warn")], "its last sample is of second 9"
    job.look(look(12.0, gpu=ok(-1.0, 11.9)))
    assert job.kinds == [(8.0, "Warn"), (12.0, "Stop")]
    assert "and no GPU work for 11.9 s" in str(job.told[1][1])


def test_a_look_that_is_not_later_changes_nothing() -> None:
    job = Job().look(look(1.0), look(5.0))
    watch = job.watch
    assert job.look(look(5.0, output=9), look(4.0, output=9)).watch == watch


def test_the_max_runtime_counts_from_the_start_and_needs_no_warning() -> None:
    job = Job(Limits(max_runtime_s=10))
    job.look(Instant(500.0, 9.99, ok(0)), Instant(500.02, 10.01, ok(0)))
    ((_, stop),) = job.told
    assert stop == Stop("max runtime of 10 s reached: ran 10.0 s")


def test_the_next_look_is_at_the_next_thing_that_may_be_due() -> None:
    runtime = Job(Limits(max_runtime_s=3600)).look(Instant(100.0, 40.0, ok(0)))
    assert due(runtime.watch) == 100 + 3560, "a max runtime alone is one timer"
    idle = Job(Limits(idle_timeout_s=600)).look(look(0.0))
    assert due(idle.watch) == 30.0
    idle.look(*(look(30.0 * n) for n in range(1, 16)), look(470.0))
    assert due(idle.watch) == 480.0, "the warning, on time"
    idle.look(look(480.0), look(510), look(540), look(570), look(590))
    assert due(idle.watch) == 600.0
    assert due(Watch(Limits())) is None
    assert due(Watch(IDLE)) == 0.0
    unkept = Job(keeps=False).look(*every(0.5, 8))
    assert due(unkept.watch) == 8.5, "what could not be kept is tried again soon"


def test_lengths_of_time_in_words() -> None:
    said = {s: spell(s) for s in (0.5, 10.0, 119.0, 120.0, 3600.0, 9000.0, 90061.0)}
    assert list(said.values()) == ["0.5 s", "10 s", "119 s", "2 min", "1 h", "2 h 30 min", "1 d 1 h 1 min 1 s"]


# -- every history -----------------------------------------------------------------------------------------------------

STEPS = st.sampled_from([0.25, 0.5, 0.5, 0.5, 1.0, 1.5, 2.75, 9.0, 40.0])
OUTPUT = st.sampled_from([0] * 12 + [7, None])
CPU = st.sampled_from([0.0] * 8 + [0.01, 0.01, 0.04, 0.06, 1.0, -0.02, None])
GPU = st.sampled_from(["quiet"] * 12 + ["work", "lost"])


@st.composite
def histories(draw: st.DrawFn) -> tuple[Limits, list[Instant], list[bool]]:
    limits = Limits(
        draw(st.sampled_from([0.0, 0.0, 0.0, 25.0])),
        draw(st.sampled_from([0.0, 1.0, 4.0, 10.0, 60.0])),
        draw(st.sampled_from(["work", "work", "output"])),
    )
    with_gpu = draw(st.booleans())
    at, output, cpu, quiet = 100.0, 0, 0.0, 0.0
    looks: list[Instant] = []
    for step in draw(st.lists(STEPS, min_size=1, max_size=60)):
        at += step
        grown, burnt, state = draw(OUTPUT), draw(CPU), draw(GPU)
        output, cpu = output + (grown or 0), cpu + (burnt or 0.0)
        sampled = at - draw(st.sampled_from([0.0, 0.2]))
        quiet = sampled if state == "work" or not looks else quiet
        gpu: Reading[float] | None = no("lost", sampled) if state == "lost" else ok(quiet, sampled)
        read = no() if grown is None else ok(output), no() if burnt is None else ok(cpu)
        looks.append(Instant(at, at - 99.0, *read, gpu if with_gpu else None))
    return limits, looks, draw(st.lists(st.booleans(), min_size=len(looks), max_size=len(looks)))


@settings(max_examples=600, deadline=None)
@given(histories())
def test_every_history_is_decided_as_the_slow_way_decides_it(history: tuple[Limits, list[Instant], list[bool]]) -> None:
    limits, looks, kept = history
    watch, confirmed = Watch(limits), list[float | None]()
    for number, one in enumerate(looks):
        watch, decision = decide(watch, one)
        wanted = expected(limits, looks[: number + 1], confirmed)
        said = {Warn: "warn", Stop: "stop"}.get(type(decision), "nothing")
        assert said == wanted, (number, one, decision)
        event(said)
        confirmed.append(one.at if isinstance(decision, Warn) and kept[number] else None)
        if confirmed[-1] is not None:
            watch = warned(watch, one.at)


@settings(max_examples=600, deadline=None)
@given(histories())
def test_no_idle_job_is_ended_without_its_warning_a_wait_and_a_whole_span_of_nothing(
    history: tuple[Limits, list[Instant], list[bool]],
) -> None:
    limits, looks, kept = history
    watch, confirmed = Watch(limits), -1
    for number, one in enumerate(looks):
        watch, decision = decide(watch, one)
        if isinstance(decision, Warn) and kept[number]:
            watch, confirmed = warned(watch, one.at), number
        if not isinstance(decision, Stop):
            continue
        if decision.reason.startswith("max runtime"):
            assert limits.max_runtime_s
            assert one.ran_s >= limits.max_runtime_s
            continue
        span = limits.idle_timeout_s
        assert confirmed >= 0, "ended without a warning that was kept"
        assert one.at - looks[confirmed].at >= 0.2 * span - 1e-9, "ended before the warning could be heeded"
        # The looks of the whole span before the end, and the one before them; and since the warning.
        first = max(n for n, earlier in enumerate(looks) if earlier.at <= one.at - span + 1e-9)
        first = min(first, confirmed)
        within = looks[first : number + 1]
        for before, after in itertools.pairwise(within):
            assert isinstance(before.output, Value)
            assert isinstance(after.output, Value)
            assert before.output.value == after.output.value, "ended with output in the span"
            assert after.at - before.at <= max(3.0, span / 5 + 2), "ended although nobody looked for a while"
            if limits.idle_signal == "work":
                assert isinstance(before.cpu_s, Value)
                assert isinstance(after.cpu_s, Value), "ended although its CPU work could not be read"
                burnt = after.cpu_s.value - before.cpu_s.value
                assert 0 <= burnt < max(0.05, 0.01 * (after.at - before.at)), "ended with CPU work in the span"
                assert after.gpu is None or isinstance(after.gpu, Value), "ended although its GPU work is unknown"
                assert after.gpu is None or after.gpu.value <= before.at, "ended with GPU work in the span"
        event("ended idle")
