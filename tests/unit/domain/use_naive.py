"""A second, naive reading of the window rule, written from its text and kept apart from the fold.

It looks at all windows of a recorded history, in quadratic time and with all samples at hand. It shares the records
with the fold, and no rule.
"""

from __future__ import annotations

import itertools

from tenure.domain.reading import Reading, Reason, Unavailable, Value
from tenure.domain.use import DeviceSample, Limits

History = list[DeviceSample]


def has_context(sample: DeviceSample) -> bool:
    own_listed = isinstance(sample.processes, Value) and len(sample.processes.value.own) > 0
    own_works = isinstance(sample.own_utilisation, Value) and sample.own_utilisation.value > 0
    return own_listed or own_works


def has_work(sample: DeviceSample) -> bool:
    if isinstance(sample.own_utilisation, Value) and sample.own_utilisation.value > 0:
        return True
    if not isinstance(sample.processes, Value) or not isinstance(sample.utilisation, Value):
        return False
    listed = sample.processes.value
    alone = bool(listed.own) and not listed.foreign and not listed.unresolvable
    return alone and sample.utilisation.value > 0


def was_looked_at(sample: DeviceSample) -> bool:
    return isinstance(sample.handles, Value) and sample.handles.value.processes > 0


def shows_nothing(history: History, k: int, baseline: Reading[int]) -> bool:
    """Every instrument that answers on this device answered at instant k, and none shows the job (open files apart)."""
    sample = history[k]
    if has_context(sample) or isinstance(sample.processes, Unavailable) or sample.processes.value.unresolvable:
        return False
    foreign = sample.processes.value.foreign

    memory = sample.memory_used
    if isinstance(memory, Unavailable):
        answered_before = any(isinstance(old.memory_used, Value) for old in history[:k])
        if memory.reason != Reason.NOT_SUPPORTED or answered_before:
            return False
    elif memory.value > 0:
        at_rest = isinstance(baseline, Value) and memory.value <= baseline.value
        if not at_rest and not any(process.memory is None for process in foreign):
            return False

    utilisation = sample.utilisation
    if isinstance(utilisation, Unavailable):
        return not any(isinstance(old.utilisation, Value) for old in history[:k])
    return not (utilisation.value > 0 and not foreign)


def open_files_agree(sample: DeviceSample) -> bool:
    """They were not read, or nothing was found."""
    if sample.handles is None:
        return True
    return isinstance(sample.handles, Value) and not sample.handles.value.open


def close_enough(instants: History, limits: Limits) -> bool:
    return all(b.at - a.at <= limits.max_gap_s for a, b in itertools.pairwise(instants))


def no_context_is_conclusive(history: History, started_at: float, baseline: Reading[int], limits: Limits) -> bool:
    """Is there a window, still good at the last instant, in which everything the text asks for holds?"""
    n = len(history)
    return any(
        _window_holds(history, i, j, started_at, baseline, limits) for i in range(n) for j in range(i, n)
    ) and not any(map(has_context, history))


def _window_holds(history: History, i: int, j: int, started_at: float, baseline: Reading[int], limits: Limits) -> bool:
    window, tail = history[i : j + 1], history[i:]
    if window[0].at < started_at + limits.grace_s:
        return False
    # It begins and ends with a look at the open files; whatever came after it must not contradict it.
    if not was_looked_at(window[0]) or not was_looked_at(window[-1]):
        return False
    if not all(shows_nothing(history, k, baseline) and open_files_agree(history[k]) for k in range(i, len(history))):
        return False
    for reading in ("memory_used", "utilisation"):
        answers = {isinstance(getattr(sample, reading), Value) for sample in tail}
        if len(answers) > 1:
            return False
    looks = [sample for sample in window if was_looked_at(sample)]
    return (
        close_enough(tail, limits)
        and close_enough(looks, limits)
        and history[-1].at - window[-1].at <= limits.max_gap_s
        and len(looks) >= limits.samples
        and window[-1].at - window[0].at >= limits.span_s
    )


def certainly_no_work(history: History, k: int, baseline: Reading[int]) -> bool:
    sample = history[k]
    if has_work(sample):
        return False
    if isinstance(sample.utilisation, Value) and sample.utilisation.value == 0:
        return True
    hidden = isinstance(sample.processes, Value) and sample.processes.value.unresolvable
    if isinstance(sample.own_utilisation, Value) and not hidden:
        return True
    return shows_nothing(history, k, baseline) and open_files_agree(sample)


def expected_verdict(history: History, started_at: float, baseline: Reading[int], limits: Limits) -> str:
    if any(map(has_work, history)):
        return "used"
    if not any(map(has_context, history)):
        return "no_context" if no_context_is_conclusive(history, started_at, baseline, limits) else "unknown"
    unread = any(has_context(s) and not certainly_no_work(history, k, baseline) for k, s in enumerate(history))
    for i in range(len(history)):
        run = history[i:]
        idle = (
            run[0].at >= started_at + limits.grace_s
            and all(certainly_no_work(history, k, baseline) for k in range(i, len(history)))
            and close_enough(run, limits)
            and len(run) >= limits.samples
            and run[-1].at - run[0].at >= limits.span_s
        )
        if idle and (any(map(has_context, run)) or not unread):
            return "context_idle"
    return "unknown"
