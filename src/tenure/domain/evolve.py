"""Applies events to the fleet's state. Never refuses, never decides: one small function for each kind of event.

The same function serves a live event, a replay of history and a second controller that follows the feed; so nothing
in here may depend on anything but the state and the event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tenure.domain import events as ev
from tenure.domain import job as jobs
from tenure.domain import label
from tenure.domain.device import FLAPS, MOVES, Cause, Condition, Device, DeviceState, Quarantine, state_of
from tenure.domain.job import Job, JobState, Lease
from tenure.domain.notices import with_notice
from tenure.domain.refusal import IllegalMoveError
from tenure.domain.replacing import replaced
from tenure.domain.specs import outcome_from, spec_from
from tenure.domain.state import AgentRecord, FleetState

#: Classes without waiting jobs that are kept, so that a usual requirement is matched against the fleet only once.
CLASSES_KEPT = 512


def evolve(state: FleetState, event: ev.Event) -> None:
    """Applies one event. Raises ``IllegalMoveError`` where a transition table has no such move: a defect."""
    state.version += 1
    _APPLY[type(event)](state, event)


# -- the two writers: every change of a device or a job passes here ----------------------------------------------------


def _put_device(state: FleetState, device: Device, at: float) -> None:
    before = state.devices.get(device.name)
    now = state_of(device)
    if before is not None and now is not before.state:
        if now not in MOVES[before.state]:
            raise IllegalMoveError("device", device.name, before.state, now, f"lease {before.lease}, {before.words}")
        device = replaced(device, since=at, state=now, version=state.version)
    else:
        device = replaced(device, state=now, version=state.version)
    state.devices[device.name] = device
    state.touched[("devices", device.name)] = None
    state.queue.set_ready(device.name, now is DeviceState.READY)


def _put_job(state: FleetState, job: Job) -> None:
    before = state.jobs.get(job.id)
    if before is not None and before.state is not job.state:
        if job.state not in jobs.MOVES[before.state]:
            story = f"attempt {before.attempt} on {before.devices}, stop {before.stop}"
            raise IllegalMoveError("job", job.id, before.state, job.state, story)
        need = state.need_of(job)
        if before.state is JobState.QUEUED:
            state.queue.remove(job.id, need)
        elif job.state is JobState.QUEUED:
            state.queue.open(need, state.fitting(need))
            state.queue.add(job.id, job.order, need)
    state.jobs[job.id] = replaced(job, version=state.version)
    state.touched[("jobs", job.id)] = None
    _close(state, job.id)


def _put_lease(state: FleetState, lease: Lease) -> None:
    lease = replaced(lease, version=state.version)
    state.touched[("leases", lease.id)] = None
    if lease.live:
        state.leases[lease.id] = lease
    else:
        del state.leases[lease.id]
        state.released[lease.id] = lease


def _close(state: FleetState, job_id: str) -> None:
    """Moves a job that is over, with nothing of it left on any device, out of the open ones."""
    job = state.jobs.get(job_id)
    if job is None or job.state is not JobState.ENDED:
        return
    if any(state.live_leases(job_id, attempt) for attempt in range(1, job.attempt + 1)):
        return
    for attempt in range(1, job.attempt + 1):
        state.leases_of.pop((job_id, attempt), None)
    state.closed[job_id] = state.jobs.pop(job_id)


# -- agents and devices ------------------------------------------------------------------------------------------------


def _controller_started(state: FleetState, event: ev.ControllerStarted) -> None:
    state.token_floor = max(event.token_floor, state.token_floor)


def _agent_registered(state: FleetState, event: ev.AgentRegistered) -> None:
    state.agents[event.agent] = AgentRecord(
        event.agent,
        event.host,
        event.boot_id,
        event.namespace,
        event.instance,
        event.user,
        True,
        event.at,
        state.version,
    )
    state.touched[("agents", event.agent)] = None
    for name in sorted(state.devices_of_agent.get(event.agent, ())):
        device = state.devices[name]
        if not device.contact:
            _put_device(state, replaced(device, contact=True, lost_at=None), event.at)


def _contact_lost(state: FleetState, event: ev.ContactLost) -> None:
    agent = state.agents[event.agent]
    state.agents[event.agent] = replaced(agent, contact=False, version=state.version)
    state.touched[("agents", event.agent)] = None
    heard_at = event.at - event.silent_s  # how long nobody has answered counts from there, not from when it was noticed
    for name in sorted(state.devices_of_agent.get(event.agent, ())):
        _put_device(state, replaced(state.devices[name], contact=False, lost_at=heard_at), event.at)


def _device_registered(state: FleetState, event: ev.DeviceRegistered) -> None:
    token = state.tokens.setdefault(event.uuid, 0)
    state.touched[("tokens", event.uuid)] = None
    labels = label.from_dict(event.labels)
    before = state.devices.get(event.device)
    if before is None:
        device = Device(
            name=event.device,
            uuid=event.uuid,
            kind=event.device_kind,
            host=event.host,
            agent=event.agent,
            simulated=event.simulated,
            token=token,
            state=DeviceState.UNKNOWN,
            contact=False,  # until its agent's registration, which follows, is complete
            since=event.at,
            labels=labels,
            facts=event.facts,
        )
    else:
        if state.uuids.get(before.uuid) == event.device:  # two names that swap: the other one may have it already
            del state.uuids[before.uuid]
        state.devices_of_agent[before.agent].discard(event.device)
        device = replaced(
            before,
            uuid=event.uuid,
            kind=event.device_kind,
            host=event.host,
            agent=event.agent,
            simulated=event.simulated,
            token=token,
            labels=labels,
            facts=event.facts,
        )
    state.uuids[event.uuid] = event.device
    state.devices_of_agent.setdefault(event.agent, set()).add(event.device)
    needs = {need for need in state.queue.classes if state.match(need, (device,))}
    state.queue.refit(event.device, needs)
    _put_device(state, device, event.at)
    allowed = before.facts.get("bounds") if before is not None else None
    if allowed != event.facts.get("bounds") and state.note_ceilings():
        state.requeue()


def _device_withdrawn(state: FleetState, event: ev.DeviceWithdrawn) -> None:
    device = state.devices[event.device]
    _put_device(state, replaced(device, condition=Condition("unknown", event.detail)), event.at)


def _device_observed(state: FleetState, event: ev.DeviceObserved) -> None:
    device = state.devices[event.device]
    seen = Condition(event.outcome, event.detail, event.by)
    _put_device(state, replaced(device, condition=seen), event.at)


def _device_contended(state: FleetState, event: ev.DeviceContended) -> None:
    device = state.devices[event.device]
    seen = Condition("occupied", event.detail, event.by) if event.by or event.detail else None
    _put_device(state, replaced(device, contended=seen), event.at)


def _device_quarantined(state: FleetState, event: ev.DeviceQuarantined) -> None:
    device = state.devices[event.device]
    quarantine = Quarantine(Cause(event.cause), event.detail, event.at, event.by_hand)
    _put_device(state, replaced(device, quarantine=quarantine), event.at)


def _device_cleared(state: FleetState, event: ev.DeviceCleared) -> None:
    device = state.devices[event.device]
    recoveries = (*device.recoveries, event.at)[-FLAPS:] if event.itself else ()
    _put_device(state, replaced(device, quarantine=None, recoveries=recoveries), event.at)


def _device_drained(state: FleetState, event: ev.DeviceDrained) -> None:
    _put_device(state, replaced(state.devices[event.device], draining=event.reason), event.at)


def _device_resumed(state: FleetState, event: ev.DeviceResumed) -> None:
    _put_device(state, replaced(state.devices[event.device], draining=None), event.at)


def _device_retired(state: FleetState, event: ev.DeviceRetired) -> None:
    """Its token stays: should the device come back, its tokens go on from there (I4)."""
    device = state.devices.pop(event.device)
    if state.uuids.get(device.uuid) == device.name:
        del state.uuids[device.uuid]
    state.devices_of_agent[device.agent].discard(device.name)
    state.queue.set_ready(device.name, False)
    state.queue.refit(device.name, set())
    state.touched[("devices", device.name)] = None


def _token_floor_raised(state: FleetState, event: ev.TokenFloorRaised) -> None:
    state.tokens[event.uuid] = max(event.token, state.tokens.get(event.uuid, 0))
    state.touched[("tokens", event.uuid)] = None
    name = state.uuids.get(event.uuid)
    if name is not None:
        _put_device(state, replaced(state.devices[name], token=state.tokens[event.uuid]), event.at)


# -- jobs and leases ---------------------------------------------------------------------------------------------------


def _job_submitted(state: FleetState, event: ev.JobSubmitted) -> None:
    job = Job(
        id=event.job,
        owner=event.owner,
        spec=spec_from(event.spec),
        state=JobState.QUEUED,
        submitted_at=event.at,
        order=(event.order[0], event.order[1]),
        key=event.key,
        body_hash=event.body_hash,
    )
    state.sequence = max(state.sequence, event.order[1])
    state.last_arrival = max(state.last_arrival, event.at)
    if event.key is not None:
        state.keys[(event.owner, event.key)] = (event.job, event.body_hash)
    need = state.need_of(job)
    if not state.queue.has(need):
        state.queue.forget_empty(CLASSES_KEPT)
        state.queue.open(need, state.match(need, state.devices.values()))
    state.queue.add(job.id, job.order, need)
    _put_job(state, job)


def _attempt_seen(state: FleetState, event: ev.AttemptSeen) -> None:
    _put_job(state, replaced(state.jobs[event.job], last_attempt=event.attempt))


def _lease_granted(state: FleetState, event: ev.LeaseGranted) -> None:
    job = state.jobs[event.job]
    ids = tuple(lease_id for lease_id, _, _ in event.leases)
    state.leases_of[(event.job, event.attempt)] = ids
    for lease_id, name, token in event.leases:
        device = state.devices[name]
        state.tokens[device.uuid] = token
        state.touched[("tokens", device.uuid)] = None
        agent = state.agents.get(device.agent)
        boot = agent.boot_id if agent is not None else ""
        lease = Lease(
            lease_id, name, device.uuid, device.agent, event.job, event.attempt, token, "held", event.at, boot_id=boot
        )
        _put_lease(state, lease)
        _put_device(state, replaced(device, token=token, lease=lease_id, lease_ending=False, contended=None), event.at)
    devices = tuple(name for _, name, _ in event.leases)
    _put_job(
        state,
        replaced(job, state=JobState.STARTING, attempt=event.attempt, leases=ids, devices=devices, granted_at=event.at),
    )


def _job_started(state: FleetState, event: ev.JobStarted) -> None:
    job = state.jobs[event.job]
    running = JobState.RUNNING if job.state is JobState.STARTING else job.state
    evidence = event.evidence or job.evidence
    _put_job(state, replaced(job, state=running, started_at=event.at, pid=event.pid, evidence=evidence))


def _stop_requested(state: FleetState, event: ev.StopRequested) -> None:
    _put_job(state, replaced(state.jobs[event.job], state=JobState.STOPPING, stop=event.reason))


def _job_ended(state: FleetState, event: ev.JobEnded) -> None:
    job = state.jobs[event.job]
    if job.state is not JobState.QUEUED:
        _end_leases(state, event.job, job.attempt, event.at)
    _put_job(
        state,
        replaced(
            job,
            state=JobState.ENDED,
            outcome=outcome_from(event.outcome),
            ended_at=event.at,
            output_bytes=event.output_bytes,
        ),
    )


def _job_requeued(state: FleetState, event: ev.JobRequeued) -> None:
    job = state.jobs[event.job]
    _end_leases(state, event.job, event.attempt, event.at)
    _put_job(
        state,
        replaced(job, state=JobState.QUEUED, refusals=job.refusals + 1, leases=(), devices=(), granted_at=None),
    )


def _end_leases(state: FleetState, job: str, attempt: int, at: float) -> None:
    for lease in state.live_leases(job, attempt):
        _put_lease(state, replaced(lease, state="ending"))
        _put_device(state, replaced(state.devices[lease.device], lease_ending=True), at)


def _lease_released(state: FleetState, event: ev.LeaseReleased) -> None:
    lease = state.leases[event.lease]
    _put_lease(state, replaced(lease, state="released", released_at=event.at, proof=event.proof))
    device = state.devices[event.device]
    _put_device(state, replaced(device, lease=None, lease_ending=False, contended=None), event.at)
    _close(state, lease.job)


def _use_judged(state: FleetState, event: ev.UseJudged) -> None:
    _put_job(state, replaced(state.jobs[event.job], use=event.use))


def _use_warned(state: FleetState, event: ev.UseWarned) -> None:
    """Nothing to change: what was said stands in the verdict that ``use_judged`` brings."""


def _job_noticed(state: FleetState, event: ev.JobNoticed) -> None:
    job = state.jobs[event.job]
    _put_job(state, replaced(job, notices=with_notice(job.notices, event.notice) or job.notices))


_APPLY: Mapping[type[ev.Event], Callable[[FleetState, Any], None]] = {
    ev.ControllerStarted: _controller_started,
    ev.AgentRegistered: _agent_registered,
    ev.ContactLost: _contact_lost,
    ev.DeviceRegistered: _device_registered,
    ev.DeviceWithdrawn: _device_withdrawn,
    ev.DeviceObserved: _device_observed,
    ev.DeviceContended: _device_contended,
    ev.DeviceQuarantined: _device_quarantined,
    ev.DeviceCleared: _device_cleared,
    ev.DeviceDrained: _device_drained,
    ev.DeviceResumed: _device_resumed,
    ev.DeviceRetired: _device_retired,
    ev.TokenFloorRaised: _token_floor_raised,
    ev.JobSubmitted: _job_submitted,
    ev.AttemptSeen: _attempt_seen,
    ev.LeaseGranted: _lease_granted,
    ev.JobStarted: _job_started,
    ev.StopRequested: _stop_requested,
    ev.JobEnded: _job_ended,
    ev.JobRequeued: _job_requeued,
    ev.LeaseReleased: _lease_released,
    ev.UseJudged: _use_judged,
    ev.UseWarned: _use_warned,
    ev.JobNoticed: _job_noticed,
}
