"""The clock record of a window: every sample kept, summaries from all of them, and the gate it must pass.

Sources of the names: NVML's clocks event (throttle) reasons bit mask, as nvml.h lists them.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

THROTTLE_BITS: Mapping[int, str] = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
#: Bits that do not disturb a measurement: idle, application clocks, display.
BENIGN = 0x1 | 0x2 | 0x100

MIN_BUSY_SAMPLES = 30
MIN_BUSY_FRACTION = 0.5
MAX_SPREAD_PCT = 5.0
MIN_COVERAGE = 0.95
_EXACT_ITEMS = 1000


def throttle_names(bits: int) -> tuple[str, ...]:
    """The names of the bits set, lowest first; a bit nobody has named is kept as ``unknown_0x...``."""
    names = []
    bit = 1
    while bit <= bits:
        if bits & bit:
            names.append(THROTTLE_BITS.get(bit, f"unknown_0x{bit:x}"))
        bit <<= 1
    return tuple(names)


@dataclass(frozen=True, slots=True)
class ClockSample:
    """One instant as the instruments answered; ``None`` is what they did not tell.

    Clocks in MHz, ``throttle_bits`` as NVML's mask, ``utilisation`` in per cent, ``temperature_c`` in degrees Celsius,
    power in watts, ``at`` in seconds on a monotonic clock. Raises ValueError for a figure that is none.
    """

    sm_mhz: float | None
    throttle_bits: int | None
    busy: bool | None = True
    at: float | None = None
    mem_mhz: float | None = None
    pstate: str | None = None
    utilisation: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None

    def __post_init__(self) -> None:
        for name in ("sm_mhz", "mem_mhz"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} {value!r} is no clock")
        if self.throttle_bits is not None and self.throttle_bits < 0:
            raise ValueError(f"throttle_bits {self.throttle_bits} is no bit mask")


@dataclass(frozen=True, slots=True)
class ClockWindow:
    """All samples of one window, and the fields that must not change within or between windows.

    ``persistence`` is what the tool printed; ``coverage`` the share of the measured span that has samples no further
    apart than twice the period (0 to 1; ``None``: nobody knows it). An empty text is a field that did not read.
    """

    samples: tuple[ClockSample, ...]
    name: str
    driver: str
    max_sm_mhz: float | None
    boot_id: str
    persistence: str
    coverage: float | None = None
    contended: bool | None = False
    max_mem_mhz: float | None = None
    app_sm_mhz: float | None = None
    app_mem_mhz: float | None = None


def coverage_of(
    times: Sequence[float], period: float, *, begin: float | None = None, end: float | None = None
) -> float:
    """The share of a span (by default first to last sample) with samples no further apart than twice the period.

    Times and period in seconds. A span without length is covered where it holds a sample. Raises ValueError where the
    times go backwards or the period is none.
    """
    if not (math.isfinite(period) and period > 0):
        raise ValueError(f"a period of {period!r} s is none")
    if any(not math.isfinite(time) for time in times) or any(b < a for a, b in itertools.pairwise(times)):
        raise ValueError("the times of the samples do not run forward")
    if not times:
        return 0.0
    first = times[0] if begin is None else begin
    last = times[-1] if end is None else end
    inside = [time for time in times if first <= time <= last]
    marks = [first, *inside, last]
    reach = 2 * period * (1 + 1e-9)  # decimals such as 0.3 - 0.1 are a hair over 0.2
    covered = math.fsum(b - a for a, b in itertools.pairwise(marks) if b - a <= reach)
    if not inside:
        return 0.0
    return covered / (last - first) if last > first else 1.0


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures over all values given: none is left out, so an excursion shows in ``minimum`` or ``maximum``."""

    count: int
    minimum: float
    median: float
    maximum: float
    mean: float
    spread_pct: float


def summarise(values: Sequence[float]) -> Summary | None:
    """The summary of all values; ``None`` of none. Spread is (max - min) / median in percent."""
    if not values:
        return None
    median = statistics.median(values)
    low, high = min(values), max(values)
    spread = 100.0 * (high - low) / median if median else float("inf")
    return Summary(len(values), low, median, high, statistics.fmean(values), spread)


def busy_summary(window: ClockWindow) -> Summary | None:
    """The summary of the SM clock over the busy samples whose clock was read."""
    return summarise([sample.sm_mhz for sample in window.samples if sample.busy and sample.sm_mhz is not None])


