"""What one instant of one device shows: a context of the job, work, or proof that there is neither.

Two questions are asked of every instant, and each has three answers.

* Is the job on the device? Yes: a process of the job is in its list (or accounting names one, or the job's own
  utilisation is above zero). No: every instrument relied on answered and none shows anything. Else unknown.
* Does it work? Yes: the job's own utilisation or accounting is above zero; the device-wide figure counts only when all
  listed processes are the job's. No: a work instrument answered zero. Else unknown.

An instrument that has never answered on this device (memory of a unified-memory machine: ``not_supported``) is not
relied on; once it has answered, it is. Open driver handles prove neither a context nor its absence, since enumerating
devices opens them; so they leave the first question unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tenure.domain.reading import Reading, Reason, Unavailable, Value
from tenure.domain.use_records import Cause, DeviceSample, ListedProcess, Processes

PROCESS_LIST = "process list"
OPEN_FILES = "open files"
MEMORY = "memory"
UTILISATION = "utilisation"
OWN_UTILISATION = "own utilisation"
ACCOUNTING = "accounting"

# Per-process figures and the device's total do not add up to the byte. Chosen, not measured: less than the memory that
# a context is known to take (tens of MiB and up), more than rounding to pages and MiB leaves over.
_UNOWNED_SLACK = 16 << 20


class Work(Enum):
    """The answer to "does the job work on the device?" at one instant."""

    SEEN = "seen"
    ZERO = "zero"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Known:
    """What earlier instants of this device settled: which instruments answer, what accounting had already named."""

    memory: bool = False
    utilisation: bool = False
    accounted: int = 0
    accounted_utilisation: float = 0.0


@dataclass(frozen=True, slots=True)
class Instant:
    """One instant, read. ``causes`` say why the cheap instruments leave absence open, ``look_causes`` the open files.

    ``looked``: the open files were really read. ``absent`` needs no look; absence is conclusive only with one.
    """

    context: bool
    work: Work
    work_cause: Cause | None
    looked: bool
    causes: tuple[Cause, ...]
    look_causes: tuple[Cause, ...]

    @property
    def absent(self) -> bool:
        return not self.context and not self.causes and not self.look_causes

    @property
    def no_work(self) -> bool:
        """Certainly no work of the job: a work instrument answered zero, or the job is not on the device."""
        return self.work is Work.ZERO or (self.work is Work.UNKNOWN and self.absent)


def read_instant(sample: DeviceSample, baseline: Reading[int], known: Known) -> Instant:
    """Answer both questions for one instant."""
    listed = sample.processes.value if isinstance(sample.processes, Value) else None
    named, accounted_work = _accounted(sample, known)
    own_work = _above_zero(sample.own_utilisation) or accounted_work
    sole = listed is not None and bool(listed.own) and not listed.foreign and not listed.unresolvable
    context = own_work or named or (listed is not None and bool(listed.own))
    work, work_cause = _work(sample, seen=own_work or (sole and _above_zero(sample.utilisation)))

    causes = [*_list_causes(sample.processes), *_memory_causes(sample, listed, baseline, known)]
    causes += _utilisation_causes(sample, listed, known)
    looked, look_causes = _look(sample)
    return Instant(context, work, work_cause, looked, tuple(causes), look_causes)


def mib(amount: int) -> str:
    """``512 MiB``; the bytes themselves where they are less than one."""
    return f"{amount / (1 << 20):.0f} MiB" if amount >= 1 << 20 else f"{amount} bytes"


def _above_zero(reading: Reading[float]) -> bool:
    return isinstance(reading, Value) and reading.value > 0


def _cause(reading: Unavailable, instrument: str) -> Cause:
    return Cause(reading.reason, instrument, reading.detail)


def _accounted(sample: DeviceSample, known: Known) -> tuple[bool, bool]:
    """(a context now or since the last instant, work since the last instant), by accounting.

    Its records of ended processes stay for good: only what is new, or still runs, speaks of this instant.
    """
    if not isinstance(sample.accounting, Value):
        return False, False
    told = sample.accounting.value
    new = told.contexts > known.accounted
    utilisation = told.utilisation or 0.0
    work = utilisation > 0 and (new or utilisation > known.accounted_utilisation)
    return new or told.running > 0, work


def _work(sample: DeviceSample, *, seen: bool) -> tuple[Work, Cause | None]:
    if seen:
        return Work.SEEN, None
    own, device = sample.own_utilisation, sample.utilisation
    if isinstance(device, Value) and not device.value > 0:
        return Work.ZERO, None
    wide = f"device-wide {device.value:g} %" if isinstance(device, Value) else f"device-wide {device.reason}"
    if isinstance(own, Value):
        if _hides_pids(sample.processes):
            # Zero for the processes that can be told from here; a hidden one may be the job's as well.
            return Work.UNKNOWN, Cause(Reason.FOREIGN_NAMESPACE, OWN_UTILISATION, f"{wide}; some pids are hidden")
        return Work.ZERO, None
    # A device that works while others (or nobody knows who) are on it says nothing of the job.
    shared = isinstance(device, Value) and isinstance(sample.processes, Value)
    detail = f"{own.reason}{f' ({own.detail})' if own.detail else ''}; {wide}"
    return Work.UNKNOWN, Cause(Reason.SHARED_DEVICE if shared else own.reason, OWN_UTILISATION, detail)


def _hides_pids(processes: Reading[Processes]) -> bool:
    if isinstance(processes, Unavailable):
        return processes.reason is Reason.FOREIGN_NAMESPACE
    return bool(processes.value.unresolvable)


def _list_causes(processes: Reading[Processes]) -> list[Cause]:
    if isinstance(processes, Unavailable):
        return [_cause(processes, PROCESS_LIST)]
    hidden = processes.value.unresolvable
    if hidden:
        pids = ", ".join(str(process.pid) for process in hidden[:4])
        return [Cause(Reason.FOREIGN_NAMESPACE, PROCESS_LIST, f"pid {pids} cannot be found from here")]
    return []


def _memory_causes(sample: DeviceSample, listed: Processes | None, baseline: Reading[int], known: Known) -> list[Cause]:
    memory = sample.memory_used
    if isinstance(memory, Unavailable):
        relied_on = known.memory or memory.reason is not Reason.NOT_SUPPORTED
        return [_cause(memory, MEMORY)] if relied_on else []
    if memory.value == 0:
        return []
    foreign = listed.foreign if listed is not None else ()
    if isinstance(baseline, Unavailable):
        if _owned(memory.value, foreign):
            return []
        return [Cause(Reason.BASELINE_UNKNOWN, MEMORY, f"{mib(memory.value)} used; what rests there is not known")]
    excess = memory.value - baseline.value
    # What rests there is in the baseline already: it cannot own the excess as well.
    if excess <= 0 or _owned(excess, tuple(process for process in foreign if not process.resting)):
        return []
    return [Cause(Reason.CONFLICT, MEMORY, f"{mib(excess)} above the resting baseline that no listed process owns")]


def _owned(excess: int, owners: tuple[ListedProcess, ...]) -> bool:
    """Do listed foreign processes own the excess? One whose memory the driver does not tell may own any of it."""
    if not owners:
        return False
    told = [process.memory for process in owners if process.memory is not None]
    return len(told) < len(owners) or excess - sum(told) <= _UNOWNED_SLACK


def _utilisation_causes(sample: DeviceSample, listed: Processes | None, known: Known) -> list[Cause]:
    utilisation = sample.utilisation
    if isinstance(utilisation, Unavailable):
        return [_cause(utilisation, UTILISATION)] if known.utilisation else []
    nobody = listed is not None and not (listed.own or listed.foreign or listed.unresolvable)
    if utilisation.value > 0 and nobody:
        return [Cause(Reason.CONFLICT, UTILISATION, f"{utilisation.value:g} % while no process is listed")]
    return []


def _look(sample: DeviceSample) -> tuple[bool, tuple[Cause, ...]]:
    handles = sample.handles
    if handles is None:
        return False, ()
    if isinstance(handles, Unavailable):
        return False, (_cause(handles, OPEN_FILES),)
    if handles.value.open:
        names = ", ".join(handles.value.open[:4])
        return True, (Cause(Reason.CONFLICT, OPEN_FILES, f"{names} open: neither a context nor its absence"),)
    # A tree of no processes shows nothing either way: not a look.
    return handles.value.processes > 0, ()
