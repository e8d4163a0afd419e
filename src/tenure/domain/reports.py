"""What agents report of attempts and devices, and what may follow from it.

Every report of an attempt names it by (job, attempt, token of each device). It changes nothing unless all of that
matches what is on record (I6); a report that does not is stale, which is a normal outcome and no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.domain import commands as cmd
from tenure.domain import events as ev
from tenure.domain.device import Cause
from tenure.domain.job import Ending, Job, JobState, Lease, Outcome
from tenure.domain.notices import with_notice
from tenure.domain.pieces import ended, faulted, observed, quarantined, self_cleared
from tenure.domain.state import FleetState

#: A start refused this often ends the job: an agent that keeps refusing will not change its mind by itself.
MAX_REFUSALS = 3


class StaleReport(Exception):
    """A report that matches no live attempt, or an older one: it changes nothing (I6)."""


def _current(state: FleetState, report: Any) -> list[Lease]:
    """The live leases that a report of an attempt speaks of; raises ``StaleReport`` unless all of it matches (I6)."""
    leases = state.live_leases(report.job, report.attempt)
    if not leases:
        raise StaleReport(f"{report.job}#{report.attempt} holds no lease any more")
    for lease in leases:
        if lease.agent != report.agent:
            raise StaleReport(f"{lease.id} belongs to agent {lease.agent}")
        if report.tokens.get(lease.device) != lease.token:
            raise StaleReport(f"{lease.device} is under token {lease.token}, not {report.tokens.get(lease.device)}")
    return leases


def _current_job(state: FleetState, report: Any) -> Job:
    """The open job a report speaks of, if the report is of its current attempt (I6)."""
    _current(state, report)
    job = state.jobs.get(report.job)
    if job is None or job.attempt != report.attempt or job.state is JobState.QUEUED:
        raise StaleReport(f"{report.job} is past attempt {report.attempt}")
    return job


def started(state: FleetState, report: cmd.ReportStarted, now: float) -> list[ev.Event]:
    """The command runs."""
    job = _current_job(state, report)
    if job.state is JobState.ENDED or job.started_at is not None:
        raise StaleReport(f"{report.job}#{report.attempt} is {job.state} already")
    actor = f"agent:{report.agent}"
    return [
        ev.JobStarted(at=now, actor=actor, job=job.id, attempt=job.attempt, pid=report.pid, evidence=report.evidence)
    ]


def refused(state: FleetState, report: cmd.ReportRefused, now: float) -> list[ev.Event]:
    """Nothing of the attempt ran: the job goes back to the queue, or ends where that makes no sense."""
    if all(lease.state == "ending" for lease in _current(state, report)):
        return _proved(state, report, now)
    job = _current_job(state, report)
    if job.state not in (JobState.STARTING, JobState.STOPPING):
        raise StaleReport(f"{report.job} is {job.state} already")
    actor = f"agent:{report.agent}"
    decided: list[ev.Event] = []
    if job.state is JobState.STOPPING:
        outcome = Outcome(Ending.CANCELLED, cause=job.stop or "", detail="before anything of it had run")
        decided.append(ended(job, outcome, now, actor))
    elif job.refusals + 1 >= MAX_REFUSALS:
        detail = f"refused {job.refusals + 1} times, last: {report.reason}"
        decided.append(ended(job, Outcome(Ending.START_REFUSED, detail=detail), now, actor))
    else:
        decided.append(ev.JobRequeued(at=now, actor=actor, job=job.id, attempt=job.attempt, reason=report.reason))
    return decided + _proved(state, report, now)


def attempt_ended(state: FleetState, report: cmd.ReportEnded, now: float) -> list[ev.Event]:
    """The attempt is over, with what was found on its devices so far."""
    leases = _current(state, report)
    decided: list[ev.Event] = []
    if any(lease.state != "ending" for lease in leases):  # I7: a terminal state is written once
        job = _current_job(state, report)
        actor = f"agent:{report.agent}"
        if report.use is not None:
            decided += _judged(job, report.use, now, actor)
        outcome = report.outcome
        if job.stop and not outcome.cause:
            outcome = Outcome(outcome.ending, outcome.code, outcome.signal, job.stop, outcome.detail, outcome.stats)
        decided.append(ended(job, outcome, now, actor, report.output_bytes))
    return decided + _proved(state, report, now)  # I8: the end first, then the release


def _proved(state: FleetState, report: Any, now: float) -> list[ev.Event]:
    """Releases each lease whose device was proved empty of it; quarantines where something is left (I8)."""
    actor = f"agent:{report.agent}"
    decided: list[ev.Event] = []
    lost = isinstance(report, cmd.ReportEnded) and report.outcome.ending is Ending.LOST
    for lease in state.live_leases(report.job, report.attempt):
        seen = report.proofs.get(lease.device)
        if seen is None:
            continue
        device = state.devices[lease.device]
        if seen.outcome == "unknown":
            if lease.token == device.token and device.condition != seen:
                decided.append(observed(device.name, seen, now, actor))
            if lost and device.quarantine is None:  # nobody can say what became of what ran there
                decided.append(quarantined(device, Cause.WORKER_LOST, seen.detail, now, actor))
        elif seen.outcome == "fault":
            decided += faulted(device, seen, now, actor)
        elif seen.outcome == "dirty":
            if device.quarantine is None:
                decided.append(quarantined(device, Cause.DIRTY, seen.detail, now, actor))
        elif seen.outcome in ("clear", "occupied"):
            if lease.token == device.token:
                # Under an older token than the host's highest (the ledger was restored) it says nothing of the newer.
                decided.append(observed(device.name, seen, now, actor))
                decided += self_cleared(device, seen, now, actor)
            proof = seen.detail or seen.outcome
            decided.append(
                ev.LeaseReleased(
                    at=now, actor=actor, lease=lease.id, device=lease.device, token=lease.token, proof=proof
                )
            )
    return decided


def use_judged(state: FleetState, report: cmd.ReportUse, now: float) -> list[ev.Event]:
    """The verdict of use changed while the attempt runs."""
    job = _current_job(state, report)
    if job.state is JobState.ENDED:
        raise StaleReport(f"{report.job} is over; its last verdict stands")
    actor = f"agent:{report.agent}"
    return _judged(job, report.use, now, actor)


def _judged(job: Job, use: Mapping[str, Any], now: float, actor: str) -> list[ev.Event]:
    """The new verdict, and a warning for each announcement in it that has not been made before.

    What was announced once stays on the record, in its first words, also where the agent has lost its own account of
    it: so it is announced once whatever becomes of the agent.
    """
    before = job.use or {}
    earlier = tuple(before.get("announcements", ()))
    said = {one.get("kind") for one in earlier}
    fresh = [one for one in use.get("announcements", ()) if one.get("kind") not in said]
    if earlier:
        use = {**use, "announcements": [*earlier, *fresh]}
    judged = ev.UseJudged(
        at=now,
        actor=actor,
        job=job.id,
        attempt=job.attempt,
        use=use,
        before=label_of(before),
        after=label_of(use),
    )
    warned = [ev.UseWarned(at=now, actor=actor, job=job.id, attempt=job.attempt, warning=one) for one in fresh]
    return [judged, *warned]


def noticed(state: FleetState, report: cmd.ReportNotice, now: float) -> list[ev.Event]:
    """A notice goes on the job's record once; also after its end, while its leases are not given back yet."""
    _current(state, report)
    job = state.jobs.get(report.job)
    if job is None or job.attempt != report.attempt:
        raise StaleReport(f"{report.job} is past attempt {report.attempt}")
    if with_notice(job.notices, report.notice) is None:
        return []
    actor = f"agent:{report.agent}"
    return [ev.JobNoticed(at=now, actor=actor, job=job.id, attempt=job.attempt, notice=report.notice)]


