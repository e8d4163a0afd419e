"""What a device allows its jobs: refused beyond it and never cut down, by name, by selector, and when it changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.domain.test_fleet import Fleet

from tenure.domain import commands as cmd
from tenure.domain.bounds import Limits
from tenure.domain.ceilings import Ceilings, ceilings_from, limits_of
from tenure.domain.device import CLEAR
from tenure.domain.explain import reasons, waiting
from tenure.domain.fleet import Outcomes
from tenure.domain.job import JobSpec, JobState
from tenure.domain.refusal import Refusal
from tenure.domain.state import need_of, objection_of

CAPPED = {"max_runtime": 3600, "max_runtime_ceiling": 7200, "idle_ceiling": 1800}
STRICT = {"require_max_runtime": True, "max_runtime_ceiling": 86400}


def offered(name: str, **bounds: Any) -> cmd.OfferedDevice:
    facts = {"model": "H100", **({"bounds": bounds} if bounds else {})}
    labels = {"class": {"value": "train", "source": "declared", "at": 1.0}}
    return cmd.OfferedDevice(name, f"GPU-{name}", "nvidia", False, 0, CLEAR, labels, facts)


def registered(*devices: cmd.OfferedDevice) -> cmd.Register:
    return cmd.Register("a", "h", "boot", "ns", "run", "ann", devices, ())


def fleet(*devices: cmd.OfferedDevice) -> Fleet:
    return Fleet(cmd.Begin(), registered(*devices))


def ask(fleet: Fleet, job: str = "j1", **spec: Any) -> Outcomes:
    return fleet.tell(cmd.Submit(job, "ann", JobSpec(("true",), **spec)))


def refused(done: Outcomes) -> Refusal:
    assert done.refusal is not None
    assert done.events == []
    return done.refusal


@pytest.mark.parametrize(
    ("spec", "words", "do"),
    [
        ({"max_runtime_s": 7201.0}, "at most 2 h, and 2 h 1 s was asked for", "--max-runtime 2h"),
        ({"max_runtime_s": 0.0}, "a max runtime of at most 2 h, and 0 is no bound", "--max-runtime 2h"),
        ({"idle_timeout_s": 1801.0}, "at most 30 min, and 30 min 1 s was asked for", "--idle-timeout 30m"),
        ({"idle_timeout_s": 0.0}, "an idle timeout of at most 30 min, and 0 is no bound", "--idle-timeout 30m"),
    ],
)
def test_beyond_a_ceiling_is_refused_with_the_device_the_bound_the_numbers_and_what_to_type(
    spec: dict[str, Any], words: str, do: str
) -> None:
    told = refused(ask(fleet(offered("h:g0", **CAPPED)), device="h:g0", **spec))
    assert told.code == "bound_refused"
    assert told.message.startswith("h:g0 allows ")
    assert told.message.endswith(words)
    assert told.do.endswith(do)
    ((bound, asked),) = ((name.removesuffix("_s"), value) for name, value in spec.items())
    assert (told.facts["device"], told.facts["bound"], told.facts["asked"]) == ("h:g0", bound, asked)
    assert told.facts["ceiling"] == (7200 if bound == "max_runtime" else 1800)


def test_at_the_ceiling_and_left_out_are_taken_as_they_are() -> None:
    capped = fleet(offered("h:g0", **CAPPED))
    assert ask(capped, device="h:g0", max_runtime_s=7200.0, idle_timeout_s=1800.0).refusal is None
    assert ask(capped, "j2", device="h:g0").refusal is None
    assert capped.state.jobs["j1"].spec.max_runtime_s == 7200.0
    assert capped.state.jobs["j2"].spec.max_runtime_s is None


@pytest.mark.parametrize("asked", [None, 0.0])
def test_a_max_runtime_that_is_required_must_be_given(asked: float | None) -> None:
    told = refused(ask(fleet(offered("h:g0", **STRICT)), device="h:g0", max_runtime_s=asked))
    assert (told.code, told.facts["required"]) == ("bound_refused", True)
    assert told.message.startswith("h:g0 requires a max runtime")
    assert told.do.endswith("--max-runtime 1d")
    assert ask(fleet(offered("h:g0", **STRICT)), device="h:g0", max_runtime_s=60.0).refusal is None


def test_devices_that_do_not_allow_a_job_do_not_match_it_and_say_so() -> None:
    mixed = fleet(offered("h:g0", **CAPPED), offered("h:g1", **STRICT), offered("h:g2"))
    spec = JobSpec(("true",), select="class=train", max_runtime_s=10_000.0)
    assert reasons(mixed.state, need_of(spec)) == {
        "h:g0": "allows a max runtime of at most 2 h, and 2 h 46 min 40 s was asked for",
        "h:g1": "matches",
        "h:g2": "matches",
    }
    ask(mixed, "j1", select="class=train", max_runtime_s=10_000.0)
    ask(mixed, "j2", max_runtime_s=10_000.0)
    ask(mixed, "j3", select="class=train", max_runtime_s=10_000.0)
    assert mixed.state.jobs["j1"].devices == ("h:g1",)
    assert mixed.state.jobs["j2"].devices == ("h:g2",)
    assert mixed.state.jobs["j3"].state is JobState.QUEUED, "though h:g0 is free"
    assert mixed.state.devices["h:g0"].words == "ready"
    ask(mixed, "j4", select="class=train", max_runtime_s=5.0)
    assert mixed.state.jobs["j4"].devices == ("h:g0",)


def test_where_none_that_fits_allows_it_the_refusal_lists_each_with_what_it_allows() -> None:
    both = fleet(offered("h:g0", **CAPPED), offered("h:g1", **STRICT))
    told = refused(ask(both, select="class=train", max_runtime_s=100_000.0))
    assert told.code == "bound_refused"
    assert "h:g0 allows a max runtime of at most 2 h" in told.message
    assert "h:g1 allows a max runtime of at most 1 d" in told.message
    assert "--max-runtime 2h" in told.message
    assert "--max-runtime 1d" in told.message
    two = refused(ask(both, count=2, max_runtime_s=10_000.0))
    assert (two.code, set(two.facts["devices"])) == ("bound_refused", {"h:g0"})
    assert refused(ask(both, select="class=none", max_runtime_s=100_000.0)).code == "no_matching_device"
    assert refused(ask(both, device="h:g9", max_runtime_s=100_000.0)).code == "unknown_device"


def test_ceilings_that_change_hold_for_what_waits_and_not_for_what_runs() -> None:
    busy = fleet(offered("h:g0"))
    ask(busy, "j1", device="h:g0")
    ask(busy, "j2", device="h:g0", max_runtime_s=10_000.0)
    ask(busy, "j3", device="h:g0", max_runtime_s=60.0)
    assert [busy.state.jobs[job].state for job in ("j1", "j2", "j3")] == ["starting", "queued", "queued"]
    busy.tell(cmd.ReportStarted("a", "j1", 1, busy.tokens("h:g0"), 51))
    busy.tell(registered(offered("h:g0", **CAPPED)))
    assert busy.state.jobs["j1"].state is JobState.RUNNING
    busy.tell(busy.ended(job="j1", proofs={"h:g0": CLEAR}, tokens=busy.tokens("h:g0")))
    assert busy.state.jobs["j3"].devices == ("h:g0",), "j2 was first, and is not allowed there any more"
    assert busy.state.jobs["j2"].state is JobState.QUEUED
    _, why = waiting(busy.state, busy.state.jobs["j2"])
    assert why == (
        "no device that fits allows its bounds now: h:g0 allows a max runtime of at most 2 h, and 2 h 46 min 40 s was "
        "asked for"
    )
    busy.tell(cmd.ReportStarted("a", "j3", 1, busy.tokens("h:g0"), 52))
    busy.tell(busy.ended(job="j3", proofs={"h:g0": CLEAR}, tokens=busy.tokens("h:g0")))
    busy.tell(registered(offered("h:g0")))
    assert busy.state.jobs["j2"].devices == ("h:g0",), "allowed again"


# -- what holds where nothing is asked for -----------------------------------------------------------------------------


def test_a_bound_left_out_is_the_strictest_default_of_the_devices_and_a_ceiling_is_one() -> None:
    capped, loose = Ceilings.of({"bounds": CAPPED}), Ceilings.of({})
    assert limits_of(JobSpec(("true",)), [loose]) == Limits()
    assert limits_of(JobSpec(("true",)), [loose, capped]) == Limits(3600.0, 1800.0)
    assert limits_of(JobSpec(("true",), max_runtime_s=7000.0, idle_timeout_s=0.0), [loose]) == Limits(7000.0, 0.0)
    assert limits_of(JobSpec(("true",), idle_signal="output"), [capped, Ceilings(idle_timeout_s=60.0)]) == Limits(
        3600.0, 60.0, "output"
    )
    assert capped.words == ("1 h by default, at most 2 h", "30 min by default, at most 30 min")
    assert Ceilings.of({"bounds": STRICT}).words == ("to be given with --max-runtime, at most 1 d", "none by default")


def test_settings_are_read_as_seconds_or_as_people_write_them() -> None:
    told = ceilings_from(
        {"max_runtime": "90m", "max_runtime_ceiling": "2h", "idle_timeout": 30, "idle_ceiling": "0.5d"}
    )
    assert told == Ceilings(5400.0, 7200.0, 30.0, 43_200.0)
    assert Ceilings.of({"bounds": told.facts}) == told


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_runtme": 3}, "has no 'max_runtme'"),
        ({"max_runtime": "soon"}, "max_runtime 'soon'"),
        ({"max_runtime": -1}, "max_runtime -1"),
        ({"max_runtime": True}, "max_runtime True"),
        ({"idle_ceiling": 0}, "a ceiling of 0 for idle_timeout"),
        ({"idle_timeout": "2h", "idle_ceiling": "1h"}, "its own ceiling of 3600 s does not allow"),
        ({"max_runtime": 0, "max_runtime_ceiling": "1h"}, "its own ceiling of 3600 s does not allow"),
        ({"require_max_runtime": "yes"}, "neither true nor false"),
    ],
)
def test_settings_that_cannot_hold_are_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ceilings_from(settings)


def test_facts_that_make_no_sense_bind_nobody() -> None:
    assert Ceilings.of({"bounds": ["1h"]}) == Ceilings()
    assert Ceilings.of({"bounds": {"max_runtime_ceiling": "1h", "require_max_runtime": 1}}) == Ceilings()


# -- in the queue ------------------------------------------------------------------------------------------------------

CEILINGS = (None, 60, 3600, 7200)
ASKED = st.one_of(st.none(), st.sampled_from([0.0, 59.0, 60.0, 61.0, 3600.0, 7199.0, 7201.0, 1e6]))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_jobs_share_a_class_just_where_the_same_devices_allow_them_however_ceilings_change(data: st.DataObject) -> None:
    def draw(name: str) -> cmd.OfferedDevice:
        keys = ("max_runtime_ceiling", "idle_ceiling")
        bounds = {key: data.draw(st.sampled_from(CEILINGS), label=f"{name} {key}") for key in keys}
        told: dict[str, Any] = {key: value for key, value in bounds.items() if value is not None}
        if data.draw(st.booleans(), label=f"{name} requires"):
            told["require_max_runtime"] = True
        return offered(name, **told)

    names = ("h:g0", "h:g1")
    # After each step the state validates its own indexes; most jobs wait, as there are three devices.
    busy = fleet(offered("h:free"), *map(draw, names))
    for number in range(data.draw(st.integers(2, 12))):
        ask(busy, f"j{number}", max_runtime_s=data.draw(ASKED), idle_timeout_s=data.draw(ASKED))
        if number % 4 == 3:
            busy.tell(registered(offered("h:free"), *map(draw, names)))
    devices = busy.state.devices
    for job in busy.state.jobs.values():
        exact = {n for n, d in devices.items() if objection_of(d, need_of(job.spec)) is None}
        assert busy.state.match(busy.state.need_of(job), devices.values()) == exact, (job.spec, devices)
        if job.state is JobState.QUEUED:
            assert busy.state.queue.classes[busy.state.need_of(job)].fits == exact


def test_a_thousand_different_max_runtimes_are_one_class_where_no_ceiling_tells_them_apart() -> None:
    busy = fleet(offered("h:g0"), offered("h:g1", **CAPPED))
    for number in range(200):
        ask(busy, f"j{number}", max_runtime_s=7100.0 + number)
    assert len(busy.state.queue.classes) == 2, "up to 2 h, and above"
    busy.tell(registered(offered("h:g0", max_runtime_ceiling=7150), offered("h:g1", **CAPPED)))
    assert len(busy.state.queue.classes) == 3
    assert busy.state.queue.length == 198
