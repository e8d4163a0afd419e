"""Records to rows and back: what each table's row says of a job, a device, a lease, an agent or an event.

A row is a tuple of plain values in the order of the names beside the function that makes it. What never changes after
the first insert (a job's specification, which may hold a whole environment) is left out of the rows that update.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from tenure.domain import events as ev
from tenure.domain import label
from tenure.domain.device import Cause, Condition, Device, DeviceState, Quarantine
from tenure.domain.job import Job, JobState, Lease
from tenure.domain.specs import condition_from, condition_to, outcome_from, outcome_to, spec_from, spec_to
from tenure.domain.state import AgentRecord

Row: TypeAlias = tuple[Any, ...]


# Not-a-number is no JSON, and readers of the feed in other languages would fail on it: refused here, where one command
# can still be told from another. Escapes keep lone surrogates, which argv and paths may hold, out of UTF-8 columns.
def _encoder() -> Callable[[Any], str]:
    plain = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False)
    make: Any = vars(json.encoder).get("c_make_encoder")  # private to the interpreter, so it may go
    if make is None:
        return plain.encode
    # ``plain.encode`` makes this anew for each value, which costs as much as encoding a small event.
    pieces = make(None, plain.default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False)
    return lambda value: "".join(pieces(value, 0))


_encode = _encoder()


def to_json(value: Any) -> str:
    """Compact JSON text. Raises ``ValueError`` or ``TypeError`` for what JSON cannot say."""
    return _encode(value)


# -- events ------------------------------------------------------------------------------------------------------------


class Stored(NamedTuple):
    """One event as the ledger keeps it: its number, its time (UTC seconds), and its other fields as JSON text."""

    seq: int
    at: float
    kind: str
    actor: str
    job: str | None
    body: str

    @property
    def event(self) -> ev.Event:
        """The event itself. Raises ``KeyError`` for a kind that this version does not know."""
        return ev.from_body(self.kind, {**json.loads(self.body), "at": self.at, "actor": self.actor})


EVENT = Stored._fields


def event_row(seq: int, event: ev.Event) -> Stored:
    """The row of an event that is number ``seq`` of the ledger."""
    body = ev.to_body(event)
    del body["at"], body["actor"]
    return Stored(seq, event.at, event.kind, event.actor, body.get("job"), _encode(body))


# -- jobs --------------------------------------------------------------------------------------------------------------

JOB_MOVING = ("state", "attempt", "body", "version", "id")
JOB = ("owner", "key", "body_hash", "submitted_at", "order_at", "order_seq", "spec", *JOB_MOVING)


def job_moving(job: Job) -> Row:
    """What may change of a job, its id last."""
    return str(job.state), job.attempt, _encode(_job_body(job)), job.version, job.id


def job_row(job: Job) -> Row:
    """All of a job."""
    order_at, order_seq = job.order
    spec = _encode(spec_to(job.spec))
    return job.owner, job.key, job.body_hash, job.submitted_at, order_at, order_seq, spec, *job_moving(job)


#: Fields of a job that live in its JSON body, each with the value that a job begins with and that is not written.
_PLAIN: Mapping[str, Any] = {
    "last_attempt": 0,
    "refusals": 0,
    "leases": (),
    "devices": (),
    "granted_at": None,
    "started_at": None,
    "ended_at": None,
    "pid": None,
    "stop": None,
    "output_bytes": None,
    "use": None,
    "evidence": "",
    "notices": (),
}
_PLAIN_ITEMS = tuple(_PLAIN.items())


def _job_body(job: Job) -> dict[str, Any]:
    body = {}
    for name, initial in _PLAIN_ITEMS:
        value = getattr(job, name)
        if value != initial:
            body[name] = value
    if job.outcome is not None:
        body["outcome"] = outcome_to(job.outcome)
    return body


def job_from(row: Mapping[str, Any]) -> Job:
    """The job of a row."""
    body = json.loads(row["body"])
    outcome = body.get("outcome")
    plain = {name: body.get(name, initial) for name, initial in _PLAIN_ITEMS}
    return Job(
        id=row["id"],
        owner=row["owner"],
        spec=spec_from(json.loads(row["spec"])),
        state=JobState(row["state"]),
        submitted_at=row["submitted_at"],
        order=(row["order_at"], row["order_seq"]),
        key=row["key"],
        body_hash=row["body_hash"],
        attempt=row["attempt"],
        version=row["version"],
        outcome=None if outcome is None else outcome_from(outcome),
        **{**plain, **{name: tuple(plain[name]) for name in ("leases", "devices", "notices")}},
    )


# -- leases ------------------------------------------------------------------------------------------------------------

LEASE_MOVING = ("state", "released_at", "proof", "version", "id")
LEASE = ("device", "uuid", "agent", "job", "attempt", "token", "granted_at", "boot_id", *LEASE_MOVING)


def lease_moving(lease: Lease) -> Row:
    """What may change of a lease, its id last."""
    return lease.state, lease.released_at, lease.proof, lease.version, lease.id


def lease_row(lease: Lease) -> Row:
    """All of a lease."""
    return (
        lease.device,
        lease.uuid,
        lease.agent,
        lease.job,
        lease.attempt,
        lease.token,
        lease.granted_at,
        lease.boot_id,
        *lease_moving(lease),
    )


def lease_from(row: Mapping[str, Any]) -> Lease:
    """The lease of a row."""
    return Lease(**{name: row[name] for name in LEASE})


# -- devices -----------------------------------------------------------------------------------------------------------

DEVICE_MOVING = (
    "token",
    "state",
    "since",
    "contact",
    "lost_at",
    "lease",
    "lease_ending",
    "condition",
    "quarantine",
    "recoveries",
    "draining",
    "contended",
    "version",
    "name",
)
DEVICE = ("uuid", "kind", "host", "agent", "simulated", "labels", "facts", *DEVICE_MOVING)


def device_moving(device: Device) -> Row:
    """What changes of a device between two registrations, its name last."""
    quarantine, contended = device.quarantine, device.contended
    return (
        device.token,
        str(device.state),
        device.since,
        device.contact,
        device.lost_at,
        device.lease,
        device.lease_ending,
        _condition_text(device.condition),
        None if quarantine is None else _quarantine_text(quarantine),
        _encode(device.recoveries) if device.recoveries else "[]",
        device.draining,
        None if contended is None else _condition_text(contended),
        device.version,
        device.name,
    )


def device_row(device: Device) -> Row:
    """All of a device."""
    return (
        device.uuid,
        device.kind,
        device.host,
        device.agent,
        device.simulated,
        _encode(label.to_dict(device.labels)),
        _encode(dict(device.facts)),
        *device_moving(device),
    )


def device_from(row: Mapping[str, Any]) -> Device:
    """The device of a row, as it was when it was written."""
    quarantine = None
    if row["quarantine"] is not None:
        cause, detail, since, *by_hand = json.loads(row["quarantine"])
        quarantine = Quarantine(Cause(cause), detail, since, bool(by_hand and by_hand[0]))
    return Device(
        **{
            **{name: row[name] for name in DEVICE},
            "state": DeviceState(row["state"]),
            "labels": label.from_dict(json.loads(row["labels"])),
            "facts": json.loads(row["facts"]),
            "condition": _condition(row["condition"]),
            "quarantine": quarantine,
            "recoveries": tuple(json.loads(row["recoveries"])),
            "contended": None if row["contended"] is None else _condition(row["contended"]),
        }
    )


def _quarantine_text(quarantine: Quarantine) -> str:
    return _encode([str(quarantine.cause), quarantine.detail, quarantine.since, quarantine.by_hand])


@lru_cache(256)  # most of them say "clear"
def _condition_text(condition: Condition) -> str:
    return _encode(condition_to(condition))


def _condition(text: str) -> Condition:
    return condition_from(json.loads(text))


# -- agents and tokens -------------------------------------------------------------------------------------------------

AGENT = ("id", "host", "boot_id", "namespace", "instance", "user", "contact", "seen_at", "version")
TOKEN = ("uuid", "token")


def agent_row(agent: AgentRecord) -> Row:
    """All of an agent."""
    return (
        agent.id,
        agent.host,
        agent.boot_id,
        agent.namespace,
        agent.instance,
        agent.user,
        agent.contact,
        agent.seen_at,
        agent.version,
    )


def agent_from(row: Mapping[str, Any]) -> AgentRecord:
    """The agent of a row, as it was when it was written."""
    return AgentRecord(**{name: row[name] for name in AGENT})
