"""Width: brute force over all splits, the ceil formula, ties, and the rules on what is proposed."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from tenure.domain import remedy, width
from tenure.domain.deviation import Signature, assess

COSTS = (0.1, 0.3, 0.5, 0.75, 1.0, 2.5)


def splits(units: int, devices: int) -> Iterator[tuple[int, ...]]:
    """All ways to give so many units to so many devices."""
    if devices == 1:
        yield (units,)
        return
    for first in range(units + 1):
        for rest in splits(units - first, devices - 1):
            yield (first, *rest)


def makespan(split: tuple[int, ...], costs: tuple[float, ...]) -> Fraction:
    return max(count * Fraction(str(cost)) for count, cost in zip(split, costs, strict=True))


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_no_split_of_whole_units_ends_sooner(devices: int) -> None:
    for costs in itertools.combinations_with_replacement(COSTS, devices):
        named = {f"d{number}": cost for number, cost in enumerate(costs)}
        for units in range(8):
            split, wall = width.share(units, named)
            assert sum(split.values()) == units
            assert wall == float(min(makespan(one, costs) for one in splits(units, devices)))
            assert wall == float(makespan(tuple(split.values()), costs))


def test_the_shortcut_shares_out_as_one_by_one_would() -> None:
    draw = random.Random(5)
    for _ in range(300):
        costs = {f"d{number}": draw.choice(COSTS) for number in range(draw.randint(1, 6))}
        units = draw.randint(0, 60)
        given = dict.fromkeys(costs, 0)
        for _ in range(units):  # each next unit to whoever would end it first, ties to the smaller name
            given[min(costs, key=lambda n: ((given[n] + 1) * Fraction(str(costs[n])), n))] += 1
        assert width.share(units, costs)[0] == given


@pytest.mark.parametrize("units", [0, 1, 3, 4, 5, 112, 113])
@pytest.mark.parametrize("count", [1, 3, 4, 8, 12])
def test_equal_boxes_take_whole_rounds(units: int, count: int) -> None:
    found = width.candidate(units, width.equal_devices(count, 0.40125), 0.5, stays=True)
    assert found.compute_h == pytest.approx(math.ceil(units / count) * 0.40125, abs=1e-12)
    assert found.wall_h == pytest.approx(found.compute_h + 0.5)
    assert found.box_hours == pytest.approx(count * found.wall_h)
    assert max(found.split.values()) - min(found.split.values()) <= 1


def test_a_thousand_million_units_are_shared_at_once() -> None:
    split, wall = width.share(10**9, {"a": 0.5, "b": 1.0})
    assert sum(split.values()) == 10**9
    assert wall == pytest.approx(10**9 / 3, rel=1e-6)


@pytest.mark.parametrize("cost", [0.0, -1.0, float("nan"), float("inf")])
def test_a_cost_that_is_none_is_refused(cost: float) -> None:
    with pytest.raises(ValueError, match="unit cost"):
        width.candidate(3, {"a": 1.0, "b": cost}, 0.0, stays=True)


@pytest.mark.parametrize("overhead", [-0.1, float("nan"), float("inf")])
def test_an_overhead_that_is_none_is_refused(overhead: float) -> None:
    with pytest.raises(ValueError, match="overhead"):
        width.candidate(3, {"a": 1.0}, overhead, stays=True)


def test_nothing_is_shared_over_nobody() -> None:
    with pytest.raises(ValueError, match="shared"):
        width.share(3, {})


def boxes(units: int, widths: list[int], present: int, widen_h: float = 0.0) -> list[width.Candidate]:
    return [
        width.candidate(units, width.equal_devices(w, 1.0), 0.0 if w == present else widen_h, stays=w == present)
        for w in widths
    ]


@pytest.mark.parametrize(
    ("units", "widths", "present", "chosen"),
    [
        (8, [4, 8], 4, 8),
        (9, [4, 5, 6, 8], 4, 5),  # two rounds at 5, 6 and 8 alike: the smallest of them
        (2, [4, 8, 12], 4, 4),  # one round anyway
        (2, [2, 4], 4, 2),  # narrower and as fast
        (0, [2, 4], 4, 2),
    ],
)
def test_the_smallest_wall_wins_and_the_smaller_width_of_equals(
    units: int, widths: list[int], present: int, chosen: int
) -> None:
    found = width.choose(boxes(units, widths, present))
    assert found.chosen.width == chosen
    assert found.action == ("continue_as_is" if chosen == present else f"reshard_width_{chosen}")


def test_decimals_that_are_equal_are_a_tie() -> None:
    narrow = width.candidate(1, {"a": 0.1, "b": 0.1}, 0.2, stays=True)  # 0.1 + 0.2 is over 0.3 for a float
    wide = width.candidate(1, width.equal_devices(4, 0.3), 0.0, stays=False)
    assert width.choose([wide, narrow]).chosen is narrow


def test_what_is_wider_than_allowed_is_shown_and_not_chosen() -> None:
    found = width.choose(boxes(16, [4, 8, 16], 4), max_width=8)
    assert found.chosen.width == 8
    assert [c.width for c in found.candidates] == [4, 8, 16]
    assert "over the maximum of 8" in found.words
    assert not found.no_more_width
    assert width.choose(boxes(16, [4, 8, 16], 4), max_width=4).no_more_width


@pytest.mark.parametrize("stays", [0, 2])
def test_one_candidate_has_to_be_the_present_width(stays: int) -> None:
    found = [width.candidate(1, {"a": 1.0}, 0.0, stays=number < stays) for number in range(2)]
    with pytest.raises(ValueError, match="present width"):
        width.choose(found)


def test_the_arithmetic_is_told_in_numbers() -> None:
    words = width.choose(boxes(16, [4, 8], 4, widen_h=0.5)).words
    for figure in ("16 units", "4 h + 0 h = 4 h (16 box-hours)", "2 h + 0.5 h = 2.5 h (20 box-hours)", "saves 1.5 h"):
        assert figure in words


# -- the course --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signature", [None, *Signature])
@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("independent", [True, False])
@pytest.mark.parametrize("movable", [True, False])
@pytest.mark.parametrize("ratio", [1.9, 2.0, 7.0])
def test_the_course_over_all_combinations(
    signature: Signature | None, rounds: int, independent: bool, movable: bool, ratio: float
) -> None:
    found = width.course(
        assess(None, None, ratio=ratio),
        signature,
        fix_rounds_done=rounds,
        units_independent=independent,
        movable=movable,
    )
    expected: tuple[str | None, str | None]
    if ratio < 2:
        expected = (None, None)
    elif signature != "flop_bound" and rounds == 0:
        expected = ("vectorize_fix_round", "not_yet")
    elif not independent:
        expected = (None, "not_applicable")
    elif signature != "overhead_bound" and movable:
        expected = (None, "mandatory")
    else:
        expected = (None, "optional")
    assert (found.action, found.evaluation) == expected


# -- rulings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [None, 1.9999, 2.0, 4.9999, 5.0, 12.0])
@pytest.mark.parametrize("arithmetic", [True, False])
@pytest.mark.parametrize("wins", [True, False])
@pytest.mark.parametrize("no_more", [True, False])
@pytest.mark.parametrize("finding", [True, False])
def test_staying_is_earned_over_all_combinations(
    ratio: float | None, arithmetic: bool, wins: bool, no_more: bool, finding: bool
) -> None:
    found = width.rule_on(
        "continue_as_is",
        ratio,
        arithmetic_on_record=arithmetic,
        staying_wins=wins,
        no_more_width=no_more,
        quantified_finding=finding,
    )
    if ratio == 1.9999:
        assert found.accepted
    else:
        severe = ratio is None or ratio >= 5
        assert found.accepted is (arithmetic and (wins or no_more) and (finding or not severe))
    assert found.why


@pytest.mark.parametrize(
    ("after", "accepted"),
    [(1.5, True), (1.0, True), (1.5000001, False), (None, False), (float("nan"), False), (-1, False), ("1.2", False)],
)
def test_a_descope_has_to_bring_the_ratio_down(after: object, accepted: bool) -> None:
    assert width.rule_on("auto_descope_to_64", 3.0, ratio_after=after).accepted is accepted


@pytest.mark.parametrize(
    ("proposed", "facts", "accepted"),
    [
        ("vectorize_fix_round", {}, True),
        ("vectorize_fix_round", {"fix_rounds_done": 1}, False),
        ("reshard_width_8", {}, True),
        ("reshard_width_8", {"max_width": 8}, True),
        ("reshard_width_9", {"max_width": 8}, False),
        ("reshard_width_0", {}, False),
        ("reshard_width_many", {}, False),
        ("auto_descope_to_", {"ratio_after": 1.0}, False),
        ("hope", {}, False),
        ("", {}, False),
    ],
)
def test_other_proposals(proposed: str, facts: dict[str, Any], accepted: bool) -> None:
    assert width.rule_on(proposed, 3.0, **facts).accepted is accepted


# -- questions ---------------------------------------------------------------------------------------------------------

GRID: dict[str, Any] = {
    "planned_wall_h": 5.0,
    "projected_wall_h": 12.84,
    "signature": "flop_bound",
    "units_total": 128,
    "units_done": 16,
    "unit_cost_h_measured": 0.40125,
    "width": 4,
    "candidates": [8, 12],
    "checkpoints_live": True,
    "overhead_h": {"stay": 0.1, "widen": {"provision": 0.25, "stage": 0.15, "restore": 0.1}},
}


def ask(**changed: Any) -> remedy.Answer:
    told = {**GRID, **changed}
    return remedy.decide(remedy.read({key: value for key, value in told.items() if value is not ...}))


def test_the_present_width_is_always_compared() -> None:
    found = ask()
    assert found.choice is not None
    assert [c.width for c in found.choice.candidates] == [4, 8, 12]
    assert found.action == "reshard_width_12"


def test_a_fix_round_that_is_due_comes_before_any_width() -> None:
    assert ask(signature="overhead_bound").action == "vectorize_fix_round"
    assert ask(signature=..., telemetry={"gpu_busy": 0.2, "utilisation": 0.3, "cores": 1.0}).action == (
        "vectorize_fix_round"
    )


def test_units_that_depend_are_not_spread() -> None:
    assert ask(units_independent=False).action is None


def test_the_arithmetic_done_here_outweighs_what_is_claimed() -> None:
    claims = {"arithmetic_on_record": True, "arithmetic_shows_staying_wins": True, "no_more_width": True}
    refused = ask(proposed="continue_as_is", **claims).ruling
    assert refused is not None
    assert not refused.accepted
    bounded = ask(proposed="continue_as_is", max_width=4).ruling
    assert bounded is not None
    assert bounded.accepted
    nearly_done = ask(proposed="continue_as_is", units_done=126).ruling
    assert nearly_done is not None
    assert nearly_done.accepted


def test_what_was_assumed_is_told() -> None:
    assert set(ask(overhead_h={}).assumed) == {
        "units_independent: true",
        "overhead_h.stay: 0 h",
        "overhead_h.widen: 0 h",
    }
    assert ask(units_independent=True).assumed == ()


def test_overheads_are_added_as_decimals() -> None:
    found = ask(overhead_h={"stay": 0.3, "widen": {"a": 0.1, "b": 0.2}}).choice
    assert found is not None
    assert [c.overhead_h for c in found.candidates] == [0.3, 0.3, 0.3]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"unit_cost_h_measured": ..., "planned_unit_cost_h": 0.156}, "unit_cost_h_measured"),
        ({"unit_cost_h_measured": "0.4"}, "unit_cost_h_measured"),
        ({"unit_cost_h_measured": True}, "unit_cost_h_measured"),
        ({"unit_cost_h_measured": float("nan")}, "unit cost"),
        ({"units_done": 129}, "units_done"),
        ({"units_total": ...}, "units_remaining"),
        ({"units_total": -1}, "units_total"),
        ({"units_total": 10**12}, "units_total"),
        ({"width": ...}, "width"),
        ({"candidates": [0]}, "width of 0"),
        ({"candidates": 8}, "candidates"),
        ({"candidates": [10**9]}, "candidates"),
        ({"signature": "slow"}, "signature"),
        ({"signature": 3}, "signature"),
        ({"fix_rounds_done": "one"}, "fix_rounds_done"),
        ({"units_independent": "yes"}, "units_independent"),
        ({"checkpoints_live": 1}, "checkpoints_live"),
        ({"overhead_h": 3}, "overhead_h"),
        ({"overhead_h": {"widen": {"stage": "1 h"}}}, "stage"),
        ({"overhead_h": {"stay": float("inf")}}, "stay"),
        ({"telemetry": 3}, "telemetry"),
        ({"proposed": 3}, "proposed"),
        ({"quantified_finding": "yes"}, "quantified_finding"),
        ({"candidate_sets": [["a"]]}, "unit_cost_h_by_device"),
        ({"candidate_sets": [["a", "c"]], "unit_cost_h_by_device": {"a": 1}}, "c"),
        ({"candidate_sets": [["a", "a"]], "unit_cost_h_by_device": {"a": 1}}, "twice"),
        ({"candidate_sets": ["a"], "unit_cost_h_by_device": {"a": 1}}, "list of devices"),
    ],
)
def test_a_key_that_is_wrong_is_named(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ask(**changed)
