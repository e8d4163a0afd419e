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
    return float(value) if math.isfinite(value) and value > 0 else None


def assess(
    planned: object, projected: object, *, ratio: float | None = None, component: str = "", basis: str = "projection"
) -> Deviation:
    """The deviation record of a component. ``ratio`` is taken where somebody measured it whole."""
    planned_h, projected_h = read_hours(planned), read_hours(projected)
    if ratio is None and planned_h is not None and projected_h is not None:
        ratio = projected_h / planned_h
    if ratio is None:
        why = f"the budget {planned!r} cannot be read" if planned_h is None else f"the projection {projected!r} cannot"
        tripped, recorded = Tripped.NOT_ESTABLISHED, f"tripwire disabled: {why}"
    elif ratio >= TRIP:
        tripped, recorded = Tripped.YES, f"{ratio:.3f} x the plan: must be dealt with"
    else:
        tripped, recorded = Tripped.NO, f"{ratio:.3f} x the plan: within the tripwire of {TRIP:g} x"
    return Deviation(component, planned_h, projected_h, ratio, basis, tripped, recorded)


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
    """The signature with the inputs it was computed from and one sentence; ambiguous wherever they do not agree."""
    inputs = {
        "gpu_busy": seen.gpu_busy,
        "utilisation": seen.utilisation,
        "cores": seen.cores,
        "units_per_launch": seen.units_per_launch,
    }
    if seen.gpu_busy is None or seen.utilisation is None:
        return Signature.AMBIGUOUS, inputs, "no instrument told how busy the device was"
    saturated = seen.gpu_busy >= SATURATED and seen.utilisation >= SATURATED
    starved = seen.gpu_busy < STARVED or seen.utilisation < STARVED
    batched = None if seen.units_per_launch is None else seen.units_per_launch > 1
    told = f"device busy {seen.gpu_busy:.0%} of the time at {seen.utilisation:.0%}"
    if saturated and batched is not False:
        return Signature.FLOP_BOUND, inputs, f"{told}: saturated" + (", batched" if batched else "")
    if starved and (batched is False or (seen.cores is not None and seen.cores >= ONE_CORE)):
        cause = "one unit a launch" if batched is False else f"{seen.cores:.1f} cores busy beside it"
        return Signature.OVERHEAD_BOUND, inputs, f"{told}, {cause}: it waits for launches or for the CPU"
    return Signature.AMBIGUOUS, inputs, f"{told}: the signs do not agree"
