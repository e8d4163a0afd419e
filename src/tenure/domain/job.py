"""A job, its attempts and how it ended: records and the table of legal moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class JobState(StrEnum):
    """Where a job is. ``ENDED`` is the one terminal state; how it ended is its ``Outcome``."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


_J = JobState
#: Which state may follow which. A start that an agent refused (nothing was run) goes back to the queue.
MOVES: Mapping[JobState, frozenset[JobState]] = {
    _J.QUEUED: frozenset({_J.STARTING, _J.ENDED}),
    _J.STARTING: frozenset({_J.RUNNING, _J.STOPPING, _J.ENDED, _J.QUEUED}),
    _J.RUNNING: frozenset({_J.STOPPING, _J.ENDED}),
    _J.STOPPING: frozenset({_J.ENDED}),
    _J.ENDED: frozenset(),
}


class Ending(StrEnum):
    """What kind of end it was. Only ``EXITED``, ``SIGNALED`` and ``SPAWN_FAILED`` were observed on the process.

    ``REQUIREMENT_NOT_MET`` and ``STAGE_FAILED``: the agent got everything ready and found that it must not begin;
    nothing of the command was run.
    """

    EXITED = "exited"
    SIGNALED = "signaled"
    SPAWN_FAILED = "spawn_failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    START_REFUSED = "start_refused"
    LOST = "lost"
    REQUIREMENT_NOT_MET = "requirement_not_met"
    STAGE_FAILED = "stage_failed"


_STATUS: Mapping[Ending, int] = {
    Ending.CANCELLED: 130,
    Ending.TIMED_OUT: 124,
    Ending.REQUIREMENT_NOT_MET: 72,
    Ending.STAGE_FAILED: 74,
}


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

    @property
    def exit_status(self) -> int:
        """What a shell shows: the code, 128+n for a signal; 72: a requirement was not met; 71: no end was observed."""
        if self.code is not None:
            return self.code
        if self.signal is not None:
            return 128 + self.signal
        return _STATUS.get(self.ending, 71)

    @property
    def words(self) -> str:
        """One phrase for people, such as ``exited 7`` or ``ended by signal 15 (cancelled by ann)``."""
        match self.ending:
            case Ending.EXITED:
                said = f"exited {self.code}"
            case Ending.SIGNALED:
                said = f"ended by signal {self.signal}"
            case Ending.SPAWN_FAILED:
                said = f"could not be started ({self.code})"
            case Ending.LOST:
                return f"lost: {self.cause.replace('_', ' ')}" + (f" ({self.detail})" if self.detail else "")
            case other:
                said = other.replace("_", " ")
        aside = "; ".join(part for part in (self.cause, self.detail) if part)
        return f"{said} ({aside})" if aside else said


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What was asked for. Nothing in here changes after submission.

    ``device`` names one device, ``select`` is a selector's canonical text; both may be empty (any device).
    ``queue_timeout_s`` bounds the wait in the queue; ``window`` overrides the limits of the verdict of use.

    Bounds, seconds: ``max_runtime_s`` and ``idle_timeout_s``; ``None`` is the device's default, 0 is off.
    ``idle_signal`` says what counts as a sign of life: ``work`` (output, CPU or GPU work) or ``output`` alone.
    ``needs`` are the canonical texts of what must be there before the command may start; ``keep`` keeps the scratch
    after the end; ``stage`` describes the tree to be unpacked into it (hash, size, commit, dirty), empty for none.
    ``output_quota_bytes`` bounds how much of its output is stored, where that is less than its host allows.
    ``passed`` names those variables of ``env`` that are the caller's own, passed on because it is on the same machine:
    on another host they would mean something else, or nothing.
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
    max_runtime_s: float | None = None
    idle_timeout_s: float | None = None
    idle_signal: str = "work"
    needs: tuple[str, ...] = ()
    keep: bool = False
    stage: Mapping[str, Any] = field(default_factory=dict)
    output_quota_bytes: int | None = None
    passed: tuple[str, ...] = ()


@dataclass(frozen=True)  # no slots: see replacing
class Job:
    """One submitted command and where it stands.

    ``attempt`` counts grants (0 before the first); ``last_attempt`` is the highest number any host was heard to know,
    which exceeds it only after the ledger was restored from a copy. ``order`` is the queue key: it is fixed at
    submission, so that waiting alone moves a job forward and the bound on its wait can be stated. ``leases`` are the
    lease ids of the current attempt. ``stop`` says who asked for it to end and why.
    ``notices`` are what the host had to say beside the output: each has ``kind``, ``words``, ``utc`` and ``facts``.
    """

    id: str
    owner: str
    spec: JobSpec
    state: JobState
    submitted_at: float
    order: tuple[float, int]
    key: str | None = None
    body_hash: str = ""
    attempt: int = 0
    last_attempt: int = 0
    refusals: int = 0
    leases: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    granted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    pid: int | None = None
    stop: str | None = None
    outcome: Outcome | None = None
    output_bytes: int | None = None
    use: Mapping[str, Any] | None = None
    evidence: str = ""
    notices: tuple[Mapping[str, Any], ...] = ()
    version: int = 0


@dataclass(frozen=True)  # no slots: see replacing
class Lease:
    """One device lent to one attempt of one job, fenced by ``token``.

    ``state`` is ``held`` (the job may run), ``ending`` (the job is over, the proof of emptiness is not in) or
    ``released``. The first two are live: at most one live lease a device. ``boot_id`` is the boot of its host that was
    known when it was granted.
    """

    id: str
    device: str
    uuid: str
    agent: str
    job: str
    attempt: int
    token: int
    state: str
    granted_at: float
    released_at: float | None = None
    proof: str = ""
    boot_id: str = ""
    version: int = 0

    @property
    def live(self) -> bool:
        """Whether the device may not be lent to anyone else."""
        return self.state != "released"
