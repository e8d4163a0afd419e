"""What the controller tells of jobs, devices and itself, as frozen records.

Fields that a newer controller adds are ignored; fields that an older one lacks take their defaults. Times are UTC
seconds. ``raw`` is the answer as it came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

R = TypeVar("R")


def read(kind: type[R], body: Mapping[str, Any]) -> R:
    """The record of type ``kind`` in a JSON answer."""
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    return kind(**{**{name: value for name, value in body.items() if name in known}, "raw": dict(body)})


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended; see ``tenure.domain.job.Outcome``. ``code`` or ``signal`` is set where the end was observed."""

    ending: str
    code: int | None = None
    signal: int | None = None
    cause: str = ""
    detail: str = ""
    stats: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Job:
    """One submitted command. ``simulated`` names those of its devices that are simulated; ``use`` is the verdict of use
    as JSON (``tenure.domain.use.job_verdict_from_dict`` reads it); ``position`` and ``reason`` are there while queued.
    """

    id: str
    owner: str
    state: str
    words: str
    argv: list[str]
    label: str = ""
    cwd: str | None = None
    attempt: int = 0
    devices: list[str] = field(default_factory=list)
    leases: list[dict[str, Any]] = field(default_factory=list)
    simulated: list[str] = field(default_factory=list)
    submitted_at: float = 0.0
    granted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    pid: int | None = None
    stop: str | None = None
    outcome: Outcome | None = None
    exit_status: int | None = None
    output_bytes: int | None = None
    use: Mapping[str, Any] | None = None
    evidence: str = ""
    notices: list[dict[str, Any]] = field(default_factory=list)
    left: Mapping[str, Any] | None = None
    position: int | None = None
    reason: str | None = None
    version: int = 0
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Job:
        """The job in a JSON answer."""
        outcome = body.get("outcome")
        return read(cls, {**body, "outcome": None if outcome is None else read(Outcome, outcome)})

    @property
    def ended(self) -> bool:
        """Whether it is over, however it ended."""
        return self.state == "ended"

    @property
    def verdict(self) -> str | None:
        """``used``, ``partial``, ``context_idle``, ``no_context``, ``unknown``, ``not_applicable``; None: not told."""
        return None if self.use is None else str(self.use.get("verdict"))


@dataclass(frozen=True, slots=True)
class Device:
    """One device as it is known now. Only ``free`` ones are; ``words`` is the state with its reason."""

    name: str
    uuid: str
    kind: str
    host: str
    state: str
    words: str
    simulated: bool = False
    free: bool = False
    since: float = 0.0
    contact: bool = False
    token: int = 0
    lease: str | None = None
    job: str | None = None
    holder: str | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    quarantine: Mapping[str, Any] | None = None
    contended: Mapping[str, Any] | None = None
    version: int = 0
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Status:
    """The controller itself: who and where it is, and how many devices and jobs it has in which state."""

    version: str
    pid: int
    user: str
    home: str
    state_folder: str
    started_at: float
    mode: str
    wire: int = 0
    agents: list[dict[str, Any]] = field(default_factory=list)
    devices: Mapping[str, int] = field(default_factory=dict)
    simulated_devices: int = 0
    queued: int = 0
    running: int = 0
    ledger_version: int = 0
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
