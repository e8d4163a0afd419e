"""The clock record of a window: every sample kept, summaries from all of them, and the gate it must pass.

Sources of the names: NVML's clocks event (throttle) reasons bit mask, as nvml.h lists them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    """One instant: SM clock in MHz, throttle bits, and whether the device was busy."""

    sm_mhz: float
    throttle_bits: int
    busy: bool = True


@dataclass(frozen=True, slots=True)
class ClockWindow:
    """All samples of one window, and the fields that must not change within or between windows.

    ``persistence`` is what the tool printed; ``coverage`` the share of the measured span that has samples no further
    apart than twice the period (0 to 1).
    """

    samples: tuple[ClockSample, ...]
    name: str
    driver: str
    max_sm_mhz: float | None
    boot_id: str
    persistence: str
    coverage: float = 1.0
    contended: bool = False


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
    """The summary of the SM clock over the busy samples."""
    return summarise([sample.sm_mhz for sample in window.samples if sample.busy])


def plot_points(values: Sequence[float], points: int) -> list[tuple[int, float]]:
    """About ``2 x points`` (index, value) pairs at most: each stretch gives its minimum and its maximum."""
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
    if summary is None or summary.spread_pct > MAX_SPREAD_PCT:
        reasons.append("spread")
    persistence = persistence_of(window.persistence)
    if persistence != "enabled":
        reasons.append("persistence_unknown" if persistence is None else "persistence")
    bits = 0
    for sample in window.samples:
        bits |= sample.throttle_bits
    reasons += [f"throttle:{name}" for name in throttle_names(bits & ~BENIGN)]
    if window.coverage < MIN_COVERAGE:
        reasons.append("coverage")
    if window.contended:
        reasons.append("contended")
    return tuple(reasons)


def chance_clean(p_event_per_item: float, items: int) -> float:
    """The chance that a window of ``items`` work items sees no event, if events are independent (an assumption)."""
    return float((1.0 - p_event_per_item) ** items)


def items_for(p_event_per_item: float, at_least: float) -> int:
    """The most work items a window can hold with a chance of at least ``at_least`` of being clean (0: not even one)."""
    items = 0
    while items < 1_000_000 and chance_clean(p_event_per_item, items + 1) >= at_least:
        items += 1
    return items
