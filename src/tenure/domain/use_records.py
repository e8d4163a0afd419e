"""The records of the proof of use: what was sampled, what a window held, what may be said of it.

Everything here is frozen and free of rules. The rules live in ``use_window`` (one sample after another, bounded
memory) and ``use`` (the verdicts); the sentences live in ``use_words``. Times are seconds on the host's monotonic
clock; memory is in bytes; utilisation is in per cent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tenure.domain.reading import Reading, Reason, Scope, Value

_LOOK_EVERY_S = 7.0


class Verdict(StrEnum):
    """What may be said of a device, or of a job. ``partial`` and ``not_applicable`` are said of jobs only."""

    USED = "used"
    CONTEXT_IDLE = "context_idle"
    NO_CONTEXT = "no_context"
    UNKNOWN = "unknown"
    PARTIAL = "partial"
    NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much must have been looked at before a verdict of absence is stated.

    ``grace_s``: instants before (start of the job + grace) never count towards absence; a context or work seen then
    counts as seen. ``span_s`` and ``samples``: the conclusive window lasts at least so long AND holds at least so many
    instants in which every instrument relied on answered, the look at the open files included. ``max_gap_s``: a longer
    pause between instants, or between looks at the open files, begins the window anew (``sampling_gap``). Its default
    lets one look at the open files in two go missing, and is twice the 8 s that 8 samples over 56 s leave between them.
    """

    grace_s: float = 120.0
    span_s: float = 56.0
    samples: int = 8
    max_gap_s: float = 15.0

    def __post_init__(self) -> None:
        if not (self.grace_s >= 0 and self.span_s > 0 and self.samples >= 2 and self.max_gap_s > 0):
            raise ValueError(f"limits of a window need grace >= 0, span > 0, samples >= 2, gap > 0; got {self}")
        if self.max_gap_s < self.look_every_s:
            raise ValueError(f"max_gap_s {self.max_gap_s:g} is below the pause between looks ({self.look_every_s:g})")

    @property
    def look_every_s(self) -> float:
        """How often the open files must be read so that a window of ``span_s`` holds ``samples`` looks; 7 s at most."""
        return min(_LOOK_EVERY_S, self.span_s / self.samples)


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """An entry of a device's process list. ``memory`` in bytes, None where the driver does not say.

    ``resting``: declared to always sit on this device (a desktop, a service), so no contention; its memory is part of
    the resting baseline.
    """

    pid: int
    user: str | None = None
    command: str | None = None
    memory: int | None = None
    resting: bool = False


