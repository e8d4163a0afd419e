"""The fold: one instant after another into a state of bounded size, so that an agent can run it for weeks.

Three runs of instants are kept per device, each broken by the first instant that does not belong to it:

* ``empty``: the job is not on the device (what ``no_context`` rests on). It begins and ends at an instant in which the
  open files were read. Instants in between, in which they were not, wait in ``pending`` and join only when the next
  look agrees; only instants with a look count towards the number of samples the limits ask for, because only in
  those did every instrument relied on answer.
* ``idle``: certainly no work of the job (what ``context_idle`` rests on).
* ``zero``: memory read exactly 0.

A pause longer than the limits allow breaks all three. Instants within the grace belong to none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tenure.domain.reading import Reading, Reason, Unavailable, Value
from tenure.domain.use_instant import (
    ACCOUNTING,
    MEMORY,
    OPEN_FILES,
    OWN_UTILISATION,
    PROCESS_LIST,
    UTILISATION,
    Instant,
    Known,
    Work,
    read_instant,
)
from tenure.domain.use_records import (
    Cause,
    CpuMark,
    DeviceSample,
    Limits,
    ListedProcess,
    Restart,
    Tally,
    Window,
)

_CONTENDERS_KEPT = 8


@dataclass(frozen=True, slots=True)
class UseState:
    """All that is remembered of one device of one job. ``baseline``: its memory at rest, in bytes."""

    device: str
    started_at: float
    baseline: Reading[int]
    limits: Limits
    life: Window | None = None
    empty: Window | None = None
    pending: Window | None = None
    idle: Window | None = None
    zero: Window | None = None
    earlier: Window | None = None
    known: Known = field(default_factory=Known)
    memory_seen: bool = False
    causes: tuple[Cause, ...] = ()
    look_causes: tuple[Cause, ...] = ()
    work_cause: Cause | None = None
    first_context_at: float | None = None
    last_context_at: float | None = None
    context_instants: int = 0
    first_work_at: float | None = None
    last_work_at: float | None = None
    work_instants: int = 0
    unread_contexts: int = 0
    unread_cause: Cause | None = None
    contenders: tuple[ListedProcess, ...] = ()
    accounting_whole_life: bool = False
    instruments: tuple[Tally, ...] = ()
    restarts: int = 0
    last_restart: Restart | None = None
    gap_ended_at: float | None = None
    listed_without_handles: int = 0
    late_samples: int = 0
    blind_since: float | None = None
    blind_cause: Cause | None = None


def begin(device: str, *, started_at: float, baseline: Reading[int], limits: Limits | None = None) -> UseState:
    """A device of a job that started at ``started_at``, nothing looked at yet."""
    return UseState(device, started_at, baseline, limits or Limits())


def fold(state: UseState, samples: Iterable[DeviceSample]) -> UseState:
    """Observe one sample after another."""
    for sample in samples:
        state = observe(state, sample)
    return state


def observe(state: UseState, sample: DeviceSample) -> UseState:
    """The state after one more instant. A sample that is not later than the last one is counted and changes nothing."""
    if sample.device != state.device:
        raise ValueError(f"a sample of {sample.device} was given to the window of {state.device}")
    if state.life is not None and not sample.at > state.life.end:
        return replace(state, late_samples=state.late_samples + 1)
    instant = read_instant(sample, state.baseline, state.known)
    state = _break_at_gap(state, sample.at)
    state = _break_at_first_answers(state, sample)
    state = _remember(state, sample, instant)
    if sample.at < state.started_at + state.limits.grace_s:
        return state
    state = _extend_empty(state, sample, instant)
    idle = _grow(state.idle, sample, instant) if instant.no_work else None
    return replace(state, idle=idle, zero=_zero(state, sample, instant))


def enough(window: Window | None, limits: Limits) -> bool:
    """Does a run of instants reach both the span and the count?"""
    return window is not None and window.instants >= limits.samples and window.span >= limits.span_s


def conclusive(window: Window | None, limits: Limits) -> bool:
    """Does a run of absence reach both, counting only the instants in which the open files were read as well?"""
    return window is not None and window.looks >= limits.samples and window.span >= limits.span_s


# --- the runs ---------------------------------------------------------------------------------------------------


def _break_at_gap(state: UseState, at: float) -> UseState:
    if state.life is None or at - state.life.end <= state.limits.max_gap_s:
        return state
    cause = Cause(Reason.SAMPLING_GAP, "sampling", f"no instant was looked at for {at - state.life.end:.1f} s")
    return replace(_break_empty(state, at, cause), idle=None, zero=None, gap_ended_at=at)


def _break_at_first_answers(state: UseState, sample: DeviceSample) -> UseState:
    """An instrument that answers for the first time was missing from the window so far, and is relied on from here."""
    for name, reading, known in (
        (MEMORY, sample.memory_used, state.known.memory),
        (UTILISATION, sample.utilisation, state.known.utilisation),
    ):
        if isinstance(reading, Value) and not known:
            cause = Cause(Reason.NOT_SUPPORTED, name, "answered for the first time; the instants before lack it")
            state = _break_empty(state, sample.at, cause)
    return state


def _break_empty(state: UseState, at: float, cause: Cause | None) -> UseState:
    if state.empty is None:
        return state
    earlier = state.empty if conclusive(state.empty, state.limits) else state.earlier
    restart = Restart(at, cause)
    return replace(state, empty=None, pending=None, earlier=earlier, restarts=state.restarts + 1, last_restart=restart)


def _extend_empty(state: UseState, sample: DeviceSample, instant: Instant) -> UseState:
    if not instant.absent:
        seen = instant.context
        return _break_empty(state, sample.at, None if seen else (instant.causes + instant.look_causes)[0])
    if state.empty is not None and instant.looked:
        unread = sample.at - state.empty.end
        if unread > state.limits.max_gap_s:
            cause = Cause(Reason.SAMPLING_GAP, OPEN_FILES, f"not read for {unread:.1f} s")
            state = _break_empty(state, sample.at, cause)
    if instant.looked:
        joined = _join(state.empty, state.pending) if state.empty is not None else None
        return replace(state, empty=_grow(joined, sample, instant), pending=None)
    if state.empty is not None:
        return replace(state, pending=_grow(state.pending, sample, instant))
    return state


def _zero(state: UseState, sample: DeviceSample, instant: Instant) -> Window | None:
    zero = isinstance(sample.memory_used, Value) and sample.memory_used.value == 0 and not instant.context
    if not zero:
        return None
    grown = _grow(state.zero, sample, instant)
    # Its looks are those of conclusive absence: none of them means that the other instruments never once agreed.
    looks = (state.zero.looks if state.zero is not None else 0) + int(instant.absent and instant.looked)
    return replace(grown, looks=looks)


def _grow(window: Window | None, sample: DeviceSample, instant: Instant) -> Window:
    mark = CpuMark(sample.cpu_s.at, sample.cpu_s.value) if isinstance(sample.cpu_s, Value) else None
    one = Window(
        start=sample.at,
        end=sample.at,
        instants=1,
        looks=int(instant.looked),
        last_look=sample.at if instant.looked else None,
        contexts=int(instant.context),
        cpu_first=mark,
        cpu_last=mark,
    )
    return one if window is None else _join(window, one)


def _join(window: Window, later: Window | None) -> Window:
    if later is None:
        return window
    look_gap = window.largest_look_gap
    if window.last_look is not None and later.last_look is not None:
        look_gap = max(look_gap, later.last_look - window.last_look)
    return Window(
        start=window.start,
        end=later.end,
        instants=window.instants + later.instants,
        largest_gap=max(window.largest_gap, later.start - window.end, later.largest_gap),
        looks=window.looks + later.looks,
        largest_look_gap=look_gap,
        last_look=later.last_look if later.last_look is not None else window.last_look,
        contexts=window.contexts + later.contexts,
        cpu_first=window.cpu_first,
        cpu_last=later.cpu_last if later.cpu_last is not None else window.cpu_last,
    )


# --- what is remembered for good --------------------------------------------------------------------------------


def _remember(state: UseState, sample: DeviceSample, instant: Instant) -> UseState:
    listed = sample.processes.value if isinstance(sample.processes, Value) else None
    unread = instant.context and instant.work is Work.UNKNOWN
    unhandled = bool(listed and listed.own) and instant.looked and not instant.look_causes
    state = replace(
        state,
        life=_grow(state.life, sample, instant),
        known=_learn(state.known, sample),
        memory_seen=state.memory_seen or (isinstance(sample.memory_used, Value) and sample.memory_used.value > 0),
        causes=instant.causes,
        look_causes=instant.look_causes if instant.looked or instant.look_causes else state.look_causes,
        work_cause=instant.work_cause,
        unread_contexts=state.unread_contexts + int(unread),
        unread_cause=instant.work_cause if unread else state.unread_cause,
        contenders=_contenders(state.contenders, listed.foreign if listed is not None else ()),
        accounting_whole_life=isinstance(sample.accounting, Value)
        and sample.accounting.value.whole_life
        and sample.accounting.value.contexts == 0,
        instruments=_tally(state.instruments, sample),
        listed_without_handles=state.listed_without_handles + int(unhandled),
        **_blind(state, sample, instant),
    )
    if instant.context:
        first = sample.at if state.first_context_at is None else state.first_context_at
        count = state.context_instants + 1
        state = replace(state, first_context_at=first, last_context_at=sample.at, context_instants=count)
    if instant.work is Work.SEEN:
        first = sample.at if state.first_work_at is None else state.first_work_at
        state = replace(state, first_work_at=first, last_work_at=sample.at, work_instants=state.work_instants + 1)
    return state


def _blind(state: UseState, sample: DeviceSample, instant: Instant) -> dict[str, Any]:
    """Since when nothing at all can be told of the job on this device, and why: its process list does not answer."""
    if instant.context or isinstance(sample.processes, Value):
        return {"blind_since": None, "blind_cause": None}
    since = state.blind_since if state.blind_since is not None else sample.at
    return {"blind_since": since, "blind_cause": instant.causes[0] if instant.causes else None}


def _learn(known: Known, sample: DeviceSample) -> Known:
    accounting = sample.accounting.value if isinstance(sample.accounting, Value) else None
    return Known(
        memory=known.memory or isinstance(sample.memory_used, Value),
        utilisation=known.utilisation or isinstance(sample.utilisation, Value),
        accounted=max(known.accounted, accounting.contexts) if accounting else known.accounted,
        accounted_utilisation=max(known.accounted_utilisation, (accounting.utilisation or 0.0) if accounting else 0.0),
    )


def _contenders(kept: tuple[ListedProcess, ...], foreign: Iterable[ListedProcess]) -> tuple[ListedProcess, ...]:
    for process in foreign:
        if len(kept) < _CONTENDERS_KEPT and not process.resting and all(old.pid != process.pid for old in kept):
            kept = (*kept, process)
    return kept


def _tally(tallies: tuple[Tally, ...], sample: DeviceSample) -> tuple[Tally, ...]:
    readings: tuple[tuple[str, Reading[object] | None], ...] = (
        (PROCESS_LIST, sample.processes),
        (OPEN_FILES, sample.handles),
        (MEMORY, sample.memory_used),
        (UTILISATION, sample.utilisation),
        (OWN_UTILISATION, sample.own_utilisation),
        (ACCOUNTING, sample.accounting),
    )
    kept = {tally.instrument: tally for tally in tallies}
    for name, reading in readings:
        old = kept.get(name, Tally(name))
        if isinstance(reading, Value):
            kept[name] = replace(old, answered=old.answered + 1)
        elif isinstance(reading, Unavailable):
            kept[name] = replace(old, unavailable=old.unavailable + 1, last_reason=reading.reason)
    return tuple(kept.values())
