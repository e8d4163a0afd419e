"""From what is known of a component that runs over its plan to what is to be done: one question, one answer.

``read`` takes a mapping as files hold it (the keys of ``Question``, hours and whole units); ``decide`` puts deviation,
signature, course and width together, and rules on what somebody proposed. Only measured unit costs are ever used: a
plan's own figure may stand in a file, and is left where it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tenure.domain import width
from tenure.domain.deviation import Deviation, Signature, Telemetry, Tripped, assess, signature_of

#: Bounds of what a question may ask to be worked out.
MAX_UNITS = 1_000_000_000
MAX_WIDTH = 10_000
MAX_CANDIDATES = 1_000


@dataclass(frozen=True, slots=True)
class Question:
    """What is known of a component. ``None``: nobody said.

    ``candidates``: device sets with their cost a unit and their overhead (hours); exactly one stays. ``proposed``: an
    action somebody wants, with what they claim for it.
    """

    component: str = ""
    planned: object = None
    projected: object = None
    ratio: object = None
    signature: Signature | None = None
    telemetry: Telemetry | None = None
    fix_rounds_done: int = 0
    units_independent: bool = True
    movable: bool = False
    unit_cost_h: float | None = None
    candidates: tuple[width.Candidate, ...] = ()
    max_width: int | None = None
    proposed: str | None = None
    claims: Mapping[str, Any] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What follows. ``deviation`` is ``None`` where neither plan nor ratio was told, ``choice`` without candidates.

    ``action``: the next step, ``None`` where nothing follows. ``ruling``: on what was proposed.
    """

    deviation: Deviation | None
    signature: Signature | None
    signature_words: str
    course: width.Course | None
    choice: width.WidthChoice | None
    action: str | None
    ruling: width.Ruling | None
    assumed: tuple[str, ...]


def decide(question: Question) -> Answer:
    """Works the question out. A fix round that is due comes before any width; width helps independent units alone."""
    signature, told = question.signature, "" if question.signature is None else "as the file states it"
    if signature is None and question.telemetry is not None:
        signature, _, told = signature_of(question.telemetry)
    deviation = None
    course = None
    if question.planned is not None or question.ratio is not None:
        deviation = assess(question.planned, question.projected, ratio=question.ratio, component=question.component)
        course = width.course(
            deviation,
            signature,
            fix_rounds_done=question.fix_rounds_done,
            units_independent=question.units_independent,
            movable=question.movable,
        )
    choice = width.choose(question.candidates, max_width=question.max_width) if question.candidates else None
    action = course.action if course is not None else None
    if action is None and choice is not None and question.units_independent:
        action = choice.action
    ruling = None if question.proposed is None else _rule(question, deviation, choice)
    return Answer(deviation, signature, told, course, choice, action, ruling, question.assumed)


def _rule(question: Question, deviation: Deviation | None, choice: width.WidthChoice | None) -> width.Ruling:
    """The arithmetic that was done here outweighs what was claimed for it."""
    claims = question.claims
    known = deviation is not None and deviation.tripped is not Tripped.NOT_ESTABLISHED
    stays = choice is not None and choice.chosen is choice.stay
    return width.rule_on(
        question.proposed or "",
        deviation.ratio if known and deviation is not None else None,
        arithmetic_on_record=choice is not None or claims.get("arithmetic_on_record") is True,
        staying_wins=stays if choice is not None else claims.get("arithmetic_shows_staying_wins") is True,
        no_more_width=choice.no_more_width if choice is not None else claims.get("no_more_width") is True,
        quantified_finding=claims.get("quantified_finding") is True,
        ratio_after=claims.get("ratio_after"),
        fix_rounds_done=question.fix_rounds_done,
        max_width=question.max_width,
    )


# -- reading -----------------------------------------------------------------------------------------------------------


def read(told: Mapping[str, Any]) -> Question:
    """The question in a mapping. Raises ValueError naming the key that is wrong; keys that are not ours are let be.

    ``planned_wall_h``, ``projected_wall_h``, ``ratio``; ``signature`` or ``telemetry`` (``gpu_busy``, ``utilisation``,
    ``cores``, ``units_per_launch``); ``fix_rounds_done``, ``units_independent``, ``checkpoints_live``,
    ``relaunch_under_way``; ``units_remaining``, or ``units_total`` and ``units_done``; ``unit_cost_h_measured`` with
    ``width`` (the present one), ``candidates`` and ``overhead_h`` (``stay``, ``widen``: hours, or hours by name); or
    ``unit_cost_h_by_device`` with ``candidate_sets`` (the first is the present one), ``overhead_h_stay`` and
    ``overhead_h_widen``; ``max_width``; ``proposed`` with ``arithmetic_on_record``, ``arithmetic_shows_staying_wins``,
    ``no_more_width``, ``quantified_finding``, ``ratio_after``.
    """
    assumed: list[str] = []
    if "units_independent" not in told:
        assumed.append("units_independent: true")
    cost = told.get("unit_cost_h_measured")
    if cost is not None and (isinstance(cost, bool) or not isinstance(cost, int | float)):
        raise ValueError(f"unit_cost_h_measured {cost!r} is no number of hours")
    claimed = ("arithmetic_on_record", "arithmetic_shows_staying_wins", "no_more_width", "quantified_finding")
    for key in claimed:
        _flag(told, key)
    max_width = None if told.get("max_width") is None else _whole(told, "max_width", MAX_WIDTH)
    proposed = told.get("proposed")
    if proposed is not None and not isinstance(proposed, str):
        raise ValueError(f"proposed {proposed!r} is no action")
    return Question(
        component=str(told.get("component", told.get("name", ""))),
        planned=told.get("planned_wall_h"),
        projected=told.get("projected_wall_h"),
        ratio=told.get("ratio"),
        signature=_signature(told),
        telemetry=_telemetry(told),
        fix_rounds_done=_whole(told, "fix_rounds_done", MAX_UNITS),
        units_independent=_flag(told, "units_independent", default=True),
        movable=_flag(told, "checkpoints_live") or _flag(told, "relaunch_under_way"),
        unit_cost_h=cost,
        candidates=_candidates(told, cost, assumed),
        max_width=max_width,
        proposed=proposed,
        claims={key: told.get(key) for key in (*claimed, "ratio_after")},
        assumed=tuple(assumed),
    )


