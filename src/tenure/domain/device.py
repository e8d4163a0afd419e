"""A device: the facts known of it, the state that follows from them, and the moves that are legal.

The state is never set by hand. ``state_of`` derives it from the facts in one fixed order of precedence, so that no
code path can show a device free by forgetting to look at one of them; ``MOVES`` then says which changes may happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tenure.domain.label import Labels


class DeviceState(StrEnum):
    """Only ``READY`` is free. Everything else is not, and says why."""

    READY = "ready"
    BUSY = "busy"
    ENDING = "ending"
    OCCUPIED = "occupied"
    DRAINING = "draining"
    UNKNOWN = "unknown"
    UNHEALTHY = "unhealthy"


class Cause(StrEnum):
    """Why a device is quarantined. ``FAULT`` and ``OPERATOR`` never clear themselves."""

    WORKER_LOST = "worker_lost"
    LEASE_EXPIRED = "lease_expired"
    REGISTRATION = "registration"
    DIRTY = "dirty"
    FAULT = "fault"
    OPERATOR = "operator"


SELF_CLEARING = frozenset({Cause.WORKER_LOST, Cause.LEASE_EXPIRED, Cause.REGISTRATION, Cause.DIRTY})

#: So many recoveries of a device by itself within so many seconds are the last: after them somebody has to look.
FLAPS, FLAP_WINDOW_S = 3, 3600.0


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Why a device may not be leased, with the full text of what was seen and since when (UTC seconds).

    ``by_hand``: no look ends it any more, because the device recovered by itself too often of late.
    """

    cause: Cause
    detail: str
    since: float
    by_hand: bool = False

    @property
    def clears_itself(self) -> bool:
        """Whether a look that refutes it ends it."""
        return self.cause in SELF_CLEARING and not self.by_hand


@dataclass(frozen=True, slots=True)
class Condition:
    """What the agent last saw on a device outside any lease.

    ``outcome`` is ``clear`` (looked, nobody there), ``occupied`` (somebody is), ``unknown`` (could not look, with
    the reason in ``detail``) or ``fault`` (the device itself answered that it is broken, such as one that fell off the
    bus). ``by`` names who is there, as far as it is visible.
    """

    outcome: str
    detail: str = ""
    by: tuple[str, ...] = ()


CLEAR = Condition("clear")
NOT_LOOKED = Condition("unknown", "no agent has looked at it yet")


@dataclass(frozen=True)  # no slots: see replacing
class Device:
    """One leasable device as the controller knows it.

    ``token`` is the highest fencing token ever granted or learned for its UUID; ``lease`` the live lease, if any,
    and ``lease_ending`` whether that lease's job is over. ``contact`` says that its agent is connected. ``since`` is
    the UTC time of the last change of state and ``version`` the number of the event that made it. ``recoveries`` are
    the times (UTC) of its latest recoveries by itself, at most ``FLAPS`` of them.
    """

    name: str
    uuid: str
    kind: str
    host: str
    agent: str
    simulated: bool
    token: int
    state: DeviceState
    since: float
    version: int = 0
    contact: bool = False
    lost_at: float | None = None
    lease: str | None = None
    lease_ending: bool = False
    condition: Condition = NOT_LOOKED
    quarantine: Quarantine | None = None
    recoveries: tuple[float, ...] = ()
    draining: str | None = None
    contended: Condition | None = None
    labels: Labels = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The state with its reason, as people read it."""
        match self.state:
            case DeviceState.UNHEALTHY if self.quarantine is not None:
                return f"unhealthy ({self.quarantine.cause}: {self.quarantine.detail})"
            case DeviceState.OCCUPIED:
                return f"occupied ({self.condition.detail or ', '.join(self.condition.by)})"
            case DeviceState.UNKNOWN if self.contact:
                return f"unknown ({self.condition.detail})"
            case DeviceState.UNKNOWN:
                return "unknown (no contact)"
            case DeviceState.DRAINING:
                return f"draining ({self.draining})"
            case DeviceState.ENDING if self.condition.outcome == "unknown":
                return f"ending ({self.condition.detail})"
            case DeviceState.BUSY if self.contended is not None:
                return f"busy (contended: {self.contended.detail})"
            case _:
                return str(self.state)


def state_of(device: Device) -> DeviceState:
    """Derives the state from the facts. The order is the rule: what is unknown hides everything else."""
    if not device.contact:
        return DeviceState.UNKNOWN
    if device.quarantine is not None:
        return DeviceState.UNHEALTHY
    if device.lease is not None:
        return DeviceState.ENDING if device.lease_ending else DeviceState.BUSY
    if device.condition.outcome in ("unknown", "fault"):  # a fault that was cleared by hand: until the next look
        return DeviceState.UNKNOWN
    if device.condition.outcome != "clear":
        return DeviceState.OCCUPIED
    if device.draining is not None:
        return DeviceState.DRAINING
    return DeviceState.READY


_S = DeviceState
#: Which state may follow which. ``busy`` and ``ending`` are never followed by ``ready`` but through ``ending``.
MOVES: Mapping[DeviceState, frozenset[DeviceState]] = {
    _S.READY: frozenset({_S.BUSY, _S.OCCUPIED, _S.DRAINING, _S.UNKNOWN, _S.UNHEALTHY}),
    _S.BUSY: frozenset({_S.ENDING, _S.UNKNOWN, _S.UNHEALTHY}),
    _S.ENDING: frozenset({_S.READY, _S.OCCUPIED, _S.DRAINING, _S.UNKNOWN, _S.UNHEALTHY}),
    _S.OCCUPIED: frozenset({_S.READY, _S.DRAINING, _S.UNKNOWN, _S.UNHEALTHY}),
    _S.DRAINING: frozenset({_S.READY, _S.OCCUPIED, _S.UNKNOWN, _S.UNHEALTHY}),
    _S.UNKNOWN: frozenset({_S.READY, _S.BUSY, _S.ENDING, _S.OCCUPIED, _S.DRAINING, _S.UNHEALTHY}),
    _S.UNHEALTHY: frozenset({_S.READY, _S.BUSY, _S.ENDING, _S.OCCUPIED, _S.DRAINING, _S.UNKNOWN}),
}
