"""The records that travelled in wire version 1, as they were. Frozen: never edit to match the program.

Only what is serialised was taken along; transition tables and words stayed where they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Condition:
    """What the agent last saw on a device outside any lease.

    ``outcome`` is ``clear`` (looked, nobody there), ``occupied`` (somebody is) or ``unknown`` (could not look, with
    the reason in ``detail``). ``by`` names who is there, as far as it is visible.
    """

    outcome: str
    detail: str = ""
    by: tuple[str, ...] = ()


class Ending(StrEnum):
    """What kind of end it was. Only ``EXITED``, ``SIGNALED`` and ``SPAWN_FAILED`` were observed on the process."""

    EXITED = "exited"
    SIGNALED = "signaled"
    SPAWN_FAILED = "spawn_failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    START_REFUSED = "start_refused"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended.

    ``code`` is the command's exit code or ``None``; ``signal`` the signal that ended it or ``None``; ``cause`` names
    the end of a lost job (``host_rebooted``, ``worker_restarted``, ``lost_cause_not_established``) or who asked for
    the stop; ``detail`` is one line for people; ``stats`` is what the supervisor measured.
    """

    ending: Ending
    code: int | None = None
    signal: int | None = None
    cause: str = ""
    detail: str = ""
    stats: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What was asked for. Nothing in here changes after submission.

    ``device`` names one device, ``select`` is a selector's canonical text; both may be empty (any device).
    ``queue_timeout_s`` bounds the wait in the queue; ``window`` overrides the limits of the verdict of use.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    select: str = ""
    count: int = 1
    priority: int = 0
    queue_timeout_s: float | None = None
    grace_s: float = 10.0
    label: str = ""
    umask: int | None = None
    window: Mapping[str, float] = field(default_factory=dict)


Tokens: TypeAlias = Mapping[str, int]


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
class ReportDevice:
    """What the agent sees on one of its devices; ``high_water`` says which grants it knew of when it looked."""

    agent: str
    device: str
    high_water: int
    condition: Condition


@dataclass(frozen=True, slots=True)
class Grant:
    """One device of an attempt: its name, its UUID, the fencing token and the lease's id."""

    device: str
    uuid: str
    token: int
    lease: str


@dataclass(frozen=True, slots=True)
class StartJob:
    """Run this attempt, if every token is higher than any the device has accepted."""

    job: str
    attempt: int
    owner: str
    grants: tuple[Grant, ...]
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class StopJob:
    """End this attempt if it runs, never start it afterwards, and prove its devices empty of it."""

    job: str
    attempt: int
    grants: tuple[Grant, ...]
    reason: str


Instruction: TypeAlias = StartJob | StopJob
Command: TypeAlias = ReportStarted | ReportRefused | ReportEnded | ReportUse | ReportDevice
