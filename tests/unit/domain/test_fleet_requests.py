"""What users ask of the fleet core, and what it answers: keys, refusals with what to do, and ends in the queue."""

from __future__ import annotations

from typing import Any

from tests.unit.domain.test_fleet import Fleet, offered, register

from tenure.domain import commands as cmd
from tenure.domain.fleet import Outcomes, submitted_job
from tenure.domain.job import Ending, JobSpec, JobState
from tenure.domain.refusal import Refusal


def ask(fleet: Fleet, job: str, *, key: str | None = None, body: str = "", wait: bool = True, **spec: Any) -> Outcomes:
    return fleet.tell(cmd.Submit(job, "ann", JobSpec(("true",), **spec), key, body, wait))


def refusal(done: Outcomes) -> Refusal:
    assert done.refusal is not None
    assert done.events == []
    return done.refusal


def test_a_key_stands_for_one_job_and_one_body() -> None:
    fleet = Fleet()
    first = cmd.Submit("j1", "ann", JobSpec(("true",)), "k", "same")
    assert submitted_job(first, fleet.state, fleet.tell(first).events) == "j1"
    again = cmd.Submit("j2", "ann", JobSpec(("true",)), "k", "same")
    done = fleet.tell(again)
    assert (done.refusal, done.events) == (None, [])
    assert submitted_job(again, fleet.state, done.events) == "j1"
    told = refusal(ask(fleet, "j3", key="k", body="other"))
    assert (told.code, told.facts) == ("key_reused", {"job": "j1"})
    assert set(fleet.state.jobs) == {"j1"}
    elsewhere = cmd.Submit("j4", "bob", JobSpec(("true",)), "k", "same")  # another's key is another key
    assert submitted_job(elsewhere, fleet.state, fleet.tell(elsewhere).events) == "j4"
    keyless = cmd.Submit("j5", "ann", JobSpec(("true",)))
    assert submitted_job(keyless, fleet.state, fleet.tell(keyless).events) == "j5"
    assert submitted_job(keyless, fleet.state, ()) == "j5"


def test_a_device_that_is_not_there_is_refused_with_those_that_are() -> None:
    told = refusal(ask(Fleet(cmd.Begin()), "j1", device="h:g9"))
    assert (told.code, told.do) == ("unknown_device", "the devices are: none yet; is an agent running?")
    fleet = Fleet(cmd.Begin(), register("a", offered(), offered("h:g1", "GPU-1")))
    told = refusal(ask(fleet, "j1", device="h:g9"))
    assert (told.do, told.facts["devices"]) == ("the devices are: h:g0, h:g1", ["h:g0", "h:g1"])


def test_more_devices_than_any_host_has_are_refused_and_as_many_are_not() -> None:
    fleet = Fleet(cmd.Begin(), register("a", offered(), offered("h:g1", "GPU-1")))
    refusal(ask(fleet, "j1", count=3))
    assert ask(fleet, "j2", count=2).refusal is None


def test_who_will_not_wait_is_told_what_is_in_the_way_of_at_most_eight() -> None:
    fleet = Fleet(cmd.Begin(), register("a", *(offered(f"h:g{n}", f"GPU-{n}") for n in range(9))))
    for number in range(9):
        assert ask(fleet, f"j{number}", wait=False).refusal is None
        assert fleet.state.jobs[f"j{number}"].state is JobState.STARTING
    told = refusal(ask(fleet, "j9", wait=False))
    listed = "; ".join(f"h:g{n} is busy" for n in range(8))
    assert (told.code, told.message) == ("busy", f"nothing that fits is free now: {listed}")
    assert told.do == "leave out --no-wait to queue for it"
    assert len(told.facts) == 9


def test_who_will_not_wait_for_two_is_not_given_one() -> None:
    fleet = Fleet(cmd.Begin(), register("a", offered(), offered("h:g1", "GPU-1")))
    fleet.submit("j1")
    assert refusal(ask(fleet, "j2", count=2, wait=False)).code == "busy"
    assert ask(fleet, "j3", wait=False).refusal is None


def test_who_will_not_wait_does_not_overtake_who_does() -> None:
    fleet = Fleet(cmd.Begin(), register("a", offered(), offered("h:g1", "GPU-1")))
    fleet.submit("j1")
    fleet.submit("j2", count=2)  # reserves the other one
    assert refusal(ask(fleet, "j3", wait=False)).code == "busy"
    assert ask(fleet, "j4", wait=False, priority=1).refusal is None


def test_a_job_is_cancelled_once() -> None:
    fleet = Fleet().running()
    assert refusal(fleet.tell(cmd.Cancel("j9", "ann", ""))).code == "conflict"
    (asked,) = fleet.tell(cmd.Cancel("j1", "ann", "late")).events
    assert (asked.kind, fleet.state.jobs["j1"].stop) == ("stop_requested", "cancelled by ann: late")
    assert fleet.tell(cmd.Cancel("j1", "ann", "")).events == []
    fleet.tell(fleet.ended())
    assert refusal(fleet.tell(cmd.Cancel("j1", "ann", ""))).code == "conflict"  # over, and its device not proved yet


def test_a_job_that_waits_is_over_at_once_when_it_is_cancelled_or_its_time_is_up() -> None:
    fleet = Fleet().running()
    fleet.submit("j2")
    fleet.submit("j3")
    fleet.tell(cmd.Cancel("j2", "ann", "late"))
    fleet.tell(cmd.ExpireQueued("j3", 60.0))
    cancelled, expired = (fleet.state.closed[job].outcome for job in ("j2", "j3"))
    assert cancelled is not None
    assert expired is not None
    assert (cancelled.ending, cancelled.cause, cancelled.detail) == (Ending.CANCELLED, "cancelled by ann", "late")
    assert (expired.ending, expired.detail) == (Ending.TIMED_OUT, "no device became free for it within 60 s")


def test_the_time_to_wait_binds_nothing_that_no_longer_waits() -> None:
    fleet = Fleet().running()
    assert fleet.tell(cmd.ExpireQueued("j1", 60.0)).events == []
    assert fleet.tell(cmd.ExpireQueued("j9", 60.0)).events == []
    assert fleet.state.jobs["j1"].state is JobState.RUNNING


def test_contact_is_lost_once() -> None:
    fleet = Fleet()
    assert fleet.tell(cmd.LoseContact("b", 15.0)).events == []
    assert [event.kind for event in fleet.tell(cmd.LoseContact("a", 15.0)).events] == ["contact_lost"]
    assert fleet.tell(cmd.LoseContact("a", 15.0)).events == []
