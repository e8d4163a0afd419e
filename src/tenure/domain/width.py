"""How many devices the remaining units should have, by arithmetic on measured cost; and what may be done instead.

Wall-clock is minimised over whole units; box-hours stand beside it; of equal walls the smaller width wins. Staying
bears its own cost (the round that ends it, work since the last checkpoint), widening bears provisioning, staging and
restoring. A grid that ran 2.57 x over was once relaunched at the width that made it slow because nobody did this sum.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from tenure.domain.deviation import DESCOPE_TO, SEVERE, TRIP, Deviation, Signature, Tripped, read_hours, times


class Evaluation(StrEnum):
    """Whether the widths must be compared now."""

    MANDATORY = "mandatory"
    OPTIONAL = "optional"
    NOT_YET = "not_yet"
    NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One set of devices and what it costs, in hours. ``split`` says how many units each device gets."""

    devices: tuple[str, ...]
    split: Mapping[str, int]
    compute_h: float
    overhead_h: float
    stays: bool

    @property
    def width(self) -> int:
        """How many devices."""
        return len(self.devices)

    @property
    def wall_h(self) -> float:
        """From now to the last unit's end."""
        return self.compute_h + self.overhead_h

    @property
    def box_hours(self) -> float:
        """Devices times the time they are held."""
        return self.width * self.wall_h


