"""How many devices the remaining units should have, by arithmetic on measured cost; and what may be done instead.

Wall-clock is minimised over whole units; box-hours stand beside it; of equal walls the smaller width wins. Staying
bears its own cost (the round that ends it, work since the last checkpoint), widening bears provisioning, staging and
restoring. A grid that ran 2.57 x over was once relaunched at the width that made it slow because nobody did this sum.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from tenure.domain.deviation import DESCOPE_TO, SEVERE, Deviation, Signature, Tripped


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
    """The candidates compared, the one chosen, and the arithmetic as a sentence."""

    candidates: tuple[Candidate, ...]
    chosen: Candidate
    stay: Candidate
    action: str
    saved_h: float
    words: str


def share(units: int, cost_h: Mapping[str, float]) -> tuple[dict[str, int], float]:
    """Whole units to devices of unequal speed so that the last one ends soonest; the split and that time (hours).

    Giving each next unit to the device that would end it first is optimal for equal units. Exact fractions decide, so
    that equal ends are equal; ties go to the device of the smaller name.
    """
    costs = {name: Fraction(repr(cost)) for name, cost in cost_h.items()}
    split = dict.fromkeys(sorted(costs), 0)
    ends = [(cost, name) for name, cost in sorted(costs.items())]
    heapq.heapify(ends)
    last = Fraction(0)
    for _ in range(units):
        end, name = heapq.heappop(ends)
        split[name] += 1
        last = max(last, end)
        heapq.heappush(ends, (end + costs[name], name))
    return split, float(last)


def equal_devices(count: int, cost_h: float) -> dict[str, float]:
    """Names and costs of ``count`` boxes that are alike."""
    return {f"box{number:05d}": cost_h for number in range(count)}


def candidate(units: int, cost_h: Mapping[str, float], overhead_h: float, *, stays: bool) -> Candidate:
    """What it would take to finish ``units`` on these devices."""
    costs = sorted(set(cost_h.values()))
    if len(costs) == 1:  # equal boxes: ceil(units / width) rounds of one unit each, without walking through the units
        width = len(cost_h)
        full, more = divmod(units, width)
        split = {name: full + (index < more) for index, name in enumerate(sorted(cost_h))}
        rounds = full + (more > 0)
        return Candidate(tuple(sorted(cost_h)), split, float(rounds * Fraction(repr(costs[0]))), overhead_h, stays)
    split, wall = share(units, cost_h)
    return Candidate(tuple(sorted(cost_h)), split, wall, overhead_h, stays)


def choose(candidates: Sequence[Candidate]) -> WidthChoice:
    """The candidate of the smallest wall, the narrower of equals; exactly one of them must be the one that stays."""
    stay = next(found for found in candidates if found.stays)
    chosen = min(candidates, key=lambda c: (round(c.wall_h, 9), c.width, not c.stays))
    action = "continue_as_is" if chosen is stay else f"reshard_width_{chosen.width}"
    units = sum(stay.split.values())
    parts = [
        f"{'staying at' if c.stays else 'width'} {c.width}: {max(c.split.values(), default=0)} rounds, "
        f"{c.compute_h:.4g} h + {c.overhead_h:.4g} h = {c.wall_h:.4g} h ({c.box_hours:.4g} box-hours)"
        for c in candidates
    ]
    words = (
        f"{units} units remain; "
        + "; ".join(parts)
        + f". {action}: "
        + (f"saves {stay.wall_h - chosen.wall_h:.4g} h" if chosen is not stay else "nothing wider ends sooner")
    )
    return WidthChoice(tuple(candidates), chosen, stay, action, stay.wall_h - chosen.wall_h, words)


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
    if deviation.tripped is Tripped.NOT_ESTABLISHED:
        return Course(None, None, deviation.recorded)
    if deviation.tripped is Tripped.NO:
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


@dataclass(frozen=True, slots=True)
class Ruling:
    """Whether a proposed action may stand."""

    accepted: bool
    why: str


def rule_on(
    proposed: str,
    ratio: float,
    *,
    arithmetic_on_record: bool = False,
    staying_wins: bool = False,
    no_more_width: bool = False,
    quantified_finding: bool = False,
    ratio_after: float | None = None,
) -> Ruling:
    """Holds a proposal against the rules: widening is the default, and staying has to be earned."""
    if proposed == "continue_as_is":
        if not arithmetic_on_record:
            return Ruling(False, "staying needs its arithmetic on record")
        if not (staying_wins or no_more_width):
            return Ruling(False, "the arithmetic does not show that staying wins, nor that no more width is to be had")
        if ratio >= SEVERE and not quantified_finding:
            return Ruling(False, f"at {ratio:g} x and over {SEVERE:g} x staying needs a quantified finding as well")
        return Ruling(True, "the arithmetic shows it" + (", with a finding" if quantified_finding else ""))
    if proposed.startswith("auto_descope_to_"):
        if ratio_after is None or ratio_after > DESCOPE_TO:
            return Ruling(False, f"a descope must bring the ratio to {DESCOPE_TO:g} or less")
        return Ruling(True, f"brings the ratio to {ratio_after:g}")
    return Ruling(True, "widening and fixing need no defence")