def _flag(told: Mapping[str, Any], key: str, *, default: bool = False) -> bool:
    value = told.get(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"{key} {value!r} is neither true nor false")
    return value


def _whole(told: Mapping[str, Any], key: str, most: int) -> int:
    value = told.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{key} {value!r} is no whole number from 0 to {most}")
    return value


def _signature(told: Mapping[str, Any]) -> Signature | None:
    value = told.get("signature")
    if value is None:
        return None
    try:
        return Signature(value)
    except ValueError as error:
        raise ValueError(f"signature {value!r} is none of {', '.join(Signature)}") from error


def _telemetry(told: Mapping[str, Any]) -> Telemetry | None:
    value = told.get("telemetry")
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError("telemetry maps gpu_busy, utilisation, cores and units_per_launch to numbers")
    figures = {key: value.get(key) for key in ("gpu_busy", "utilisation", "cores", "units_per_launch")}
    known = {key: v for key, v in figures.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return Telemetry(**known)


def _remaining(told: Mapping[str, Any]) -> int:
    if "units_remaining" in told:
        return _whole(told, "units_remaining", MAX_UNITS)
    if "units_total" not in told:
        raise ValueError("units_remaining, or units_total with units_done, has to be given")
    left = _whole(told, "units_total", MAX_UNITS) - _whole(told, "units_done", MAX_UNITS)
    if left < 0:
        raise ValueError("units_done is more than units_total")
    return left


def _hours(value: object, key: str, assumed: list[str]) -> float:
    if value is None:
        assumed.append(f"{key}: 0 h")
        return 0.0
    parts = value if isinstance(value, Mapping) else {key: value}
    for name, hours in parts.items():
        if isinstance(hours, bool) or not isinstance(hours, int | float) or not (0 <= hours < math.inf):
            raise ValueError(f"{key}: {name} {hours!r} is no number of hours")
    return float(sum((Fraction(repr(hours)) for hours in parts.values()), Fraction()))


def _candidates(told: Mapping[str, Any], cost: float | None, assumed: list[str]) -> tuple[width.Candidate, ...]:
    if "candidate_sets" in told:
        return _sets(told, assumed)
    if "candidates" not in told:
        return ()
    if cost is None:
        raise ValueError("candidates need unit_cost_h_measured: the plan's own figure is never used")
    counts = told["candidates"]
    ours = _whole(told, "width", MAX_WIDTH)
    if not isinstance(counts, list) or not ours or len(counts) > MAX_CANDIDATES:
        raise ValueError("candidates is a list of widths, and width the present one, at least 1")
    widths = dict.fromkeys([ours, *(_whole({"candidates": n}, "candidates", MAX_WIDTH) for n in counts)])
    if 0 in widths:
        raise ValueError("a width of 0 finishes nothing")
    overhead = told.get("overhead_h", {})
    if not isinstance(overhead, Mapping):
        raise ValueError("overhead_h maps stay and widen to hours")
    remaining = _remaining(told)
    hours = {key: _hours(overhead.get(key), f"overhead_h.{key}", assumed) for key in ("stay", "widen")}
    return tuple(
        width.candidate(
            remaining,
            width.equal_devices(count, cost),
            hours["stay" if count == ours else "widen"],
            stays=count == ours,
        )
        for count in sorted(widths)
    )


def _sets(told: Mapping[str, Any], assumed: list[str]) -> tuple[width.Candidate, ...]:
    sets, costs = told["candidate_sets"], told.get("unit_cost_h_by_device")
    if not isinstance(costs, Mapping) or not isinstance(sets, list) or not 0 < len(sets) <= MAX_CANDIDATES:
        raise ValueError("candidate_sets is a list of lists of devices, with unit_cost_h_by_device")
    hours = [_hours(told.get(key), key, assumed) for key in ("overhead_h_stay", "overhead_h_widen")]
    return tuple(
        width.candidate(_remaining(told), _costs_of(names, costs), hours[index > 0], stays=index == 0)
        for index, names in enumerate(sets)
    )


def _costs_of(names: object, costs: Mapping[str, Any]) -> dict[str, float]:
    if not isinstance(names, Sequence) or isinstance(names, str) or not names or len(names) > MAX_WIDTH:
        raise ValueError(f"{names!r} is no list of devices")
    lacking = [str(name) for name in names if name not in costs]
    if lacking or len(set(names)) != len(names):
        raise ValueError(f"no measured unit cost for {', '.join(lacking)}" if lacking else f"{names!r} names one twice")
    return {name: costs[name] for name in names}
