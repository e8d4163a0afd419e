"""The fleet core: what may be decided about devices, leases and jobs.

``decide(state, command, now)`` reads the state and returns events or a refusal; ``handle`` applies them and then
grants what has become grantable. Nothing here reads a clock, a file or a socket, so a whole fleet can be run from
one seed and every guarantee tested by repeating, delaying and reordering its messages.

The guards that carry the guarantees are marked with the invariant they hold (I1 to I12, see docs/explanation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tenure.domain import commands as cmd
from tenure.domain import events as ev
from tenure.domain import label
from tenure.domain.device import SELF_CLEARING, Cause, Condition, Device
from tenure.domain.evolve import evolve
from tenure.domain.explain import describe_mismatch
from tenure.domain.grants import grantable, grants
from tenure.domain.job import Ending, Job, JobState, Lease, Outcome
from tenure.domain.queue import Requirement, order_of
from tenure.domain.refusal import Refusal
from tenure.domain.specs import outcome_to, spec_to
from tenure.domain.state import FleetState

#: A start refused this often ends the job: an agent that keeps refusing will not change its mind by itself.
MAX_REFUSALS = 3

Decision: TypeAlias = "list[ev.Event] | Refusal"


@dataclass(slots=True)
class Outcomes:
    """What came of a command: the events in order, or a refusal; ``ignored`` says why a report changed nothing."""

    events: list[ev.Event] = field(default_factory=list)
    refusal: Refusal | None = None
    ignored: str = ""


def handle(state: FleetState, command: cmd.Command, now: float) -> Outcomes:
    """Decides one command, applies its events, and grants every device that this made grantable.

    ``now`` is UTC seconds and labels the events. A refusal leaves the state untouched.
    """
    try:
        decided = decide(state, command, now)
    except StaleReport as stale:
        return Outcomes(ignored=str(stale))
    if isinstance(decided, Refusal):
        return Outcomes(refusal=decided)
    done = Outcomes(decided)
    for event in decided:
        evolve(state, event)
    for event in grants(state, decided, now):
        done.events.append(event)
    return done


class StaleReport(Exception):
    """A report that matches no live attempt, or an older one: it changes nothing (I6)."""


def decide(state: FleetState, command: cmd.Command, now: float) -> Decision:
    """The events that a command causes, or why it is refused. Raises ``StaleReport`` for a report out of date."""
    return _DECIDE[type(command)](state, command, now)


def _begin(state: FleetState, command: cmd.Begin, now: float) -> Decision:
    # The clock in milliseconds is above every token granted before, also by a ledger that was lost and is now replaced
    # by an older copy of itself: no device is granted a thousand times a second (I4).
    began: list[ev.Event] = [ev.ControllerStarted(at=now, token_floor=int(now * 1000))]
    return began + [
        ev.ContactLost(at=now, agent=agent.id, silent_s=0.0) for agent in state.agents.values() if agent.contact
    ]


# -- what users ask for ------------------------------------------------------------------------------------------------


def _submit(state: FleetState, command: cmd.Submit, now: float) -> Decision:
    if command.key is not None:
        known = state.keys.get((command.owner, command.key))
        if known is not None and known[1] == command.body_hash:  # I11: the same key and body is the same job
            return []
        if known is not None:
            return Refusal(
                "key_reused",
                f"the idempotency key {command.key!r} belongs to job {known[0]}, which asked for something else",
                "use a new key for a new job",
                {"job": known[0]},
            )
    spec = command.spec
    need = Requirement(spec.device, spec.select, spec.count)
    impossible = _impossible(state, need)
    if impossible is not None:
        return impossible
    order = order_of(max(now, state.last_arrival), spec.priority, state.sequence + 1)
    if not command.wait and not grantable(state, need, order):
        return _busy(state, need)
    return [
        ev.JobSubmitted(
            at=now,
            actor=command.owner,
            job=command.job,
            owner=command.owner,
            spec=spec_to(spec),
            order=order,
            key=command.key,
            body_hash=command.body_hash,
        )
    ]


def _impossible(state: FleetState, need: Requirement) -> Refusal | None:
    """Why no device of the fleet can ever satisfy a requirement, or ``None`` where one can."""
    if need.device is not None and need.device not in state.devices:
        names = sorted(state.devices)
        return Refusal(
            "unknown_device",
            f"there is no device {need.device!r} here",
            "the devices are: " + (", ".join(names) if names else "none yet; is an agent running?"),
            {"device": need.device, "devices": names},
        )
    fits = state.fitting(need)
    by_host: dict[str, int] = {}
    for name in fits:
        host = state.devices[name].host
        by_host[host] = by_host.get(host, 0) + 1
    if by_host and max(by_host.values()) >= need.count:
        return None
    return describe_mismatch(state, need, by_host)


def _busy(state: FleetState, need: Requirement) -> Refusal:
    fits = sorted(state.fitting(need))
    why = {name: state.devices[name].words for name in fits}
    listed = "; ".join(f"{name} is {words}" for name, words in list(why.items())[:8])
    return Refusal("busy", f"nothing that fits is free now: {listed}", "leave out --no-wait to queue for it", why)


def _cancel(state: FleetState, command: cmd.Cancel, now: float) -> Decision:
    job = state.jobs.get(command.job)
    if job is None or job.state is JobState.ENDED:
        return Refusal("conflict", f"job {command.job} is over already", "", {"job": command.job})
    if job.state is JobState.QUEUED:
        outcome = Outcome(Ending.CANCELLED, cause=f"cancelled by {command.by}", detail=command.reason)
        return [_ended(job, outcome, now, command.by)]
    if job.state is JobState.STOPPING:
        return []
    reason = f"cancelled by {command.by}" + (f": {command.reason}" if command.reason else "")
    return [ev.StopRequested(at=now, actor=command.by, job=job.id, attempt=job.attempt, reason=reason)]


def _expire_queued(state: FleetState, command: cmd.ExpireQueued, now: float) -> Decision:
    job = state.jobs.get(command.job)
    if job is None or job.state is not JobState.QUEUED:
        return []
    detail = f"no device became free for it within {command.waited_s:g} s"
    return [_ended(job, Outcome(Ending.TIMED_OUT, detail=detail), now, "controller")]


def _ended(job: Job, outcome: Outcome, now: float, actor: str, output_bytes: int | None = None) -> ev.JobEnded:
    return ev.JobEnded(
        at=now, actor=actor, job=job.id, attempt=job.attempt, outcome=outcome_to(outcome), output_bytes=output_bytes
    )


# -- what agents report ------------------------------------------------------------------------------------------------


def _register(state: FleetState, command: cmd.Register, now: float) -> Decision:
    actor = f"agent:{command.agent}"
    decided: list[ev.Event] = []
    offered: set[str] = set()
    refused: list[str] = []
    for device in command.devices:
        holder = _claimed_elsewhere(state, command, device)
        if holder:
            refused.append(f"{device.name}: {holder}")
            continue
        offered.add(device.name)
        decided += _offer(state, command, device, now, actor)
    for name in sorted(state.devices_of_agent.get(command.agent, set()) - offered):
        decided.append(
            ev.DeviceWithdrawn(at=now, actor=actor, device=name, detail="its agent does not find it any more")
        )
    for known in command.known:
        job = state.jobs.get(known.job)
        if job is not None and known.attempt > max(job.attempt, job.last_attempt):
            decided.append(ev.AttemptSeen(at=now, actor=actor, job=known.job, attempt=known.attempt))
    # Last, so that no device leaves "no contact" before what its host saw of it has been taken in (I10).
    facts = {**command.facts, "refused_devices": refused} if refused else command.facts
    decided.append(
        ev.AgentRegistered(
            at=now,
            actor=actor,
            agent=command.agent,
            host=command.host,
            boot_id=command.boot_id,
            namespace=command.namespace,
            instance=command.instance,
            user=command.user,
            facts=facts,
        )
    )
    return decided


def _claimed_elsewhere(state: FleetState, command: cmd.Register, device: cmd.OfferedDevice) -> str:
    """Why this agent may not offer a device: a UUID is taken from one agent only (A1)."""
    for name in {device.name, state.uuids.get(device.uuid, device.name)}:
        known = state.devices.get(name)
        if known is None or known.agent == command.agent:
            continue
        if known.contact or known.lease is not None or name != device.name:
            return f"{known.uuid} is offered by agent {known.agent} as {name}"
    known = state.devices.get(device.name)
    if known is not None and known.uuid != device.uuid and known.lease is not None:
        return f"the name is bound to {known.uuid} under a live lease"
    return ""


def _offer(
    state: FleetState, command: cmd.Register, device: cmd.OfferedDevice, now: float, actor: str
) -> list[ev.Event]:
    known = state.devices.get(device.name)
    decided: list[ev.Event] = []
    shape = (device.uuid, device.kind, command.host, command.agent, device.simulated, dict(device.facts))
    if known is None or shape != _shape(known) or label.to_dict(known.labels) != dict(device.labels):
        decided.append(
            ev.DeviceRegistered(
                at=now,
                actor=actor,
                device=device.name,
                uuid=device.uuid,
                device_kind=device.kind,
                host=command.host,
                agent=command.agent,
                simulated=device.simulated,
                labels=device.labels,
                facts=device.facts,
            )
        )
    if device.high_water > state.tokens.get(device.uuid, 0):  # I4: a restored ledger never grants an old token again
        decided.append(ev.TokenFloorRaised(at=now, actor=actor, uuid=device.uuid, token=device.high_water))
    if known is None or known.condition != device.condition:
        decided.append(_observed(device.name, device.condition, now, actor))
    if known is not None and known.lease is None:
        decided += _self_cleared(known, device.condition, now, actor)
    return decided


def _shape(device: Device) -> tuple[Any, ...]:
    return (device.uuid, device.kind, device.host, device.agent, device.simulated, dict(device.facts))


def _observed(name: str, seen: Condition, now: float, actor: str) -> ev.DeviceObserved:
    return ev.DeviceObserved(at=now, actor=actor, device=name, outcome=seen.outcome, detail=seen.detail, by=seen.by)


def _self_cleared(device: Device, seen: Condition, now: float, actor: str) -> list[ev.Event]:
    quarantine = device.quarantine
    if quarantine is None or quarantine.cause not in SELF_CLEARING or seen.outcome not in ("clear", "occupied"):
        return []
    return [ev.DeviceCleared(at=now, actor=actor, device=device.name, proof=seen.detail or seen.outcome)]


def _lose_contact(state: FleetState, command: cmd.LoseContact, now: float) -> Decision:
    agent = state.agents.get(command.agent)
    if agent is None or not agent.contact:
        return []
    return [ev.ContactLost(at=now, agent=command.agent, silent_s=command.silent_s)]


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


def _started(state: FleetState, report: cmd.ReportStarted, now: float) -> Decision:
    job = _current_job(state, report)
    if job.state is JobState.ENDED or job.started_at is not None:
        raise StaleReport(f"{report.job}#{report.attempt} is {job.state} already")
    actor = f"agent:{report.agent}"
    return [
        ev.JobStarted(at=now, actor=actor, job=job.id, attempt=job.attempt, pid=report.pid, evidence=report.evidence)
    ]


def _refused(state: FleetState, report: cmd.ReportRefused, now: float) -> Decision:
    if all(lease.state == "ending" for lease in _current(state, report)):
        return _proved(state, report, now)
    job = _current_job(state, report)
    if job.state not in (JobState.STARTING, JobState.STOPPING):
        raise StaleReport(f"{report.job} is {job.state} already")
    actor = f"agent:{report.agent}"
    decided: list[ev.Event] = []
    if job.state is JobState.STOPPING:
        outcome = Outcome(Ending.CANCELLED, cause=job.stop or "", detail="before anything of it had run")
        decided.append(_ended(job, outcome, now, actor))
    elif job.refusals + 1 >= MAX_REFUSALS:
        detail = f"refused {job.refusals + 1} times, last: {report.reason}"
        decided.append(_ended(job, Outcome(Ending.START_REFUSED, detail=detail), now, actor))
    else:
        decided.append(ev.JobRequeued(at=now, actor=actor, job=job.id, attempt=job.attempt, reason=report.reason))
    return decided + _proved(state, report, now)


def _report_ended(state: FleetState, report: cmd.ReportEnded, now: float) -> Decision:
    leases = _current(state, report)
    decided: list[ev.Event] = []
    if any(lease.state != "ending" for lease in leases):  # I7: a terminal state is written once
        job = _current_job(state, report)
        actor = f"agent:{report.agent}"
        if report.use is not None:
            decided.append(ev.UseJudged(at=now, actor=actor, job=job.id, attempt=job.attempt, use=report.use))
        outcome = report.outcome
        if job.stop and not outcome.cause:
            outcome = Outcome(outcome.ending, outcome.code, outcome.signal, job.stop, outcome.detail, outcome.stats)
        decided.append(_ended(job, outcome, now, actor, report.output_bytes))
    return decided + _proved(state, report, now)  # I8: the end first, then the release


def _proved(state: FleetState, report: Any, now: float) -> list[ev.Event]:
    """Releases each lease whose device was proved empty of it; quarantines where something is left (I8)."""
    actor = f"agent:{report.agent}"
    decided: list[ev.Event] = []
    for lease in state.live_leases(report.job, report.attempt):
        seen = report.proofs.get(lease.device)
        if seen is None:
            continue
        device = state.devices[lease.device]
        if seen.outcome == "dirty":
            if device.quarantine is None:
                decided.append(
                    ev.DeviceQuarantined(
                        at=now, actor=actor, device=device.name, cause=str(Cause.DIRTY), detail=seen.detail
                    )
                )
        elif seen.outcome in ("clear", "occupied"):
            if lease.token == device.token:
                # Under an older token than the host's highest (the ledger was restored) it says nothing of the newer.
                decided.append(_observed(device.name, seen, now, actor))
                decided += _self_cleared(device, seen, now, actor)
            proof = seen.detail or seen.outcome
            decided.append(
                ev.LeaseReleased(
                    at=now, actor=actor, lease=lease.id, device=lease.device, token=lease.token, proof=proof
                )
            )
    return decided


def _report_use(state: FleetState, report: cmd.ReportUse, now: float) -> Decision:
    job = _current_job(state, report)
    if job.state is JobState.ENDED:
        raise StaleReport(f"{report.job} is over; its last verdict stands")
    actor = f"agent:{report.agent}"
    return [ev.UseJudged(at=now, actor=actor, job=job.id, attempt=job.attempt, use=report.use)]


def _report_device(state: FleetState, report: cmd.ReportDevice, now: float) -> Decision:
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
        decided.append(_observed(device.name, seen, now, actor))
    return decided + _self_cleared(device, seen, now, actor)


_DECIDE: Mapping[type[Any], Callable[[FleetState, Any, float], Decision]] = {
    cmd.Begin: _begin,
    cmd.Submit: _submit,
    cmd.Cancel: _cancel,
    cmd.ExpireQueued: _expire_queued,
    cmd.Register: _register,
    cmd.LoseContact: _lose_contact,
    cmd.ReportStarted: _started,
    cmd.ReportRefused: _refused,
    cmd.ReportEnded: _report_ended,
    cmd.ReportUse: _report_use,
    cmd.ReportDevice: _report_device,
}


def submitted_job(command: cmd.Submit, state: FleetState, events: Iterable[ev.Event]) -> str:
    """The id of the job that a submission stands for: its own, or the one its key had made before."""
    if any(isinstance(event, ev.JobSubmitted) for event in events) or command.key is None:
        return command.job
    return state.keys[(command.owner, command.key)][0]