def label_of(use: Mapping[str, Any]) -> str:
    """The label of a verdict as it is on record; ``unknown`` where none is."""
    return str(use.get("label") or use.get("verdict") or "unknown")


def device_seen(state: FleetState, report: cmd.ReportDevice, now: float) -> list[ev.Event]:
    """What the agent sees on a device, outside any lease or beside it."""
    device = state.devices.get(report.device)
    if device is None or device.agent != report.agent:
        raise StaleReport(f"{report.device} is not a device of agent {report.agent}")
    if report.high_water < device.token:
        raise StaleReport(f"{report.device} was looked at before token {device.token}")
    actor = f"agent:{report.agent}"
    seen = report.condition
    if device.lease is not None:
        now_seen = seen if seen.outcome == "occupied" else None
        if device.lease_ending or now_seen == device.contended:
            return []
        return [
            ev.DeviceContended(
                at=now,
                actor=actor,
                device=device.name,
                lease=device.lease,
                detail=now_seen.detail if now_seen else "",
                by=now_seen.by if now_seen else (),
            )
        ]
    decided: list[ev.Event] = []
    if seen != device.condition:
        decided.append(observed(device.name, seen, now, actor))
    return decided + faulted(device, seen, now, actor) + self_cleared(device, seen, now, actor)
