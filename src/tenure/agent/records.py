"""The agent core's records: attempts, the events it journals, the messages it is told, the effects it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tenure.domain.device import Condition
from tenure.domain.instructions import Grant, StartJob, StopJob
from tenure.domain.job import JobSpec, Outcome

Key: TypeAlias = tuple[str, int]
"""(job, attempt)."""

#: Outcomes of a look that prove a device empty of the attempt that was on it: nobody there, or somebody else.
PROVES_EMPTY = frozenset({"clear", "occupied"})


@dataclass(frozen=True)  # no slots: see tenure.domain.replacing
class Attempt:
    """One attempt as its host knows it.

    ``phase``: ``accepted`` (the tokens are durable, the supervisor is being made), ``started``, ``ended`` (nothing of
    it runs; also for one that never ran, then ``outcome`` is ``None``). ``identity`` is (boot id, namespace, agent
    instance) when it was accepted. ``unproved`` are the devices not yet seen empty of it and ``looks`` what was last
    seen there. ``owed`` are the numbers of its reports that the controller has not acknowledged; ``output_acked``
    is how much of its output it has.
    """

    job: str
    attempt: int
    owner: str
    grants: tuple[Grant, ...]
    spec: JobSpec | None
    phase: str
    identity: tuple[str, str, str] = ("", "", "")
    stop: str | None = None
    supervisor: tuple[int, int] | None = None
    outcome: Outcome | None = None
    use: Mapping[str, Any] | None = None
    output_bytes: int = 0
    output_acked: int = 0
    unproved: frozenset[str] = frozenset()
    looks: Mapping[str, Condition] = field(default_factory=dict)
    owed: frozenset[int] = frozenset()
    unasked: bool = False

    @property
    def key(self) -> Key:
        """(job, attempt)."""
        return (self.job, self.attempt)

    @property
    def tokens(self) -> dict[str, int]:
        """Device name -> fencing token, as every report of the attempt carries."""
        return {grant.device: grant.token for grant in self.grants}


# -- events: journaled, then applied -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fenced:
    """The high-water tokens were raised (UUID -> token)."""

    tokens: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class AttemptAccepted:
    """A start was accepted; its supervisor may be made only after this is durable (I5)."""

    job: str
    attempt: int
    owner: str
    grants: tuple[Grant, ...]
    spec: JobSpec
    identity: tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class AttemptDeclined:
    """An attempt that will not run here: a start refused, or a stop that came first.

    ``outcome`` is set where it may have run once and nothing of that is known any more; ``identity`` is then what the
    controller knew of the host when it was granted. ``unasked`` as in ``NotStarted``.
    """

    job: str
    attempt: int
    grants: tuple[Grant, ...]
    reason: str
    outcome: Outcome | None = None
    identity: tuple[str, str, str] = ("", "", "")
    unasked: bool = False


@dataclass(frozen=True, slots=True)
class StopAccepted:
    """The attempt is to end; ``reason`` says who asked."""

    job: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class SupervisorMade:
    """The supervisor lives, as (pid, start time in clock ticks)."""

    job: str
    attempt: int
    supervisor: tuple[int, int]


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """Nothing of the attempt runs any more."""

    job: str
    attempt: int
    outcome: Outcome
    output_bytes: int
    use: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DevicesLooked:
    """What was found on devices of an ended attempt; those in ``PROVES_EMPTY`` are proved empty of it."""

    job: str
    attempt: int
    proofs: Mapping[str, Condition]


@dataclass(frozen=True, slots=True)
class ReportQueued:
    """A report is owed to the controller until it acknowledges ``seq`` (I13)."""

    seq: int
    kind: str
    body: Mapping[str, Any]
    key: Key


@dataclass(frozen=True, slots=True)
class ReportAcked:
    """The controller has a report for good."""

    seq: int


@dataclass(frozen=True, slots=True)
class OutputAcked:
    """The controller has the attempt's output up to ``offset`` for good."""

    job: str
    attempt: int
    offset: int


@dataclass(frozen=True, slots=True)
class AttemptForgotten:
    """The controller has everything of the attempt; its output may be deleted."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobsUnlooked:
    """The attempts of which anything may have run since the last look at this worker began: all of them, and ``more``
    that are too many to be named."""

    keys: tuple[Key, ...]
    more: int = 0


AgentEvent: TypeAlias = (
    Fenced
    | AttemptAccepted
    | AttemptDeclined
    | StopAccepted
    | SupervisorMade
    | AttemptEnded
    | DevicesLooked
    | ReportQueued
    | ReportAcked
    | OutputAcked
    | AttemptForgotten
    | JobsUnlooked
)


# -- messages: what the shell tells the core ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The spawner answered: the command runs under its supervisor."""

    job: str
    attempt: int
    supervisor: tuple[int, int]
    leader_pid: int
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The supervisor could not be made and nothing of the attempt runs.

    ``unasked``: the agent that accepted it says so itself, and had asked nobody to begin it yet.
    """

    job: str
    attempt: int
    detail: str
    unasked: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """The supervisor's exit record, or what can be said without one; ``proofs`` where devices were looked at."""

    job: str
    attempt: int
    outcome: Outcome
    output_bytes: int
    proofs: Mapping[str, Condition] = field(default_factory=dict)
    use: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look at the devices of an ended attempt found."""

    job: str
    attempt: int
    proofs: Mapping[str, Condition]


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict of use of a running attempt changed."""

    job: str
    attempt: int
    use: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Noticed:
    """Something to be said beside the output; ``notice`` as in ``commands.ReportNotice``."""

    job: str
    attempt: int
    notice: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Overran:
    """The attempt broke a bound and is to end; ``reason`` says which bound and with what numbers."""

    job: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class FloorsGiven:
    """The controller's word on the tokens (UUID -> token) that were in use here before: none of them may come again.

    It matters where this agent's own record of them is gone, such as one on storage that a reboot empties.
    """

    tokens: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WorkerLooked:
    """A look at this worker is on disk; ``over`` are the attempts of which nothing ran any more when it began."""

    over: frozenset[Key]


@dataclass(frozen=True, slots=True)
class Acked:
    """The controller acknowledged a report."""

    seq: int


@dataclass(frozen=True, slots=True)
class OutputTaken:
    """The controller acknowledged output up to ``offset``."""

    job: str
    attempt: int
    offset: int


Message: TypeAlias = (
    StartJob
    | StopJob
    | Started
    | NotStarted
    | Ended
    | Looked
    | Judged
    | Noticed
    | Overran
    | FloorsGiven
    | WorkerLooked
    | Acked
    | OutputTaken
)


# -- effects: what the shell does once the events are durable ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawn:
    """Make the supervisor of an accepted attempt."""

    key: Key


@dataclass(frozen=True, slots=True)
class Signal:
    """Tell the attempt's supervisor to end the whole tree."""

    key: Key


@dataclass(frozen=True, slots=True)
class Look:
    """Look at the attempt's unproved devices, again and again until they are empty of it."""

    key: Key


@dataclass(frozen=True, slots=True)
class Send:
    """Send a report of the outbox now, if there is a connection."""

    seq: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete the attempt's output: the controller has it."""

    key: Key


Effect: TypeAlias = Spawn | Signal | Look | Send | Discard