@dataclass(frozen=True, slots=True)
class Processes:
    """A device's process list, sorted into the job's own, somebody else's, and pids not to be found from here."""

    own: tuple[ListedProcess, ...] = ()
    foreign: tuple[ListedProcess, ...] = ()
    unresolvable: tuple[ListedProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Handles:
    """Driver handles and libraries open in the job's own tree: ``processes`` were read, ``open`` names what was found.

    A tree of no processes (``processes == 0``) was not looked at: absence is a fact only where the probe found a thing
    known to be there. A tree that could not be read in full is ``Unavailable(no_permission)``, never an empty ``open``.
    """

    processes: int
    open: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accounting:
    """What the driver's accounting says of the job's processes, ended ones included; counts only ever grow.

    ``whole_life``: accounting was on, without a loss, from before the job's first process on. ``contexts``: the job's
    processes it names; ``running`` of them still run. ``utilisation``: the highest per cent it gives one of them.
    """

    whole_life: bool
    contexts: int
    running: int = 0
    utilisation: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One instant of one device, as the instruments answered.

    ``handles`` is None where the open files were NOT looked at in this instant (they are read every few seconds, the
    cheap instruments at 1 Hz). Never carry an earlier look forward: the fold itself settles what an instant between
    two looks is worth. ``own_utilisation`` speaks of the job's processes only; where the driver has no entry for them
    it is Unavailable. ``cpu_s``: CPU-seconds of the job's whole tree since its start, ended processes included.
    """

    device: str
    at: float
    memory_used: Reading[int]
    utilisation: Reading[float]
    processes: Reading[Processes]
    own_utilisation: Reading[float]
    handles: Reading[Handles] | None = None
    accounting: Reading[Accounting] | None = None
    cpu_s: Reading[float] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.own_utilisation, Value) and self.own_utilisation.scope is not Scope.PROCESS:
            raise ValueError("own_utilisation must be of scope process: a device-wide figure says nothing of the job")
        if isinstance(self.utilisation, Value) and self.utilisation.scope is not Scope.DEVICE:
            raise ValueError("utilisation must be of scope device")


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something is unknown: the reason, the instrument that gave it, and its own words."""

    reason: Reason
    instrument: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CpuMark:
    """CPU-seconds of the job's tree at an instant."""

    at: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU-seconds spent over a span of ``span_s`` seconds; ``cores`` is their quotient."""

    span_s: float
    cpu_s: float

    @property
    def cores(self) -> float:
        return self.cpu_s / self.span_s

    @staticmethod
    def between(first: CpuMark | None, last: CpuMark | None) -> CpuUse | None:
        """None where an end is not known, the span is empty, or the count fell (then it was no running total)."""
        if first is None or last is None or last.at <= first.at or last.cpu_s < first.cpu_s:
            return None
        return CpuUse(last.at - first.at, last.cpu_s - first.cpu_s)


@dataclass(frozen=True, slots=True)
class Window:
    """A run of instants: when, how many, how far apart, and at how many of them the open files were read."""

    start: float
    end: float
    instants: int
    largest_gap: float = 0.0
    looks: int = 0
    largest_look_gap: float = 0.0
    last_look: float | None = None
    contexts: int = 0
    cpu_first: CpuMark | None = None
    cpu_last: CpuMark | None = None

    @property
    def span(self) -> float:
        return self.end - self.start

    @property
    def cpu(self) -> CpuUse | None:
        return CpuUse.between(self.cpu_first, self.cpu_last)


@dataclass(frozen=True, slots=True)
class Restart:
    """When and why a window of absence had to begin anew; no ``cause`` means that a context of the job was seen."""

    at: float
    cause: Cause | None


@dataclass(frozen=True, slots=True)
class Tally:
    """How often one instrument answered and how often not, with the reason it gave last."""

    instrument: str
    answered: int = 0
    unavailable: int = 0
    last_reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """What may be said of the job's use of one device.

    ``verdict`` speaks of the job so far: work once seen stays seen. ``current`` speaks of the window that ends now.
    ``window`` is the run of instants that ``verdict`` rests on; ``life`` holds every instant looked at. ``reasons`` is
    empty unless the verdict is unknown; its first entry is the reason. ``idle_since``: start of a conclusive run
    without work after work was seen. ``blind_since``: start of the present run of instants at which the process list
    did not answer, so that nothing can be told of what was seen before it; ``blind_cause`` says why. ``earlier``: the
    last conclusive window without a context that has since been broken. ``zero``: the present run of instants at which
    memory read exactly 0, where it reaches span and count and memory never read anything else (then
    ``memory_zero_throughout``).
    ``unsettled_zero``: that, and another instrument kept the verdict unknown: the not conclusive warning is due.
    """

    device: str
    verdict: Verdict
    current: Verdict
    at: float
    started_at: float
    limits: Limits
    words: str
    reasons: tuple[Cause, ...] = ()
    window: Window | None = None
    life: Window | None = None
    earlier: Window | None = None
    first_context_at: float | None = None
    last_context_at: float | None = None
    context_instants: int = 0
    first_work_at: float | None = None
    last_work_at: float | None = None
    work_instants: int = 0
    idle_since: float | None = None
    blind_since: float | None = None
    blind_cause: Cause | None = None
    contended: bool = False
    contenders: tuple[ListedProcess, ...] = ()
    zero: Window | None = None
    unsettled_zero: bool = False
    accounting_whole_life: bool = False
    instruments: tuple[Tally, ...] = ()
    restarts: int = 0
    last_restart: Restart | None = None
    listed_without_handles: int = 0
    late_samples: int = 0
    final: bool = False

    @property
    def reason(self) -> Reason | None:
        return self.reasons[0].reason if self.reasons else None

    @property
    def memory_zero_throughout(self) -> bool:
        """Memory read exactly 0 throughout: louder than idle utilisation, and no proof by itself."""
        return self.zero is not None

    @property
    def context_seen(self) -> bool:
        """A context of the job was seen on this device, whatever came of it. (A claim of one is upheld by that.)"""
        return self.first_context_at is not None


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """The job's verdict became ``label`` (as printed: ``partial 1/4``) at ``at``."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """What may be said of a job: its devices' verdicts under the precedence of C1, in one truthful line of ``words``.

    ``used``/``of``: how many devices were used, of how many leased. ``cpu``: what the job's tree spent beside it, over
    the same window. ``changes``: every change of the job's verdict since the first that was not unknown;
    ``changes_dropped`` of them, from the middle, were not kept.
    """

    verdict: Verdict
    used: int
    of: int
    words: str
    devices: tuple[DeviceVerdict, ...] = ()
    reasons: tuple[Cause, ...] = ()
    cpu: CpuUse | None = None
    changes: tuple[VerdictChange, ...] = ()
    changes_dropped: int = 0
    at: float | None = None
    final: bool = False

    @property
    def reason(self) -> Reason | None:
        return self.reasons[0].reason if self.reasons else None

    @property
    def label(self) -> str:
        """The verdict as printed: ``used``, ``partial 1/4``, ``unknown`` ..."""
        return f"partial {self.used}/{self.of}" if self.verdict is Verdict.PARTIAL else self.verdict.value

    @property
    def contended(self) -> bool:
        return any(device.contended for device in self.devices)


class AnnouncementKind(StrEnum):
    """A warning goes out once a phase, conclusive or not; an advisory (partial or mixed) once a phase too."""

    WARNING = "warning"
    ADVISORY = "advisory"


@dataclass(frozen=True, slots=True)
class Announcement:
    """What is to be recorded durably, then said once. ``procedure``: what to do now; nothing is stopped."""

    kind: AnnouncementKind
    conclusive: bool
    label: str
    words: str
    procedure: str
    at: float | None
