"""Operators' acts, faults and recoveries by itself: what each may do to a device, and what none of them may."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.domain.test_fleet import Fleet, offered, register

from tenure.domain import commands as cmd
from tenure.domain.device import CLEAR, FLAP_WINDOW_S, Condition
from tenure.domain.instructions import StartJob, StopJob, floors, on_register
from tenure.domain.job import Ending, Outcome

DIRTY = Condition("dirty", "512 MiB left")
FAULT = Condition("fault", "gpu_lost: GPU is lost (15) (nvml)")
UNKNOWN = Condition("unknown", "could not look")
LOST = Outcome(Ending.LOST, cause="lost_cause_not_established")


def act(fleet: Fleet, what: str, device: str = "h:g0", reason: str = "because") -> str:
    """Does it; gives the code of the refusal, or nothing."""
    refusal = fleet.tell(cmd.Operate(device, what, "root", reason)).refusal
    return refusal.code if refusal is not None else ""


def look(fleet: Fleet, seen: Condition) -> None:
    fleet.tell(cmd.ReportDevice("a", "h:g0", fleet.state.devices["h:g0"].token, seen))


def test_a_drained_device_ends_its_job_and_takes_no_other_until_it_is_resumed() -> None:
    fleet = Fleet().running()
    fleet.submit("j2")
    assert act(fleet, "drain") == ""
    assert fleet.words == "busy"
    fleet.tell(fleet.ended(proofs={"h:g0": CLEAR}))
    assert fleet.words == "draining (because, by root)"
    assert str(fleet.state.jobs["j2"].state) == "queued"
    assert act(fleet, "resume") == ""
    assert str(fleet.state.jobs["j2"].state) == "starting"


def test_doing_what_is_done_already_changes_nothing() -> None:
    fleet = Fleet()
    act(fleet, "drain")
    version = fleet.state.version
    assert act(fleet, "drain") == ""
    act(fleet, "resume")
    assert act(fleet, "resume") == ""
    assert fleet.state.version == version + 1


@pytest.mark.parametrize(("what", "code"), [("clear", "conflict"), ("retire", "conflict"), ("melt", "invalid_request")])
def test_what_makes_no_sense_is_refused(what: str, code: str) -> None:
    assert act(Fleet(), what) == code


def test_an_act_needs_a_reason_and_a_device() -> None:
    assert act(Fleet(), "drain", reason="  ") == "invalid_request"
    assert act(Fleet(), "drain", "h:g9") == "unknown_device"


def test_an_operators_word_is_ended_by_an_operator_only() -> None:
    fleet = Fleet()
    act(fleet, "quarantine", reason="fan")
    look(fleet, CLEAR)
    fleet.tell(register())
    assert fleet.words == "unhealthy (operator: fan, by root)"
    assert act(fleet, "resume") == "conflict"
    assert act(fleet, "clear") == ""
    assert fleet.words == "ready"


def test_no_quarantine_is_cleared_by_hand_under_a_live_lease() -> None:
    fleet = Fleet().running()
    fleet.tell(fleet.ended(proofs={"h:g0": DIRTY}))
    assert act(fleet, "clear") == "conflict"
    assert fleet.words == "unhealthy (dirty: 512 MiB left)"


def test_clearing_by_hand_makes_nothing_free_that_was_not_seen_clear() -> None:
    fleet = Fleet()
    look(fleet, FAULT)
    assert fleet.words == f"unhealthy (fault: {FAULT.detail})"
    look(fleet, UNKNOWN)
    look(fleet, CLEAR)
    assert fleet.words == f"unhealthy (fault: {FAULT.detail})"  # it may be back: nobody has said that it is well
    look(fleet, FAULT)
    act(fleet, "clear")
    assert fleet.state.devices["h:g0"].state == "unknown"
    look(fleet, CLEAR)
    assert fleet.words == "ready"


def test_a_fault_found_at_a_jobs_end_keeps_the_lease_until_its_proof() -> None:
    fleet = Fleet().running()
    fleet.tell(fleet.ended(proofs={"h:g0": FAULT}))
    assert fleet.words == f"unhealthy (fault: {FAULT.detail})"
    assert fleet.state.devices["h:g0"].lease is not None
    fleet.tell(fleet.ended(proofs={"h:g0": CLEAR}))
    assert fleet.state.devices["h:g0"].lease is None
    assert fleet.words == f"unhealthy (fault: {FAULT.detail})"


def test_a_fault_is_told_at_registration_too_and_outranks_what_clears_itself() -> None:
    fleet = Fleet().running()
    fleet.tell(fleet.ended(proofs={"h:g0": DIRTY}))
    fleet.tell(register("a", offered(seen=FAULT)))
    assert fleet.words.startswith("unhealthy (fault: ")


def test_a_lost_job_that_nobody_can_account_for_quarantines_until_the_proof() -> None:
    fleet = Fleet().running()
    fleet.tell(fleet.ended(outcome=LOST, proofs={"h:g0": UNKNOWN}))
    assert fleet.words == "unhealthy (worker_lost: could not look)"
    fleet.tell(fleet.ended(outcome=LOST, proofs={"h:g0": CLEAR}))
    assert fleet.words == "ready"


def flap(fleet: Fleet, job: str) -> None:
    """One job that leaves something behind, which goes a moment later."""
    fleet.submit(job)
    found = fleet.state.jobs[job]
    end = {"job": job, "attempt": found.attempt}
    fleet.tell(fleet.ended(**end, proofs={"h:g0": DIRTY}))
    fleet.tell(fleet.ended(**end, proofs={"h:g0": CLEAR}))


def test_three_recoveries_within_an_hour_are_the_last_by_itself() -> None:
    fleet = Fleet()
    for job in ("j1", "j2", "j3"):
        flap(fleet, job)
        assert fleet.words == "ready"
    flap(fleet, "j4")
    assert "somebody has to clear it" in fleet.words
    look(fleet, CLEAR)
    fleet.tell(register())
    assert fleet.words.startswith("unhealthy (dirty: 512 MiB left; it recovered by itself 3 times")
    fleet.now += 10 * FLAP_WINDOW_S
    look(fleet, CLEAR)  # the hour is over, and still somebody has to
    assert fleet.state.devices["h:g0"].state == "unhealthy"
    assert act(fleet, "clear") == ""
    flap(fleet, "j5")  # counted from the hand that cleared it
    assert fleet.words == "ready"


def test_recoveries_further_apart_never_add_up() -> None:
    fleet = Fleet()
    for number in range(9):
        flap(fleet, f"j{number}")
        assert fleet.words == "ready", number
        fleet.now += FLAP_WINDOW_S / 2.9


def test_retiring_a_silent_hosts_device_ends_its_job_and_its_tokens_go_on() -> None:
    fleet = Fleet().running()
    token = fleet.state.devices["h:g0"].token
    assert act(fleet, "retire") == "conflict"  # its host answers
    fleet.tell(cmd.LoseContact("a", 15.0))
    assert act(fleet, "retire", reason="it burnt") == ""
    assert "h:g0" not in fleet.state.devices
    job = fleet.state.closed["j1"]
    assert job.outcome is not None
    assert (job.outcome.ending, job.outcome.cause) == (Ending.LOST, "declared_gone")
    assert job.outcome.detail == "root declared h:g0 gone: it burnt"
    # It had not burnt. Its host comes back with the job running: told to end it, and nothing is free meanwhile.
    fleet.tell(register("a", offered(seen=Condition("occupied", "j1#1 is not proved gone"), high_water=token)))
    known = [cmd.KnownAttempt("j1", 1, {"h:g0": token})]
    assert [type(told) for told in on_register(fleet.state, "a", known)] == [StopJob]
    assert fleet.words.startswith("occupied")
    look(fleet, CLEAR)
    fleet.submit("j2")
    assert fleet.state.devices["h:g0"].token > token


def test_floors_leave_out_what_may_still_have_to_be_started() -> None:
    fleet = Fleet()
    fleet.submit()
    token = fleet.state.devices["h:g0"].token
    assert floors(fleet.state, "a", []) == {"GPU-0": token - 1}
    assert floors(fleet.state, "a", [cmd.KnownAttempt("j1", 1, fleet.tokens())]) == {"GPU-0": token}
    fleet.tell(cmd.ReportStarted("a", "j1", 1, fleet.tokens(), 51))
    assert floors(fleet.state, "a", []) == {"GPU-0": token}


def test_what_may_have_run_in_a_boot_that_left_no_record_is_stopped_and_not_started_again() -> None:
    fleet = Fleet()
    fleet.submit()
    token = fleet.state.devices["h:g0"].token
    again = replace(register(), boot_id="another")
    fleet.tell(again)
    (told,) = on_register(fleet.state, "a", (), forgetful=True)
    assert isinstance(told, StopJob)
    assert floors(fleet.state, "a", (), forgetful=True) == {"GPU-0": token}
    # A host that keeps its record through a reboot would know of it: there it was never accepted.
    assert [type(one) for one in on_register(fleet.state, "a", ())] == [StartJob]
    assert floors(fleet.state, "a", ()) == {"GPU-0": token - 1}
    fleet.tell(register())  # and in the same boot nothing was lost
    assert [type(one) for one in on_register(fleet.state, "a", (), forgetful=True)] == [StartJob]
