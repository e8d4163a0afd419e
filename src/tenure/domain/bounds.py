"""The bounds of a running job: how long it may run, and how long it may do nothing. One look after another is folded.

An attempt is idle when it had no output AND no CPU work AND no GPU work for the span; with the signal ``output`` its
output alone is asked. What could not be read counts as work, and so does time in which nobody looked: a fresh agent, a
machine that slept, a loop that was late all begin the count anew. The count runs from the *look* at which work was
last seen, never from before it, so an end can only come later than the span says. No idle job is ended without its
warning: ``decide`` asks for it at 80 % of the span, the caller confirms with ``warned`` once it is durable, and only
from there a fifth of the span is waited out.

What is CPU work? At least 1 % of one core, and at least 0.05 s, since the last look or since work was last seen.
Measured on a virtual machine over 40 s: a shell, ``cat``, ``tail -f`` or an interpreter that waits takes 0, a shell
loop that wakes up every second to see whether a file is there 0.1 %, a program that does so a hundred times a second
0.7 %. Compiling ``hello world`` costs 0.024 s of CPU, so a build that manages one small file in two seconds is above
it; one that waits for a slow disk between files of a usual size is as well. The 0.05 s are five ticks of the counters,
so that one tick between two looks is not taken for 1 %. Also against the time since work was last seen, and not the
last look alone, so that slow and steady work adds up.

Clocks are arguments: ``at`` is monotonic, ``ran_s`` counts from the command's start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from tenure.domain.reading import Reading, Unavailable, Value

#: The part of the idle span after which the job is warned.
WARN_AT = 0.8
#: CPU work is at least this part of one core, and at least so many seconds: see the head of the file.
CPU_SHARE = 0.01
CPU_LEAST_S = 0.05
#: Between looks, seconds: a twentieth of the span within these.
PACE_S = (0.5, 60.0)
#: What is due already and could not be said yet (a full disk, a sample that is still to come) is tried again after.
RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds; 0 is off. ``idle_signal``: ``work`` or ``output``."""

    max_runtime_s: float = 0.0
    idle_timeout_s: float = 0.0
    idle_signal: str = "work"

    @property
    def any(self) -> bool:
        """Whether there is anything to watch."""
        return self.max_runtime_s > 0 or self.idle_timeout_s > 0

    @property
    def pace_s(self) -> float:
        """Seconds between looks for signs of life."""
        return min(max(self.idle_timeout_s / 20, PACE_S[0]), PACE_S[1])

    @property
    def max_gap_s(self) -> float:
        """Looks further apart than this leave a time in which nobody looked."""
        return 2 * self.pace_s + 2.0


@dataclass(frozen=True, slots=True)
class Instant:
    """One look. ``at``: monotonic seconds; ``ran_s``: since the start.

    ``output`` and ``cpu_s`` only ever grow: a count that grows with every byte of output, and the CPU-seconds of the
    whole tree, ended processes included. ``gpu`` is since when (monotonic) no device of it was seen at work, as of its
    own ``at``. ``cpu_s`` and ``gpu`` are None where they are not asked, or no GPU was leased.
    """

    at: float
    ran_s: float
    output: Reading[int]
    cpu_s: Reading[float] | None = None
    gpu: Reading[float] | None = None