@dataclass(frozen=True, slots=True)
class WidthChoice:
    """The candidates compared, the one chosen, and the arithmetic as a sentence.

    ``no_more_width``: nothing wider than staying was allowed or on offer.
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate
    stay: Candidate
    action: str
    saved_h: float
    no_more_width: bool
    words: str


def share(units: int, cost_h: Mapping[str, float]) -> tuple[dict[str, int], float]:
    """Whole units to devices of unequal speed so that the last one ends soonest; the split and that time (hours).

    Giving each next unit to the device that would end it first is optimal for equal units. Exact fractions decide, so
    that equal ends are equal; ties go to the device of the smaller name. No end before units / (sum of the speeds) is
    ever passed over, so all of those are given at once and only the last few one by one. Raises ValueError where units
    or costs cannot be counted with.
    """
    if units < 0 or not cost_h:
        raise ValueError(f"{units} units over {len(cost_h)} devices cannot be shared out")
    costs = {name: _cost(name, cost) for name, cost in sorted(cost_h.items())}
    even = units / sum(1 / cost for cost in costs.values())
    split = {name: int(even / cost) for name, cost in costs.items()}
    ends = [((split[name] + 1) * cost, name) for name, cost in costs.items()]
    heapq.heapify(ends)
    for _ in range(units - sum(split.values())):
        end, name = heapq.heappop(ends)
        split[name] += 1
        heapq.heappush(ends, (end + costs[name], name))
    return split, float(max(split[name] * cost for name, cost in costs.items()))


def _cost(name: str, cost: float) -> Fraction:
    if read_hours(cost) is None:
        raise ValueError(f"the unit cost {cost!r} of {name} is no positive number of hours")
    return Fraction(repr(cost))


def equal_devices(count: int, cost_h: float) -> dict[str, float]:
    """Names and costs of ``count`` boxes that are alike."""
    return {f"box{number:05d}": cost_h for number in range(count)}


def candidate(units: int, cost_h: Mapping[str, float], overhead_h: float, *, stays: bool) -> Candidate:
    """What it would take to finish ``units`` on these devices. Raises ValueError where a figure is no figure."""
    if not (math.isfinite(overhead_h) and overhead_h >= 0):
        raise ValueError(f"the overhead {overhead_h!r} is no number of hours")
    split, wall = share(units, cost_h)
    return Candidate(tuple(sorted(cost_h)), split, wall, overhead_h, stays)


def choose(candidates: Sequence[Candidate], *, max_width: int | None = None) -> WidthChoice:
    """The candidate of the smallest wall, the narrower of equals; exactly one of them must be the one that stays.

    What is wider than ``max_width`` is shown and never chosen, but for staying. Raises ValueError without one that
    stays, or with two.
    """
    staying = [found for found in candidates if found.stays]
    if len(staying) != 1:
        raise ValueError(f"one candidate has to be the present width, not {len(staying)} of them")
    stay = staying[0]
    allowed = [c for c in candidates if c.stays or max_width is None or c.width <= max_width]
    chosen = min(allowed, key=lambda c: (round(c.wall_h, 9), c.width, not c.stays))
    action = "continue_as_is" if chosen is stay else f"reshard_width_{chosen.width}"
    no_more = not any(c.width > stay.width for c in allowed)
    parts = [
        f"{'staying at' if c.stays else 'width'} {c.width}: at most {max(c.split.values(), default=0)} units a device, "
        f"{c.compute_h:.6g} h + {c.overhead_h:.6g} h = {c.wall_h:.6g} h ({c.box_hours:.6g} box-hours)"
        + ("" if c in allowed else f" (over the maximum of {max_width})")
        for c in candidates
    ]
    saved = stay.wall_h - chosen.wall_h
    told = (
        f"saves {saved:.6g} h"
        if chosen is not stay
        else "no more width is to be had"
        if no_more
        else "nothing wider ends sooner"
    )
    words = f"{sum(stay.split.values())} units remain; {'; '.join(parts)}. {action}: {told}"
    return WidthChoice(tuple(candidates), chosen, stay, action, saved, no_more, words)


@dataclass(frozen=True, slots=True)
class Course:
    """What is to be done about a deviation, and whether the widths must be compared."""

    action: str | None
    evaluation: Evaluation | None
    why: str


def course(
    deviation: Deviation,
    signature: Signature | None,
    *,
    fix_rounds_done: int = 0,
    units_independent: bool = True,
    movable: bool = False,
) -> Course:
    """The next step. ``movable``: checkpoints are live or a relaunch is under way, so moving units costs little."""
    if deviation.tripped is not Tripped.YES:
        return Course(None, None, deviation.recorded)
    if signature is not Signature.FLOP_BOUND and fix_rounds_done < 1:
        told = "it waits for launches or the CPU" if signature is Signature.OVERHEAD_BOUND else "the signs do not agree"
        return Course(
            "vectorize_fix_round", Evaluation.NOT_YET, f"{told}: one fix round first, with its own arithmetic"
        )
    if not units_independent:
        return Course(None, Evaluation.NOT_APPLICABLE, "the units depend on each other: width does not help")
    if signature is Signature.OVERHEAD_BOUND:
        return Course(
            None, Evaluation.OPTIONAL, "still overhead-bound after its fix round: width helps only by brute force"
        )
    evaluation = Evaluation.MANDATORY if movable else Evaluation.OPTIONAL
    return Course(
        None, evaluation, "independent units and " + ("movable state" if movable else "no checkpoint to move")
    )


#: What may be done about a deviation; K is a number of devices, X what is left of the scope.
ACTIONS = ("vectorize_fix_round", "reshard_width_K", "auto_descope_to_X", "continue_as_is")


@dataclass(frozen=True, slots=True)
class Ruling:
    """Whether a proposed action may stand."""

    accepted: bool
    why: str


def rule_on(
    proposed: str,
    ratio: float | None,
    *,
    arithmetic_on_record: bool = False,
    staying_wins: bool = False,
    no_more_width: bool = False,
    quantified_finding: bool = False,
    ratio_after: object = None,
    fix_rounds_done: int = 0,
    max_width: int | None = None,
) -> Ruling:
    """Holds a proposal against the rules: widening is the default, and staying has to be earned.

    ``ratio`` is ``None`` where nobody knows it; it may then be as large as any.
    """
    if proposed == "continue_as_is":
        if ratio is not None and ratio < TRIP:
            return Ruling(True, f"at {times(ratio)} x the plan nothing has to be dealt with")
        if not arithmetic_on_record:
            return Ruling(False, "staying needs its arithmetic on record")
        if not (staying_wins or no_more_width):
            return Ruling(False, "the arithmetic does not show that staying wins, nor that no more width is to be had")
        if not quantified_finding and not (ratio is not None and ratio < SEVERE):
            at = "where the ratio is not known" if ratio is None else f"at {times(ratio)} x ({SEVERE:g} x and over)"
            return Ruling(False, f"{at} staying needs a quantified finding as well")
        return Ruling(True, "the arithmetic shows it" + (", with a finding" if quantified_finding else ""))
    if re.fullmatch(r"auto_descope_to_\S+", proposed):
        after = read_hours(ratio_after)
        if after is None or after > DESCOPE_TO:
            told = "what it brings it to is not known" if after is None else f"this brings it to {after!r}"
            return Ruling(False, f"a descope must bring the ratio to {DESCOPE_TO:g} or less; {told}")
        return Ruling(True, f"brings the ratio to {after:g}")
    if proposed == "vectorize_fix_round":
        if fix_rounds_done >= 1:
            return Ruling(False, "a component gets one fix round, and this one has had it")
        return Ruling(True, "a fix round needs no defence but its own arithmetic")
    if found := re.fullmatch(r"reshard_width_([1-9][0-9]{0,5})", proposed):
        if max_width is not None and int(found[1]) > max_width:
            return Ruling(False, f"width {found[1]} is over the stated maximum of {max_width}")
        return Ruling(True, "widening is the default and needs no defence")
    return Ruling(False, f"{proposed!r} is none of {', '.join(ACTIONS)}")
