"""The bounds of a job once more, written the slow way: every look decides anew from the whole history before it.

Written from the sentences of the mission and the how-to page, with none of the code of ``domain.bounds``: which look
was the last that could not rule work out, whether a warning was confirmed after it, and how long both are ago.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.domain.bounds import Instant, Limits
from tenure.domain.reading import Reading, Unavailable, Value


def expected(limits: Limits, looks: Sequence[Instant], confirmed: Sequence[float | None]) -> str:
    """``nothing``, ``warn`` or ``stop`` at the last of the looks. ``confirmed[i]``: when the warning that look ``i``
    asked for became durable, None where it asked for none or it could not be kept."""
    now = looks[-1]
    if limits.max_runtime_s > 0 and now.ran_s >= limits.max_runtime_s:
        return "stop"
    span = limits.idle_timeout_s
    if span <= 0:
        return "nothing"
    busy = 0  # nobody looked before the first
    for number in range(1, len(looks)):
        if not _certainly_nothing(limits, looks, number, busy):
            busy = number
    until = now.at if now.gpu is None or isinstance(now.gpu, Unavailable) else min(now.at, now.gpu.at)
    idle = until - looks[busy].at
    warnings = [at for number, at in enumerate(confirmed[: len(looks) - 1]) if at is not None and number >= busy]
    if not warnings:
        return "warn" if idle >= 0.8 * span else "nothing"
    return "stop" if idle >= span and until >= warnings[0] + (1 - 0.8) * span else "nothing"


def _certainly_nothing(limits: Limits, looks: Sequence[Instant], number: int, busy: int) -> bool:
    before, now = looks[number - 1], looks[number]
    pace = min(max(limits.idle_timeout_s / 20, 0.5), 60.0)
    if now.at - before.at > 2 * pace + 2.0:
        return False
    if not _same(before.output, now.output):
        return False
    if limits.idle_signal == "output":
        return True
    for earlier in (before, looks[busy]):
        if isinstance(now.cpu_s, Unavailable) or isinstance(before.cpu_s, Unavailable):
            return False
        if isinstance(now.cpu_s, Value) and isinstance(before.cpu_s, Value) and now.cpu_s.value < before.cpu_s.value:
            return False
        if isinstance(now.cpu_s, Value) and isinstance(earlier.cpu_s, Value):
            grown, passed = now.cpu_s.value - earlier.cpu_s.value, now.at - earlier.at
            if grown >= 0.05 and grown >= 0.01 * passed:
                return False
    if now.gpu is None:
        return True
    return isinstance(now.gpu, Value) and now.gpu.value <= before.at


def _same(before: Reading[int], now: Reading[int]) -> bool:
    return isinstance(before, Value) and isinstance(now, Value) and before.value == now.value
