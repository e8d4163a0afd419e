"""How a job's end reads, for shells and for people, and what a specification says where nothing was said."""

from __future__ import annotations

import pytest

from tenure.domain.job import Ending, Job, JobSpec, JobState, Lease, Outcome


@pytest.mark.parametrize(
    ("outcome", "status", "words"),
    [
        (Outcome(Ending.EXITED, 0), 0, "exited 0"),
        (Outcome(Ending.EXITED, 7, cause="cancelled by ann", detail="late"), 7, "exited 7 (cancelled by ann; late)"),
        (Outcome(Ending.SIGNALED, signal=15), 143, "ended by signal 15"),
        (Outcome(Ending.SPAWN_FAILED, 127, detail="no such file"), 127, "could not be started (127) (no such file)"),
        (Outcome(Ending.CANCELLED, cause="cancelled by ann"), 130, "cancelled (cancelled by ann)"),
        (Outcome(Ending.TIMED_OUT), 124, "timed out"),
        (Outcome(Ending.REQUIREMENT_NOT_MET, detail="no gcc"), 72, "requirement not met (no gcc)"),
        (Outcome(Ending.STAGE_FAILED), 74, "stage failed"),
        (Outcome(Ending.START_REFUSED), 71, "start refused"),
        (Outcome(Ending.LOST, cause="host_rebooted"), 71, "lost: host rebooted"),
        (Outcome(Ending.LOST, cause="declared_gone", detail="it burnt"), 71, "lost: declared gone (it burnt)"),
    ],
)
def test_an_end_has_one_status_and_one_phrase(outcome: Outcome, status: int, words: str) -> None:
    assert (outcome.exit_status, outcome.words) == (status, words)


def test_what_was_not_asked_for_is_one_device_any_of_them_and_no_bound() -> None:
    spec = JobSpec(("true",))
    assert (spec.device, spec.select, spec.count, spec.priority) == (None, "", 1, 0)
    assert (spec.queue_timeout_s, spec.grace_s, spec.max_runtime_s, spec.idle_timeout_s) == (None, 10.0, None, None)
    assert (spec.idle_signal, spec.needs, spec.keep, spec.passed) == ("work", (), False, ())


def test_a_job_that_nobody_has_granted_anything_has_no_attempt() -> None:
    job = Job("j1", "ann", JobSpec(("true",)), JobState.QUEUED, 2.5, (2.5, 1))
    assert (job.attempt, job.last_attempt, job.refusals, job.leases, job.version) == (0, 0, 0, (), 0)


@pytest.mark.parametrize(("state", "live"), [("held", True), ("ending", True), ("released", False)])
def test_a_lease_is_live_until_its_proof(state: str, live: bool) -> None:
    lease = Lease("l", "h:g0", "GPU-0", "a", "j1", 1, 4, state, 3.5)
    assert (lease.live, lease.version) == (live, 0)
