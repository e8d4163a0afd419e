"""An agent connects: what it offers is taken in, and nothing of it is believed beyond what it saw just now."""

from __future__ import annotations

from typing import Any

from tenure.domain import commands as cmd
from tenure.domain import events as ev
from tenure.domain import label
from tenure.domain.device import Device
from tenure.domain.pieces import faulted, observed, self_cleared
from tenure.domain.state import FleetState


def register(state: FleetState, command: cmd.Register, now: float) -> list[ev.Event]:
    """The events of a registration, in an order that leaves no device free for an instant without a look at it."""
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
    if known is None or shape != _shape(known) or _said(known.labels) != _said(label.from_dict(device.labels)):
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
        decided.append(observed(device.name, device.condition, now, actor))
    if known is not None:
        decided += faulted(known, device.condition, now, actor)
    if known is not None and known.lease is None:
        decided += self_cleared(known, device.condition, now, actor)
    return decided


def _shape(device: Device) -> tuple[Any, ...]:
    return (device.uuid, device.kind, device.host, device.agent, device.simulated, dict(device.facts))


def _said(labels: label.Labels) -> dict[str, dict[str, Any]]:
    """What labels say, without when it was read: a reading that only confirms the last one is no event."""
    return {name: {k: v for k, v in body.items() if k != "at"} for name, body in label.to_dict(labels).items()}
