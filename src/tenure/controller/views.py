"""Records as the API shows them: plain JSON values, with the words that people read beside the codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenure.controller.replies import encode
from tenure.domain import label
from tenure.domain.device import Device, DeviceState
from tenure.domain.explain import waiting
from tenure.domain.job import Job, JobState, Lease
from tenure.domain.specs import outcome_to, spec_to
from tenure.domain.state import FleetState


def device_view(state: FleetState, device: Device, now: float, silent_s: float | None = None) -> dict[str, Any]:
    """One device. ``words`` says how long contact has been lost, at the time of asking: ``silent_s`` where this
    controller measured it by a clock that nobody sets, else as the wall clock has it."""
    lease = state.leases.get(device.lease) if device.lease is not None else None
    quarantine = device.quarantine
    words = device.words
    if not device.contact and device.lost_at is not None:
        words = f"unknown (no contact {span(now - device.lost_at if silent_s is None else silent_s)})"
    return {
        "name": device.name,
        "uuid": device.uuid,
        "kind": device.kind,
        "simulated": device.simulated,
        "host": device.host,
        "agent": device.agent,
        "state": str(device.state),
        "free": device.state is DeviceState.READY,
        "words": words,
        "since": device.since,
        "contact": device.contact,
        "token": device.token,
        "lease": device.lease,
        "job": lease.job if lease is not None else None,
        "holder": state.jobs[lease.job].owner if lease is not None and lease.job in state.jobs else None,
        "condition": {
            "outcome": device.condition.outcome,
            "detail": device.condition.detail,
            "by": list(device.condition.by),
        },
        "contended": None
        if device.contended is None
        else {"detail": device.contended.detail, "by": list(device.contended.by)},
        "quarantine": None
        if quarantine is None
        else {
            "cause": str(quarantine.cause),
            "detail": quarantine.detail,
            "since": quarantine.since,
            "clears_itself": quarantine.clears_itself,
        },
        "recoveries": list(device.recoveries),
        "draining": device.draining,
        "labels": label.to_dict(device.labels),
        "facts": dict(device.facts),
        "version": device.version,
    }


class DeviceTexts:
    """Devices as JSON text, each made once for every change of it.

    Records are frozen and replaced when anything of them changes, so the very same records mean the very same text. A
    device out of contact is made anew each time: its words tell how long that has lasted.
    """

    def __init__(self) -> None:
        self._made: dict[str, tuple[Device, Lease | None, str]] = {}

    def text(self, state: FleetState, device: Device, now: float, silent_s: float | None = None) -> str:
        """One device, as ``device_view`` has it. The state must be settled."""
        if not device.contact:
            self._made.pop(device.name, None)
            return encode(device_view(state, device, now, silent_s))
        lease = state.leases.get(device.lease) if device.lease is not None else None
        made = self._made.get(device.name)
        if made is None or made[0] is not device or made[1] is not lease:
            made = self._made[device.name] = (device, lease, encode(device_view(state, device, now)))
        return made[2]


def job_view(
    state: FleetState, job: Job, leases: Sequence[Lease], left: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """One job. ``position`` and ``reason`` are there while it waits; ``left`` is what its host found it had left."""
    position, reason = waiting(state, job) if job.state is JobState.QUEUED else (None, None)
    outcome = job.outcome
    return {
        "id": job.id,
        "owner": job.owner,
        "label": job.spec.label,
        "state": str(job.state),
        "words": job_words(job, reason),
        "argv": list(job.spec.argv),
        "cwd": job.spec.cwd,
        "spec": spec_to(job.spec),
        "attempt": job.attempt,
        "devices": list(job.devices),
        "leases": [
            {"id": lease.id, "device": lease.device, "uuid": lease.uuid, "token": lease.token, "state": lease.state}
            for lease in leases
        ],
        "simulated": [lease.device for lease in leases if _simulated(state, lease)],
        "submitted_at": job.submitted_at,
        "granted_at": job.granted_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "pid": job.pid,
        "stop": job.stop,
        "outcome": outcome_to(outcome) if outcome is not None else None,
        "exit_status": outcome.exit_status if outcome is not None else None,
        "output_bytes": job.output_bytes,
        "use": dict(job.use) if job.use is not None else None,
        "evidence": job.evidence,
        "notices": [dict(notice) for notice in job.notices],
        "left": left,
        "position": position,
        "reason": reason,
        "key": job.key,
        "version": job.version,
    }


def job_words(job: Job, reason: str | None) -> str:
    """Where a job stands, in one phrase."""
    if job.outcome is not None:
        return job.outcome.words
    if job.state is JobState.QUEUED:
        return f"queued ({reason})" if reason else "queued"
    if job.state is JobState.STOPPING:
        return f"stopping ({job.stop})"
    return str(job.state)


def _simulated(state: FleetState, lease: Lease) -> bool:
    device = state.devices.get(lease.device)
    return device is not None and device.simulated


def span(seconds: float) -> str:
    """A length of time as people say it: ``40s``, ``10m``, ``3h``, ``2d``. Cut, not rounded: it lasted that long."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(max(seconds, 0))}s"
