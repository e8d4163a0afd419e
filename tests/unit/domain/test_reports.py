"""Reports of an attempt: refusals, proofs in their own words, and what an end leaves open."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.domain.test_fleet import BUSY, UNKNOWN, Fleet

from tenure.domain import commands as cmd
from tenure.domain import events as ev
from tenure.domain.device import CLEAR, Condition
from tenure.domain.job import Ending, JobState, Outcome


def refuse(fleet: Fleet, why: str = "no room") -> None:
    job = fleet.state.jobs["j1"]
    fleet.tell(cmd.ReportRefused("a", "j1", job.attempt, fleet.tokens(), why, {"h:g0": CLEAR}))


def test_a_start_that_is_refused_three_times_ends_the_job() -> None:
    fleet = Fleet()
    fleet.submit()
    for number in (1, 2):
        refuse(fleet)
        job = fleet.state.jobs["j1"]
        assert (job.state, job.refusals, job.attempt) == (JobState.STARTING, number, number + 1)
    refuse(fleet, "still no room")
    outcome = fleet.state.closed["j1"].outcome
    assert outcome == Outcome(Ending.START_REFUSED, detail="refused 3 times, last: still no room")
    assert fleet.words == "ready"


def test_a_refusal_of_what_is_to_stop_is_the_cancel_before_anything_ran() -> None:
    fleet = Fleet()
    fleet.submit()
    fleet.tell(cmd.Cancel("j1", "ann", ""))
    refuse(fleet)
    outcome = fleet.state.closed["j1"].outcome
    assert outcome == Outcome(Ending.CANCELLED, cause="cancelled by ann", detail="before anything of it had run")


def test_a_job_that_was_cancelled_and_ended_otherwise_says_both() -> None:
    fleet = Fleet().running()
    fleet.tell(cmd.Cancel("j1", "ann", "late"))
    fleet.tell(fleet.ended(outcome=Outcome(Ending.SIGNALED, signal=15, detail="x", stats={"cpu_s": 1.0})))
    outcome = fleet.state.jobs["j1"].outcome
    assert outcome == Outcome(Ending.SIGNALED, None, 15, "cancelled by ann: late", "x", {"cpu_s": 1.0})


@pytest.mark.parametrize(
    ("seen", "proof"), [(CLEAR, "clear"), (Condition("clear", "no process, 0 MiB"), "no process, 0 MiB"), (BUSY, "bob")]
)
def test_a_release_is_told_with_its_proof(seen: Condition, proof: str) -> None:
    fleet = Fleet().running()
    events = fleet.tell(fleet.ended(proofs={"h:g0": seen})).events
    assert [event.proof for event in events if isinstance(event, ev.LeaseReleased)] == [proof]
    assert events[0].kind == "job_ended"  # the end first, then the release


def test_an_observed_end_of_which_the_device_cannot_tell_yet_is_no_quarantine() -> None:
    fleet = Fleet().running()
    fleet.tell(fleet.ended(proofs={"h:g0": UNKNOWN}))
    assert fleet.words == "ending (could not look)"


def test_a_second_look_that_sees_the_same_is_no_news() -> None:
    fleet = Fleet().running()
    fleet.tell(fleet.ended(proofs={"h:g0": UNKNOWN}))
    dirty = Condition("dirty", "512 MiB left")
    told = [[e.kind for e in fleet.tell(fleet.ended(proofs={"h:g0": seen})).events] for seen in (UNKNOWN, dirty, dirty)]
    assert told == [[], ["device_quarantined"], []]


def test_a_retired_device_whose_job_is_over_already_ends_it_no_second_time() -> None:
    fleet = Fleet().running()
    fleet.tell(fleet.ended(proofs={"h:g0": UNKNOWN}))
    told = fleet.tell(cmd.Operate("h:g0", "retire", "root", "it burnt")).refusal
    assert told is not None  # its host answers, though it cannot say what is on the device
    assert told.code == "conflict"
    assert told.message == "h:g0 is under a live lease of job j1, and its host answers"
    fleet.tell(cmd.LoseContact("a", 15.0))
    done = fleet.tell(cmd.Operate("h:g0", "retire", "root", "it burnt")).events
    assert [event.kind for event in done] == ["lease_released", "device_retired"]
    assert fleet.state.closed["j1"].outcome == Outcome(Ending.EXITED, 0)


def announce(fleet: Fleet, **use: Any) -> None:
    fleet.tell(cmd.ReportUse("a", "j1", 1, fleet.tokens(), use))


def test_a_verdict_of_another_attempt_or_after_the_end_is_not_taken() -> None:
    fleet = Fleet().running()
    announce(fleet, label="used")
    fleet.tell(fleet.ended())
    announce(fleet, label="no_context")
    assert fleet.state.jobs["j1"].use == {"label": "used"}