def plot_points(values: Sequence[float], points: int) -> list[tuple[int, float]]:
    """At most ``2 x points`` (index, value) pairs: each stretch gives its minimum and its maximum, so that whatever
    stands out is drawn. Raises ValueError for fewer points than one, or for a value that is no number."""
    if points < 1:
        raise ValueError(f"{points} points draw nothing")
    if not all(map(math.isfinite, values)):
        raise ValueError("what did not read cannot be drawn as a number")
    if len(values) <= 2 * points:
        return list(enumerate(values))
    chosen: set[int] = set()
    for number in range(points):
        begin, end = number * len(values) // points, (number + 1) * len(values) // points
        stretch = range(begin, end)
        chosen.add(min(stretch, key=lambda index: values[index]))
        chosen.add(max(stretch, key=lambda index: values[index]))
    return [(index, values[index]) for index in sorted(chosen)]


def persistence_of(text: str) -> str | None:
    """``enabled`` or ``disabled``; ``None`` where the tool did not say so."""
    return {"enabled": "enabled", "on": "enabled", "disabled": "disabled", "off": "disabled"}.get(text.strip().lower())


def gate(window: ClockWindow) -> tuple[str, ...]:
    """Every reason why a window cannot stand, in a fixed order; empty where it can.

    Spread is judged over busy samples, throttle bits over all of them.
    """
    reasons = []
    busy = [sample for sample in window.samples if sample.busy]
    summary = busy_summary(window)
    if len(busy) < MIN_BUSY_SAMPLES:
        reasons.append("samples")
    if not window.samples or len(busy) / len(window.samples) < MIN_BUSY_FRACTION:
        reasons.append("busy_fraction")
    if any(sample.busy is None for sample in window.samples):
        reasons.append("busy_unknown")
    if summary is None or not summary.spread_pct <= MAX_SPREAD_PCT:
        reasons.append("spread")
    if any(sample.sm_mhz is None for sample in busy):
        reasons.append("clock_unknown")
    persistence = persistence_of(window.persistence)
    if persistence != "enabled":
        reasons.append("persistence_unknown" if persistence is None else "persistence")
    bits = 0
    for sample in window.samples:
        bits |= sample.throttle_bits or 0
    reasons += [f"throttle:{name}" for name in throttle_names(bits & ~BENIGN)]
    if any(sample.throttle_bits is None for sample in window.samples):
        reasons.append("throttle_unknown")
    if window.coverage is None:
        reasons.append("coverage_unknown")
    elif not window.coverage >= MIN_COVERAGE:
        reasons.append("coverage")
    if window.contended is not False:
        reasons.append("contended" if window.contended else "contended_unknown")
    return tuple(reasons)


def chance_clean(p_event_per_item: float, items: int) -> float:
    """The chance that a window of ``items`` work items sees no event, if events are independent (an assumption)."""
    if not 0 <= p_event_per_item <= 1 or items < 0:
        raise ValueError(f"a chance lies between 0 and 1 and items are counted from 0: {p_event_per_item!r}, {items!r}")
    return 1.0 if not items else math.exp(items * math.log1p(-p_event_per_item)) if p_event_per_item < 1 else 0.0


def items_for(p_event_per_item: float, at_least: float) -> int | None:
    """The most work items a window can hold with a chance of at least ``at_least`` of being clean.

    0: not even one. ``None``: no number of items that anybody counts is too many. Raises ValueError where
    ``at_least`` is no chance over 0.
    """
    if not 0 < at_least <= 1:
        raise ValueError(f"the chance asked for lies over 0 and up to 1, not at {at_least!r}")
    chance_clean(p_event_per_item, 0)  # refuses what is no chance
    if p_event_per_item in (0, 1):
        return 0 if p_event_per_item else None
    found = math.log(at_least) / math.log1p(-p_event_per_item)
    if not found < 1e15:
        return None
    items = int(found)
    if items < _EXACT_ITEMS:  # rounding may be one off where the chance is met exactly: 0.9 twice is 0.81
        clean, least = 1 - Fraction(repr(p_event_per_item)), Fraction(repr(at_least))
        items = next(n for n in range(items + 1, -1, -1) if clean**n >= least)
    return items


def chance_bound(events: int, items: int, confidence: float = 0.95) -> float:
    """The largest chance of an event per item that a pilot of ``items`` with ``events`` leaves open, at a confidence.

    One-sided and exact (Clopper and Pearson): a pilot without events does not show that there are none.
    """
    if not 0 <= events <= items or items < 1 or not 0 < confidence < 1:
        raise ValueError(f"a pilot counts 0 to N events in N of at least 1 items, not {events} in {items}")
    low, high = events / items, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(events, items, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _at_most(events: int, items: int, chance: float) -> float:
    if chance in (0.0, 1.0):
        return 1.0 if chance == 0.0 or events == items else 0.0
    logs = (
        math.lgamma(items + 1)
        - math.lgamma(k + 1)
        - math.lgamma(items - k + 1)
        + k * math.log(chance)
        + (items - k) * math.log1p(-chance)
        for k in range(events + 1)
    )
    return math.fsum(map(math.exp, logs))
