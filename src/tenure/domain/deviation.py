"""How far a component runs over its plan, and what kind of work makes it so.

The plan's own unit figures never enter: only what was measured and projected from it. At twice the plan and more
(unrounded) the deviation must be dealt with; a budget that cannot be read disables the tripwire, and that is recorded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

#: From here on a deviation must be dealt with; from ``SEVERE`` on, staying needs a quantified finding as well.
TRIP = 2.0
SEVERE = 5.0
#: A descope is only worth its loss where it brings the ratio down to this.
DESCOPE_TO = 1.5


class Tripped(StrEnum):
    """Whether the deviation must be dealt with."""

    YES = "yes"
    NO = "no"
    NOT_ESTABLISHED = "not_established"


@dataclass(frozen=True, slots=True)
class Deviation:
    """A component's planned and projected wall (hours), their ratio, and on what basis it was projected."""

    component: str
    planned_h: float | None
    projected_h: float | None
    ratio: float | None
    basis: str
    tripped: Tripped
    recorded: str


def read_hours(value: object) -> float | None:
    """A budget in hours, or ``None`` where it is no positive finite number (text such as ``about a day``)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        hours = float(value)
    except OverflowError:  # a whole number beyond what a float holds
        return None
    return hours if math.isfinite(hours) and hours > 0 else None


def times(ratio: float) -> str:
    """A ratio for people: three places, or all of them where rounding would move it across a threshold."""
    rounded = round(ratio, 3)
    crossed = any((rounded >= edge) != (ratio >= edge) for edge in (TRIP, SEVERE))
    return repr(ratio) if crossed else f"{ratio:.3f}"


def assess(
    planned: object, projected: object, *, ratio: object = None, component: str = "", basis: str = "projection"
) -> Deviation:
    """The deviation record of a component. ``ratio`` is taken where somebody measured it whole; it has to be a positive
    finite number as the hours have, or nothing is established."""
    planned_h, projected_h = read_hours(planned), read_hours(projected)
    found = read_hours(ratio)
    if ratio is None and planned_h is not None and projected_h is not None:
        found = projected_h / planned_h
    if found is None:
        what = (
            f"the ratio {ratio!r}"
            if ratio is not None
            else f"the budget {planned!r}"
            if planned_h is None
            else f"the projection {projected!r}"
        )
        tripped, recorded = Tripped.NOT_ESTABLISHED, f"tripwire disabled: {what} cannot be read"
    elif found >= TRIP:
        tripped, recorded = Tripped.YES, f"{times(found)} x the plan: must be dealt with"
    else:
        tripped, recorded = Tripped.NO, f"{times(found)} x the plan: within the tripwire of {TRIP:g} x"
    return Deviation(component, planned_h, projected_h, found, basis, tripped, recorded)


class Signature(StrEnum):
    """What kind of work it is: what more width would help (``FLOP_BOUND``), and what it would not."""

    OVERHEAD_BOUND = "overhead_bound"
    FLOP_BOUND = "flop_bound"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What was measured over the span; ``None`` where no instrument answered.

    ``gpu_busy``: share of samples with the device busy (0 to 1). ``utilisation``: median of the device's utilisation
    while busy (0 to 1). ``cores``: CPU cores the worker kept busy. ``units_per_launch``: units in one batch.
    """

    gpu_busy: float | None = None
    utilisation: float | None = None
    cores: float | None = None
    units_per_launch: float | None = None


#: Saturated: busy nearly always and nearly fully. Starved: idle for half of the time, or half empty while busy.
SATURATED = 0.85
STARVED = 0.5
ONE_CORE = 0.9


def signature_of(seen: Telemetry) -> tuple[Signature, Mapping[str, float | None], str]:
    """The signature with the inputs it was computed from and one sentence; ambiguous wherever they do not agree.

    A figure outside its range (a share over 1, NaN, less than one unit a launch) was not read. FLOP-bound takes both: a
    device that is saturated and work known to be batched, because small unbatched kernels keep a device busy as well.
    """
    inputs = {
        "gpu_busy": seen.gpu_busy,
        "utilisation": seen.utilisation,
        "cores": seen.cores,
        "units_per_launch": seen.units_per_launch,
    }
    busy, utilisation = _within(seen.gpu_busy, 0.0, 1.0), _within(seen.utilisation, 0.0, 1.0)
    cores = _within(seen.cores, 0.0, math.inf)
    batch = _within(seen.units_per_launch, 1.0, math.inf)
    if busy is None or utilisation is None:
        return Signature.AMBIGUOUS, inputs, "no instrument told how busy the device was"
    saturated = busy >= SATURATED and utilisation >= SATURATED
    starved = busy < STARVED or utilisation < STARVED
    told = f"device busy {busy:.0%} of the time at {utilisation:.0%}"
    if saturated and batch is not None and batch > 1:
        return Signature.FLOP_BOUND, inputs, f"{told}, {batch:g} units a launch: saturated and batched"
    if saturated and batch is None:
        return Signature.AMBIGUOUS, inputs, f"{told}, and nobody measured whether the units are batched"
    unbatched = batch is not None and batch == 1
    if starved and (unbatched or (cores is not None and cores >= ONE_CORE)):
        cause = "one unit a launch" if unbatched else f"{cores:.1f} cores busy beside it"
        return Signature.OVERHEAD_BOUND, inputs, f"{told}, {cause}: it waits for launches or for the CPU"
    return Signature.AMBIGUOUS, inputs, f"{told}: the signs do not agree"


def _within(value: float | None, low: float, high: float) -> float | None:
    read = value is not None and math.isfinite(value) and low <= value <= high
    return value if read else None
