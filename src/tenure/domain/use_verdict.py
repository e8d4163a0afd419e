"""What may be said of one device: the runs of ``use_window`` become a verdict, with its reason where it is unknown.

Two verdicts are given. The job's: work once seen stays seen, a context once seen rules out ``no_context``. The current
window's: what holds now, whatever was seen before. A run that an unknown instant broke is gone: the verdict is unknown
until the next run is long enough, and the broken one is kept as evidence only (``earlier``).
"""

from __future__ import annotations

from dataclasses import replace

from tenure.domain.reading import Reason
from tenure.domain.use_instant import OPEN_FILES
from tenure.domain.use_records import Cause, DeviceVerdict, Limits, Verdict, Window
from tenure.domain.use_window import UseState, conclusive, enough
from tenure.domain.use_words import device_words


def verdict(state: UseState, *, now: float | None = None, final: bool = False) -> DeviceVerdict:
    """What may be said of the device at ``now`` (the last instant where left out); ``final`` at the job's end.

    A run that ended longer than the largest allowed gap before ``now`` proves nothing of now any more.
    """
    limits = state.limits
    last = state.life.end if state.life is not None else state.started_at
    at = last if now is None else max(now, last)
    empty = state.empty if conclusive(state.empty, limits) and _fresh(state.empty, at, limits) else None
    idle = state.idle if enough(state.idle, limits) and _fresh(state.idle, at, limits) else None

    reasons: tuple[Cause, ...] = ()
    if state.first_work_at is not None:
        kind, window = Verdict.USED, state.life
    elif state.first_context_at is not None and idle is not None and (idle.contexts or not state.unread_contexts):
        kind, window = Verdict.CONTEXT_IDLE, idle
    elif state.first_context_at is None and empty is not None:
        kind, window = Verdict.NO_CONTEXT, empty
    else:
        kind, window = Verdict.UNKNOWN, state.life
        reasons = _why_unknown(state, at)
    zero, unsettled = _zero_memory(state, kind, at, final=final)
    worked, idles = state.last_work_at, idle.start if idle is not None else None
    judged = DeviceVerdict(
        device=state.device,
        verdict=kind,
        current=_current(state, empty, idle, at),
        at=at,
        started_at=state.started_at,
        limits=limits,
        words="",
        reasons=reasons,
        window=window,
        life=state.life,
        earlier=state.earlier,
        first_context_at=state.first_context_at,
        last_context_at=state.last_context_at,
        context_instants=state.context_instants,
        first_work_at=state.first_work_at,
        last_work_at=state.last_work_at,
        work_instants=state.work_instants,
        idle_since=idles if worked is not None and idles is not None and idles > worked else None,
        blind_since=state.blind_since,
        blind_cause=state.blind_cause,
        contended=bool(state.contenders),
        contenders=state.contenders,
        zero=zero,
        unsettled_zero=unsettled,
        accounting_whole_life=state.accounting_whole_life,
        instruments=state.instruments,
        restarts=state.restarts,
        last_restart=state.last_restart,
        listed_without_handles=state.listed_without_handles,
        late_samples=state.late_samples,
        final=final,
    )
    return replace(judged, words=device_words(judged))


def _fresh(window: Window | None, at: float, limits: Limits) -> bool:
    return window is not None and at - window.end <= limits.max_gap_s


def _current(state: UseState, empty: Window | None, idle: Window | None, at: float) -> Verdict:
    """The verdict of the window that ends now, whatever was seen before it."""
    if empty is not None:
        return Verdict.NO_CONTEXT
    if state.last_work_at is not None and at - state.last_work_at <= state.limits.span_s:
        return Verdict.USED
    if idle is not None and idle.contexts:
        return Verdict.CONTEXT_IDLE
    return Verdict.UNKNOWN


def _why_unknown(state: UseState, at: float) -> tuple[Cause, ...]:
    limits = state.limits
    if state.life is None:
        return (Cause(Reason.WINDOW_TOO_SHORT, "window", "no instant was looked at"),)
    if at - state.life.end > limits.max_gap_s:
        return (Cause(Reason.SAMPLING_GAP, "sampling", f"no instant was looked at for {at - state.life.end:.1f} s"),)
    if state.first_context_at is not None:
        if state.work_cause is not None and state.idle is None:
            return (state.work_cause,)
        if enough(state.idle, limits) and state.unread_cause is not None:
            return (state.unread_cause,)
        after_gap = state.idle is not None and state.idle.start == state.gap_ended_at
        gap = Cause(Reason.SAMPLING_GAP, "sampling", "the window began anew after a gap") if after_gap else None
        return _too_short(state, state.idle.instants if state.idle else 0, state.idle, gap)
    troubles = state.causes + state.look_causes
    if state.empty is None and troubles:
        return troubles
    if state.empty is not None and at - state.empty.end > limits.max_gap_s:
        return (Cause(Reason.SAMPLING_GAP, OPEN_FILES, f"not read for {at - state.empty.end:.1f} s"),)
    restart = state.last_restart.cause if state.last_restart is not None else None
    gap = restart if restart is not None and restart.reason is Reason.SAMPLING_GAP else None
    return _too_short(state, state.empty.looks if state.empty else 0, state.empty, gap)


def _too_short(state: UseState, samples: int, run: Window | None, gap: Cause | None) -> tuple[Cause, ...]:
    limits = state.limits
    wanted = f"of at least {limits.samples} over at least {limits.span_s:g} s"
    if run is not None:
        detail = f"{samples} samples over {run.span:.1f} s so far, {wanted}"
    elif state.life is not None and state.life.end < state.started_at + limits.grace_s:
        detail = f"within the grace of {limits.grace_s:g} s"
    else:
        detail = f"no sample yet in which every instrument relied on answered, {wanted}"
    short = Cause(Reason.WINDOW_TOO_SHORT, "window", detail)
    return (short,) if gap is None else (gap, short)


def _zero_memory(state: UseState, kind: Verdict, at: float, *, final: bool) -> tuple[Window | None, bool]:
    """(the run at which memory read exactly 0 throughout, is the not conclusive warning due).

    Due where another instrument keeps the verdict unknown. If the others did agree at times, a conclusive window may
    still come: it is given a second span before the weaker warning takes its place, unless the job is over.
    """
    run, limits = state.zero, state.limits
    if run is None or state.memory_seen or state.first_context_at is not None:
        return None, False
    if not (enough(run, limits) and _fresh(run, at, limits)):
        return None, False
    restart = state.last_restart
    open_question = bool(state.causes or state.look_causes) or (restart is not None and restart.at >= run.start)
    patience = 1 if final or run.looks == 0 else 2
    due = kind is Verdict.UNKNOWN and open_question and run.span >= patience * limits.span_s
    return run, due