@dataclass(frozen=True, slots=True)
class Watch:
    """All that is remembered: the last look, the one at which work was last seen or could not be ruled out (``mark``,
    ``why``), and when a warning for this idle time became durable. ``longest_s``: the longest idle time so far."""

    limits: Limits
    last: Instant | None = None
    mark: Instant | None = None
    why: str = ""
    warned_at: float | None = None
    longest_s: float = 0.0
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell of it, durably, then say ``warned``. ``facts`` are for programs."""

    words: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stop:
    """End it. ``reason``: which bound, with its numbers."""

    reason: str


Decision: TypeAlias = Warn | Stop | None


def decide(watch: Watch, now: Instant) -> tuple[Watch, Decision]:
    """Takes one look in, and says what is due. The same is said again at the next look until it is done."""
    watch = _observe(watch, now)
    limits = watch.limits
    if limits.max_runtime_s and now.ran_s >= limits.max_runtime_s:
        return watch, Stop(f"max runtime of {spell(limits.max_runtime_s)} reached: ran {spell(now.ran_s, 1)}")
    idle_s = idle_for(watch)
    if not limits.idle_timeout_s or watch.mark is None or watch.last is not now:
        return watch, None
    watch = replace(watch, longest_s=max(watch.longest_s, idle_s))
    if watch.warned_at is None:
        if idle_s < WARN_AT * limits.idle_timeout_s:
            return watch, None
        return watch, _warning(watch, now, idle_s)
    if idle_s < limits.idle_timeout_s or _seen_until(now) < _earliest_end(watch.warned_at, limits):
        return watch, None
    return watch, Stop(f"idle timeout of {spell(limits.idle_timeout_s)} reached: {_nothing(watch, now, idle_s)}")


def warned(watch: Watch, at: float) -> Watch:
    """The warning asked for is on record for good since ``at``."""
    return replace(watch, warned_at=at)


def idle_for(watch: Watch) -> float:
    """For how many seconds it has certainly done nothing, as of the last look."""
    if watch.mark is None or watch.last is None:
        return 0.0
    return max(0.0, _seen_until(watch.last) - watch.mark.at)


def due(watch: Watch) -> float | None:
    """When to look next, monotonic: the next possible warning or limit, and signs of life at their pace. None: never,
    as there is no bound."""
    limits, last = watch.limits, watch.last
    if last is None or not limits.any:
        return None if not limits.any else 0.0
    times: list[float] = []
    if limits.max_runtime_s:
        times.append(last.at + max(0.0, limits.max_runtime_s - last.ran_s))
    if limits.idle_timeout_s and watch.mark is not None:
        goal = watch.mark.at + WARN_AT * limits.idle_timeout_s
        if watch.warned_at is not None:
            goal = max(watch.mark.at + limits.idle_timeout_s, _earliest_end(watch.warned_at, limits))
        times.append(min(goal, last.at + limits.pace_s) if goal > last.at else last.at + RETRY_S)
    return min(times)


def spell(seconds: float, decimals: int | None = None) -> str:
    """``10 s``, ``12.5 s``, ``2 h 30 min``; with ``decimals`` always so many below two minutes."""
    if seconds < 120:
        return f"{seconds:g} s" if decimals is None else f"{seconds:.{decimals}f} s"
    minutes, rest = divmod(int(seconds), 60)
    days, minutes = divmod(minutes, 1440)
    hours, minutes = divmod(minutes, 60)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


# -- what is seen ------------------------------------------------------------------------------------------------------


def _observe(watch: Watch, now: Instant) -> Watch:
    last, mark = watch.last, watch.mark
    if last is None or mark is None:
        return replace(watch, last=now, mark=now, why="nobody looked before")
    if now.at <= last.at:
        return watch
    if not watch.limits.idle_timeout_s:
        return replace(watch, last=now)
    unread = _unread(watch, now, last)
    why = next(iter(unread.values()), "") or _seen(watch, now, last, mark)
    if not why:
        return replace(watch, last=now)
    return replace(watch, last=now, mark=now, why=why, warned_at=None, unread={**watch.unread, **unread})


def _unread(watch: Watch, now: Instant, last: Instant) -> dict[str, str]:
    """Instrument -> why work could not be ruled out by it since the last look."""
    found: dict[str, str] = {}
    if now.at - last.at > watch.limits.max_gap_s:
        found["looks"] = f"nobody looked for {now.at - last.at:.1f} s"
    asked: list[tuple[str, Reading[Any] | None, Reading[Any] | None]] = [("output", now.output, last.output)]
    if watch.limits.idle_signal == "work":
        asked += [("cpu", now.cpu_s, last.cpu_s), ("gpu", now.gpu, None)]
    for name, reading, before in asked:
        missing = next((one for one in (reading, before) if isinstance(one, Unavailable)), None)
        if missing is not None:
            aside = f" ({missing.detail})" if missing.detail else ""
            found[name] = f"{name} could not be read: {missing.reason}{aside}"
        elif isinstance(reading, Value) and isinstance(before, Value) and reading.value < before.value:
            found[name] = f"{name} could not be read: its count fell"
    return found


def _seen(watch: Watch, now: Instant, last: Instant, mark: Instant) -> str:
    """What work was seen since the last look, or an empty text. Everything asked was read."""
    if isinstance(now.output, Value) and isinstance(last.output, Value) and now.output.value > last.output.value:
        return "output"
    if watch.limits.idle_signal == "output":
        return ""
    if _worked(now, last) or _worked(now, mark):
        return "CPU work"
    if isinstance(now.gpu, Value) and now.gpu.value > last.at:
        return "GPU work"
    return ""


def _worked(now: Instant, before: Instant) -> bool:
    if not isinstance(now.cpu_s, Value) or not isinstance(before.cpu_s, Value):
        return False
    return now.cpu_s.value - before.cpu_s.value >= max(CPU_LEAST_S, CPU_SHARE * (now.at - before.at))


def _seen_until(now: Instant) -> float:
    """Up to when it was looked at: a device's last sample may be older than the look that reads it."""
    return min(now.at, now.gpu.at) if isinstance(now.gpu, Value) else now.at


def _earliest_end(warned_at: float, limits: Limits) -> float:
    return warned_at + (1 - WARN_AT) * limits.idle_timeout_s


# -- in words ----------------------------------------------------------------------------------------------------------


def _nothing(watch: Watch, now: Instant, idle_s: float) -> str:
    said = spell(idle_s, 1)
    if watch.limits.idle_signal == "output":
        return f"no output for {said}"
    gpu = " and no GPU work" if now.gpu is not None else ""
    return f"no output, no CPU work ({_spent(watch, now):.2f} s of CPU){gpu} for {said}"


def _spent(watch: Watch, now: Instant) -> float:
    first = watch.mark.cpu_s if watch.mark is not None else None
    return now.cpu_s.value - first.value if isinstance(now.cpu_s, Value) and isinstance(first, Value) else 0.0


def _warning(watch: Watch, now: Instant, idle_s: float) -> Warn:
    limits = watch.limits
    left_s = max(limits.idle_timeout_s - idle_s, (1 - WARN_AT) * limits.idle_timeout_s)
    words = (
        f"{_nothing(watch, now, idle_s)}: the idle timeout of {spell(limits.idle_timeout_s)} ends it in "
        f"{spell(left_s, 1)} unless it does something"
    )
    facts = {
        "bound": "idle_timeout",
        "idle_s": round(idle_s, 3),
        "idle_timeout_s": limits.idle_timeout_s,
        "idle_signal": limits.idle_signal,
        "left_s": round(left_s, 3),
    }
    return Warn(words, facts)
