"""What has happened, in the past tense. The fleet's state is the fold of these and of nothing else.

Every event is a frozen record of plain values, so that the ledger can store it as JSON and rebuild it by name.
``at`` is UTC seconds and only labels; no decision compares two of them from different machines.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The root: when it was decided, and who caused it (a principal, ``agent:ID`` or ``controller``)."""

    kind: ClassVar[str] = "event"
    at: float
    actor: str = "controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStarted(Event):
    """A controller took over this ledger. Every token it grants is above ``token_floor``."""

    token_floor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRegistered(Event):
    """An agent connected and said who it is. ``boot_id``, ``namespace`` and ``instance`` tell restarts apart."""

    agent: str
    host: str
    boot_id: str
    namespace: str
    instance: str
    user: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRegistered(Event):
    """An agent offered a device, as it is now: also sent when labels, facts or the name's UUID changed."""

    device: str
    uuid: str
    device_kind: str
    host: str
    agent: str
    simulated: bool
    labels: Mapping[str, Any]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWithdrawn(Event):
    """The agent no longer finds a device it had offered; it is unknown until the host proves otherwise."""

    device: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceObserved(Event):
    """What the agent saw on a device: ``clear``, ``occupied`` or ``unknown``, outside any lease."""

    device: str
    outcome: str
    detail: str = ""
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceContended(Event):
    """Somebody else was seen on a leased device (``by`` empty: no longer)."""

    device: str
    lease: str
    detail: str = ""
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceQuarantined(Event):
    """A device may not be leased until its cause is gone; with ``by_hand`` until somebody says that it is."""

    device: str
    cause: str
    detail: str
    by_hand: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCleared(Event):
    """A quarantine ended: by proof from the host (``itself``), or because ``actor``, a human, declared it."""

    device: str
    proof: str
    itself: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDrained(Event):
    """An operator takes a device out of service: what runs on it runs on, and nothing new begins."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResumed(Event):
    """An operator puts a drained device back into service."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRetired(Event):
    """An operator takes a device that no host offers any more off the books."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactLost(Event):
    """Nothing was heard of an agent for longer than allowed: its devices are unknown, its leases stay in force."""

    agent: str
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFloorRaised(Event):
    """An agent had accepted a higher token than the controller remembered; tokens go on from there."""

    uuid: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSeen(Event):
    """A host knows of a later attempt than the ledger does (which was restored): numbers go on from there."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted(Event):
    """A job was accepted; from here on it is exactly one job, whatever crashes."""

    job: str
    owner: str
    spec: Mapping[str, Any]
    order: tuple[float, int]
    key: str | None
    body_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGranted(Event):
    """Devices were lent to one attempt of a job: all of them in this one event. ``leases``: (id, device, token)."""

    job: str
    attempt: int
    leases: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(Event):
    """The job's command runs; ``pid`` is its leader on the host."""

    job: str
    attempt: int
    pid: int
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(Event):
    """Somebody with the right asked for the job to end; ``reason`` is shown with its end."""

    job: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded(Event):
    """The job is over, once and for all."""

    job: str
    attempt: int
    outcome: Mapping[str, Any]
    output_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequeued(Event):
    """An agent refused the start and ran nothing: the job keeps its place in the queue."""

    job: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReleased(Event):
    """The host proved that nothing of the lease is left on the device."""

    lease: str
    device: str
    token: int
    proof: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UseJudged(Event):
    """The verdict of use was told; ``use`` is the whole verdict with its evidence.

    ``before`` and ``after`` are its labels as printed (``partial 1/4``); the same where only the evidence is newer.
    """

    job: str
    attempt: int
    use: Mapping[str, Any]
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UseWarned(Event):
    """A warning or an advisory about a job's use went out: once each, recorded before anybody is told.

    ``warning`` is the whole announcement, with the procedure to follow. Nothing is stopped, moved or preempted for it.
    """

    job: str
    attempt: int
    warning: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNoticed(Event):
    """The job's host had something to say beside the output; see ``commands.ReportNotice``."""

    job: str
    attempt: int
    notice: Mapping[str, Any]


def _kind_of(cls: type[Event]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


#: Every kind of event by its stored name, such as ``lease_granted``.
KINDS: Mapping[str, type[Event]] = {_kind_of(cls): cls for cls in Event.__subclasses__()}
for _name, _cls in KINDS.items():
    _cls.kind = _name

_FIELDS = {cls: tuple(f.name for f in dataclasses.fields(cls)) for cls in KINDS.values()}


def to_body(event: Event) -> dict[str, Any]:
    """The event's fields as JSON-able values (tuples stay tuples: they become lists in JSON)."""
    return {name: getattr(event, name) for name in _FIELDS[type(event)]}


def from_body(kind: str, body: Mapping[str, Any]) -> Event:
    """The event that ``to_body`` wrote. Unknown fields of a newer version are ignored; a missing one raises."""
    cls = KINDS[kind]
    known = {name: _frozen(body[name]) for name in _FIELDS[cls] if name in body}
    return cls(**known)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
