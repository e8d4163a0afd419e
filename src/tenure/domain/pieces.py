"""Pieces of decisions that several kinds of command share."""

from __future__ import annotations

from tenure.domain import events as ev
from tenure.domain.device import FLAP_WINDOW_S, FLAPS, SELF_CLEARING, Cause, Condition, Device
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


def quarantined(
    device: Device, cause: Cause, detail: str, now: float, actor: str, *, by_hand: bool = False
) -> ev.DeviceQuarantined:
    """A device may not be leased from here on."""
    return ev.DeviceQuarantined(
        at=now, actor=actor, device=device.name, cause=str(cause), detail=detail, by_hand=by_hand
    )


def faulted(device: Device, seen: Condition, now: float, actor: str) -> list[ev.Event]:
    """The quarantine of a device that said of itself that it is broken. What an operator declared stands above it."""
    quarantine = device.quarantine
    if seen.outcome != "fault" or (quarantine is not None and quarantine.cause not in SELF_CLEARING):
        return []
    return [quarantined(device, Cause.FAULT, seen.detail, now, actor)]


def self_cleared(device: Device, seen: Condition, now: float, actor: str) -> list[ev.Event]:
    """The end of a quarantine that a look has refuted; a fault, and what an operator declared, stay.

    Three times within an hour are enough: a device that comes and goes takes a job down each time, so the next proof
    only says that somebody has to look at it.
    """
    quarantine = device.quarantine
    if quarantine is None or not quarantine.clears_itself or seen.outcome not in ("clear", "occupied"):
        return []
    lately = [at for at in device.recoveries if now - at < FLAP_WINDOW_S]
    if len(lately) >= FLAPS:
        often = f"it recovered by itself {len(lately)} times within an hour, so this time somebody has to clear it"
        detail = f"{quarantine.detail}; {often}"
        return [quarantined(device, quarantine.cause, detail, now, actor, by_hand=True)]
    return [ev.DeviceCleared(at=now, actor=actor, device=device.name, proof=seen.detail or seen.outcome, itself=True)]
