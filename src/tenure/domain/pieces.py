"""Pieces of decisions that several kinds of command share."""

from __future__ import annotations

from tenure.domain import events as ev
from tenure.domain.device import SELF_CLEARING, Condition, Device
from tenure.domain.job import Job, Outcome
from tenure.domain.specs import outcome_to


def ended(job: Job, outcome: Outcome, now: float, actor: str, output_bytes: int | None = None) -> ev.JobEnded:
    """The end of a job's current attempt, or of a job that never had one."""
    return ev.JobEnded(
        at=now, actor=actor, job=job.id, attempt=job.attempt, outcome=outcome_to(outcome), output_bytes=output_bytes
    )


def observed(name: str, seen: Condition, now: float, actor: str) -> ev.DeviceObserved:
    """What was seen on a device."""
    return ev.DeviceObserved(at=now, actor=actor, device=name, outcome=seen.outcome, detail=seen.detail, by=seen.by)


def self_cleared(device: Device, seen: Condition, now: float, actor: str) -> list[ev.Event]:
    """The end of a quarantine that a look has refuted; a fault, and what an operator declared, stay."""
    quarantine = device.quarantine
    if quarantine is None or quarantine.cause not in SELF_CLEARING or seen.outcome not in ("clear", "occupied"):
        return []
    return [ev.DeviceCleared(at=now, actor=actor, device=device.name, proof=seen.detail or seen.outcome)]
