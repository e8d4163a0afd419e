"""What the agent says of itself and of every device when it registers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import tenure
from tenure.agent.devices import AgentDevice
from tenure.domain.commands import KnownAttempt, OfferedDevice, Register
from tenure.domain.device import Condition
from tenure.domain.reading import Reading, Unavailable
from tenure.mounts import survives_reboot, user_name

if TYPE_CHECKING:
    from tenure.agent.shell import Shell


def register(shell: Shell) -> Register:
    """Who this agent is and everything it has, as of now."""
    me, state = shell.identity, shell.state
    return Register(
        agent=me.agent,
        host=me.host,
        boot_id=me.boot_id,
        namespace=me.namespace,
        instance=me.instance,
        user=user_name(),
        devices=tuple(_offer(shell, device) for device in shell.devices.by_uuid.values()),
        known=tuple(KnownAttempt(a.job, a.attempt, a.tokens) for a in state.attempts.values()),
        facts={
            "pid": os.getpid(),
            "version": tenure.__version__,
            "problems": list(shell.devices.problems),
            "memory_protection": shell.memory_ceilings.words,
            "state_survives_reboot": survives_reboot(shell.layout.agent),
        },
    )


def standing(shell: Shell, device: AgentDevice) -> Condition:
    """The condition a device is offered with: in use while any attempt of this agent is not proved gone from it.

    A controller that has the lease goes by the lease. One whose ledger was restored from an old copy has none, and must
    not take the device for free because the job on it has not yet made a context.
    """
    for attempt in shell.state.on_device(device.uuid):
        if device.held_by is None:
            return Condition("occupied", f"{attempt.job}#{attempt.attempt} of this agent is not proved gone from it")
    return device.offered


def _offer(shell: Shell, device: AgentDevice) -> OfferedDevice:
    return OfferedDevice(
        name=device.name,
        uuid=device.uuid,
        kind=device.found.kind,
        simulated=device.found.simulated,
        high_water=shell.state.high_water.get(device.uuid, 0),
        condition=standing(shell, device),
        labels={key: label.to_dict() for key, label in device.found.labels.items()},
        facts=_facts(shell, device),
    )


def _facts(shell: Shell, device: AgentDevice) -> dict[str, Any]:
    """What is known of the device, unknowns with their reason, and what it allows its jobs where that is set."""
    found = device.found
    told: dict[str, Any] = {"source": found.source, "mig_parent": found.mig_parent}
    readings: dict[str, Reading[Any]] = {
        "model": found.model,
        "memory": found.memory,
        "pci": found.pci,
        "capability": found.capability,
        "driver": found.driver,
        "cuda": found.cuda,
    }
    for name, reading in readings.items():
        told[name] = {"unknown": str(reading.reason)} if isinstance(reading, Unavailable) else reading.value
    allowed = shell.options.ceilings_of(device.name)
    if allowed is not None:
        told["bounds"] = allowed.facts
    return told
