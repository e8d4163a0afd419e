"""What an operator may do to a device. Every act names who and why; none of them makes a device free by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from tenure.domain import commands as cmd
from tenure.domain import events as ev
from tenure.domain.device import Cause, Device
from tenure.domain.job import Ending, JobState, Outcome
from tenure.domain.pieces import ended, quarantined
from tenure.domain.refusal import Refusal
from tenure.domain.state import FleetState

Decision: TypeAlias = "list[ev.Event] | Refusal"


def operate(state: FleetState, command: cmd.Operate, now: float) -> Decision:
    """The events of an operator's act, or why it is refused. Doing what is done already changes nothing."""
    device = state.devices.get(command.device)
    if device is None:
        names = sorted(state.devices)
        do = "the devices are: " + (", ".join(names) or "none yet")
        return Refusal("unknown_device", f"there is no device {command.device!r} here", do, {"device": command.device})
    if not command.reason.strip():
        return Refusal("invalid_request", f"why {command.act} {device.name}?", "give a reason: --reason 'WHY'", {})
    act = _ACTS.get(command.act)
    if act is None:
        known = ", ".join(_ACTS)
        return Refusal("invalid_request", f"{command.act!r} is no act of an operator", f"they are: {known}", {})
    return act(state, device, command, now)


def _drain(state: FleetState, device: Device, command: cmd.Operate, now: float) -> Decision:
    words = f"{command.reason}, by {command.by}"
    if device.draining == words:
        return []
    return [ev.DeviceDrained(at=now, actor=command.by, device=device.name, reason=words)]


def _resume(state: FleetState, device: Device, command: cmd.Operate, now: float) -> Decision:
    if device.draining is None:
        if device.quarantine is not None:
            do = f"look at it, then: rc admin clear {device.name} --reason 'WHAT YOU FOUND'"
            return Refusal("conflict", f"{device.name} is not drained, it is {device.words}", do, {})
        return []
    return [ev.DeviceResumed(at=now, actor=command.by, device=device.name, reason=command.reason)]


def _quarantine(state: FleetState, device: Device, command: cmd.Operate, now: float) -> Decision:
    return [quarantined(device, Cause.OPERATOR, f"{command.reason}, by {command.by}", now, command.by)]


def _clear(state: FleetState, device: Device, command: cmd.Operate, now: float) -> Decision:
    if device.lease is not None:  # a declaration is no proof: what holds the lease may be alive
        lease = state.leases[device.lease]
        return Refusal(
            "conflict",
            f"{device.name} is under a live lease of job {lease.job}; a quarantine is not cleared by hand under one",
            f"end the job first: rc kill {lease.job}; if its host is gone for good: rc admin retire {device.name}",
            {"device": device.name, "job": lease.job},
        )
    if device.quarantine is None:
        return Refusal("conflict", f"{device.name} is not quarantined, it is {device.words}", "", {})
    proof = f"declared clear by {command.by}: {command.reason}"
    return [ev.DeviceCleared(at=now, actor=command.by, device=device.name, proof=proof)]


def _retire(state: FleetState, device: Device, command: cmd.Operate, now: float) -> Decision:
    """The human declaration that a device, and whatever ran on it, is gone (I10). Not while its host offers it."""
    if device.contact and device.condition.outcome != "unknown":
        return Refusal(
            "conflict",
            f"{device.name} is offered by its host and is {device.words}; what is there cannot be retired",
            f"take it out of service: rc admin drain {device.name} --reason 'WHY'",
            {"device": device.name},
        )
    decided: list[ev.Event] = []
    if device.lease is not None:
        lease = state.leases[device.lease]
        job = state.jobs.get(lease.job)
        if device.contact:  # its host can be asked, so nobody need declare anything
            return Refusal(
                "conflict",
                f"{device.name} is under a live lease of job {lease.job}, and its host answers",
                f"end the job first: rc kill {lease.job}",
                {"device": device.name, "job": lease.job},
            )
        declared = f"{command.by} declared {device.name} gone: {command.reason}"
        if job is not None and job.attempt == lease.attempt and job.state not in (JobState.QUEUED, JobState.ENDED):
            decided.append(ended(job, Outcome(Ending.LOST, cause="declared_gone", detail=declared), now, command.by))
        decided.append(
            ev.LeaseReleased(
                at=now, actor=command.by, lease=lease.id, device=device.name, token=lease.token, proof=declared
            )
        )
    decided.append(ev.DeviceRetired(at=now, actor=command.by, device=device.name, reason=command.reason))
    return decided


_ACTS: Mapping[str, Callable[[FleetState, Device, cmd.Operate, float], Decision]] = {
    "drain": _drain,
    "resume": _resume,
    "quarantine": _quarantine,
    "clear": _clear,
    "retire": _retire,
}
