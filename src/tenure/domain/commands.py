"""What the fleet core is asked to decide. Commands are plain requests; each may be refused, none is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tenure.domain.device import Condition
from tenure.domain.job import JobSpec, Outcome


@dataclass(frozen=True, slots=True)
class Begin:
    """A controller has come up: its clock sets a floor for tokens, and nobody has been heard yet."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Accept a job. ``job`` is a fresh id chosen by the shell; ``key`` makes the submission idempotent."""

    job: str
    owner: str
    spec: JobSpec
    key: str | None = None
    body_hash: str = ""
    wait: bool = True


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a job: at once where it waits, through the agent where it runs."""

    job: str
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class ExpireQueued:
    """The time a job was allowed to wait ran out (measured by the shell on its monotonic clock)."""

    job: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class Operate:
    """An operator's act on a device, with its reason on record: ``drain``, ``resume``, ``quarantine``, ``clear`` or
    ``retire``. Whoever asks has the right to: that is settled before."""

    device: str
    act: str
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """One device of an agent's inventory. ``high_water`` is the highest token its host ever accepted."""

    name: str
    uuid: str
    kind: str
    simulated: bool
    high_water: int
    condition: Condition
    labels: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


Tokens: TypeAlias = Mapping[str, int]
"""Device name -> fencing token. Every report of an attempt carries those of all its devices."""


@dataclass(frozen=True, slots=True)
class KnownAttempt:
    """An attempt that an agent still holds a record of."""

    job: str
    attempt: int
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Register:
    """An agent connected, with everything it has. ``known`` are the attempts it still holds."""

    agent: str
    host: str
    boot_id: str
    namespace: str
    instance: str
    user: str
    devices: tuple[OfferedDevice, ...]
    known: tuple[KnownAttempt, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoseContact:
    """Nothing was heard of an agent for ``silent_s``, controller's own downtime not counted."""

    agent: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class ReportStarted:
    """The agent saw the command start."""

    agent: str
    job: str
    attempt: int
    tokens: Tokens
    pid: int
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class ReportRefused:
    """The agent did not start the attempt and ran nothing of it; ``proofs`` as in ``ReportEnded``."""

    agent: str
    job: str
    attempt: int
    tokens: Tokens
    reason: str
    proofs: Mapping[str, Condition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportEnded:
    """The attempt is over. ``proofs`` holds, for each device already looked at, what was found there.

    It is sent again, whole, whenever a look found something new: so the reports of one attempt may be lost, repeated
    and reordered, and whichever arrives says all that is known.
    """

    agent: str
    job: str
    attempt: int
    tokens: Tokens
    outcome: Outcome
    output_bytes: int | None = None
    proofs: Mapping[str, Condition] = field(default_factory=dict)
    use: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ReportUse:
    """The verdict of use of a running attempt changed."""

    agent: str
    job: str
    attempt: int
    tokens: Tokens
    use: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReportNotice:
    """The agent has something to say beside the output: a bound that is near, a quota that was hit, what it stopped.

    ``notice`` has ``kind`` (a word for programs), ``words`` (a line for people), ``utc`` and ``facts``.
    """

    agent: str
    job: str
    attempt: int
    tokens: Tokens
    notice: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReportDevice:
    """What the agent sees on one of its devices; ``high_water`` says which grants it knew of when it looked."""

    agent: str
    device: str
    high_water: int
    condition: Condition


Command: TypeAlias = (
    Begin
    | Submit
    | Cancel
    | ExpireQueued
    | Operate
    | Register
    | LoseContact
    | ReportStarted
    | ReportRefused
    | ReportEnded
    | ReportUse
    | ReportNotice
    | ReportDevice
)
