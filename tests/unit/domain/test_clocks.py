"""Clock windows and pairs, against a naive second reading; plots, coverage, chances."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.domain import clocks_naive as naive

from tenure.domain import clocks
from tenure.domain.clock_files import window_from_dict
from tenure.domain.clocks import ClockSample, ClockWindow
from tenure.domain.pairing import judge_pair


def arm(draw: random.Random) -> naive.Arm:
    """An arm near every boundary of the gate."""
    base = draw.choice([2000, 2010, 2020, 2021])
    width = draw.choice([0, 5, 99, 100, 101, 102])
    found: dict[str, Any] = {
        "sm_mhz": [[base, base + draw.randint(0, width), base + width], draw.choice([5, 10, 20, 21])],
        "name": draw.choice(["GB10", "GB10", "GB10", "H100"]),
        "driver": draw.choice(["580.1", "580.1", "580.1", "580.2"]),
        "max_sm_mhz": draw.choice([3003, 3003, 3003, 3004]),
        "boot_id": draw.choice(["b1", "b1", "b2"]),
        "persistence": draw.choice(["Enabled"] * 6 + ["Disabled", "[N/A]", ""]),
    }
    if draw.random() < 0.3:
        found["busy_cycle"] = draw.choice([[True, False], [True, False, False], [True, True, False]])
    if draw.random() < 0.3:
        found["throttle_bits"] = draw.choice([0, 1, 2, 3, 256, 258, 4, 0x8000, 1 << 63])
    if draw.random() < 0.2:
        found["throttle_bits_at"] = {str(draw.randint(0, 14)): draw.choice([1, 32, 64, 0x600])}
    if draw.random() < 0.3:
        found["coverage"] = draw.choice([1.0, 0.95, 0.9499, 0.0])
    if draw.random() < 0.2:
        found["contended"] = draw.choice([True, False])
    return found


def test_random_pairs_are_judged_as_a_naive_second_reading_does() -> None:
    draw = random.Random(23)
    verdicts = set()
    for _ in range(400):
        one = arm(draw)
        other = arm(draw) if draw.random() < 0.5 else dict(one)
        waive = draw.choice([[], ["boot"], ["boot", "spread"]])
        found = judge_pair(window_from_dict(one).window, window_from_dict(other).window, waive)
        right = naive.judge(one, other, waive)
        assert {
            "verdict": found.verdict,
            "reasons": sorted(found.reasons),
            "caveats": sorted(found.caveats),
        } == right, (one, other)
        for given_arm, summary in zip((one, other), found.arms, strict=True):
            assert summary is not None
            assert summary.spread_pct == pytest.approx(float(naive.spread(given_arm)))
        assert (found.ratio(3.0, 2.0) is None) is (right["verdict"] == "DISCARD")
        verdicts.add(found.verdict)
    assert verdicts == {"PAIR", "DISCARD"}


def window(**changed: Any) -> ClockWindow:
    whole: dict[str, Any] = {
        "samples": tuple(ClockSample(2000.0, 0) for _ in range(40)),
        "name": "H100",
        "driver": "580",
        "max_sm_mhz": 1980.0,
        "boot_id": "b1",
        "persistence": "Enabled",
        "coverage": 1.0,
    }
    return ClockWindow(**{**whole, **changed})


BUSY = tuple(ClockSample(2000.0, 0) for _ in range(40))


@pytest.mark.parametrize(
    ("changed", "reasons"),
    [
        ({}, ()),
        ({"coverage": None}, ("coverage_unknown",)),
        ({"coverage": math.nan}, ("coverage",)),
        ({"contended": None}, ("contended_unknown",)),
        ({"persistence": "perhaps"}, ("persistence_unknown",)),
        ({"samples": (*BUSY, ClockSample(None, 0))}, ("clock_unknown",)),
        ({"samples": (*BUSY, ClockSample(None, 0, busy=False))}, ()),
        ({"samples": (*BUSY, ClockSample(2000.0, None))}, ("throttle_unknown",)),
        ({"samples": (*BUSY, ClockSample(900.0, 0, busy=None))}, ("busy_unknown",)),
        ({"samples": ()}, ("samples", "busy_fraction", "spread")),
        ({"samples": BUSY[:29]}, ("samples",)),
        ({"samples": BUSY[:30]}, ()),
        ({"samples": (ClockSample(1950.0, 0), *BUSY, ClockSample(2050.0, 0))}, ()),  # 5 % is still within
        ({"samples": (ClockSample(1950.0, 0), *BUSY, ClockSample(2051.0, 0))}, ("spread",)),
        ({"samples": tuple(ClockSample(0.0, 0) for _ in range(40))}, ("spread",)),
    ],
)
def test_what_did_not_read_never_passes(changed: dict[str, Any], reasons: tuple[str, ...]) -> None:
    assert clocks.gate(window(**changed)) == reasons


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("name", "", "static_unknown:name"),
        ("driver", "", "static_unknown:driver"),
        ("max_sm_mhz", None, "static_unknown:max_sm_mhz"),
        ("boot_id", "", "boot_unknown"),
    ],
)
def test_two_unknowns_are_not_the_same(field: str, value: object, reason: str) -> None:
    both = dataclasses.replace(window(), **{field: value})  # type: ignore[arg-type]
    assert judge_pair(both, both, ["boot"]).reasons == (reason,)


def test_memory_clocks_have_to_agree_where_there_are_any() -> None:
    assert judge_pair(window(max_mem_mhz=2619.0), window(max_mem_mhz=2619.0)).paired
    assert judge_pair(window(max_mem_mhz=2619.0), window()).reasons == ("static:max_mem_mhz",)


@pytest.mark.parametrize(
    "fields", [{"sm_mhz": math.nan}, {"sm_mhz": -1.0}, {"mem_mhz": math.inf}, {"throttle_bits": -1}]
)
def test_a_figure_that_is_none_makes_no_sample(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is no"):
        ClockSample(**{"sm_mhz": 2000.0, "throttle_bits": 0, **fields})


def test_every_bit_has_a_name_and_unknown_ones_are_kept() -> None:
    for place in range(64):
        (name,) = clocks.throttle_names(1 << place)
        assert name == (clocks.THROTTLE_BITS[1 << place] if place < 9 else f"unknown_{1 << place:#x}")
    assert clocks.throttle_names(0) == ()
    assert clocks.throttle_names(0x8041) == ("gpu_idle", "hw_thermal_slowdown", "unknown_0x8000")


# -- summaries and plots -----------------------------------------------------------------------------------------------

VALUES = st.lists(st.floats(0, 5000, allow_nan=False), min_size=1, max_size=400)


@settings(max_examples=80, deadline=None)
@given(VALUES)
def test_a_summary_is_of_all_values(values: list[float]) -> None:
    found = clocks.summarise(values)
    assert found is not None
    assert (found.count, found.minimum, found.maximum) == (len(values), min(values), max(values))
    assert found.median == statistics.median(values)
    assert found.mean == pytest.approx(sum(values) / len(values))


@settings(max_examples=120, deadline=None)
@given(VALUES, st.integers(1, 40))
def test_a_plot_never_leaves_out_an_excursion(values: list[float], points: int) -> None:
    drawn = clocks.plot_points(values, points)
    assert len(drawn) <= max(2 * points, 1)
    assert all(values[index] == value for index, value in drawn)
    assert [index for index, _ in drawn] == sorted({index for index, _ in drawn})
    # Every sample lies between two that are drawn from its own neighbourhood.
    reach = math.ceil(len(values) / points) if len(values) > 2 * points else 0
    for index, value in enumerate(values):
        near = [v for i, v in drawn if abs(i - index) <= reach]
        assert min(near) <= value <= max(near)


@given(st.integers(1, 500), st.integers(1, 30), st.data())
@settings(max_examples=60, deadline=None)
def test_one_sample_that_stands_out_is_drawn(count: int, points: int, data: st.DataObject) -> None:
    where, values = data.draw(st.integers(0, count - 1)), [2400.0] * count
    values[where] = data.draw(st.sampled_from([1200.0, 3600.0]))
    assert (where, values[where]) in clocks.plot_points(values, points)


@pytest.mark.parametrize(("values", "points"), [([1.0], 0), ([1.0], -1), ([math.nan, 1.0], 3), ([math.inf], 3)])
def test_what_cannot_be_drawn_is_refused(values: list[float], points: int) -> None:
    with pytest.raises(ValueError, match=r"drawn|draw nothing"):
        clocks.plot_points(values, points)


# -- coverage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "period", "span", "share"),
    [
        ([0, 1, 2, 3, 4], 1, None, 1.0),
        ([0, 2, 4], 1, None, 1.0),
        ([0, 2.001, 4], 1, None, 1.999 / 4),
        ([0, 1, 2, 8, 9, 10], 1, None, 0.4),
        ([0, 1, 2], 1, (0, 10), 0.2),
        ([8, 9, 10], 1, (0, 10), 0.2),
        ([0.1, 0.3, 0.5], 0.1, None, 1.0),
        ([5], 1, None, 1.0),
        ([], 1, None, 0.0),
        ([5], 1, (7, 9), 0.0),
    ],
)
def test_coverage(times: list[float], period: float, span: tuple[float, float] | None, share: float) -> None:
    begin, end = span or (None, None)
    assert clocks.coverage_of(times, period, begin=begin, end=end) == pytest.approx(share)


@pytest.mark.parametrize(("times", "period"), [([1, 0], 1), ([0, math.nan], 1), ([0, 1], 0), ([0, 1], math.nan)])
def test_times_that_are_none_are_refused(times: list[float], period: float) -> None:
    with pytest.raises(ValueError, match=r"period|times"):
        clocks.coverage_of(times, period)


# -- chances -----------------------------------------------------------------------------------------------------------


def test_the_most_items_by_counting_up() -> None:
    for p_in_hundredths in range(1, 100):
        for least_in_hundredths in (1, 5, 50, 81, 90, 99, 100):
            items, clean = 0, 100
            # Whole numbers: clean / 100**n against least / 100.
            while clean * (100 - p_in_hundredths) >= least_in_hundredths * 100 ** (items + 1) and items < 500:
                clean, items = clean * (100 - p_in_hundredths), items + 1
            assert clocks.items_for(p_in_hundredths / 100, least_in_hundredths / 100) == items


@pytest.mark.parametrize(
    ("chance", "least", "items"),
    [(0.0, 0.9, None), (1.0, 0.1, 0), (0.476, 0.5, 1), (1e-6, 0.5, 693_146), (5e-324, 0.5, None), (0.1, 1.0, 0)],
)
def test_the_most_items_at_the_ends(chance: float, least: float, items: int | None) -> None:
    assert clocks.items_for(chance, least) == items


@pytest.mark.parametrize(("chance", "least"), [(-0.1, 0.5), (1.1, 0.5), (math.nan, 0.5), (0.1, 0.0), (0.1, 1.1)])
def test_what_is_no_chance_is_refused(chance: float, least: float) -> None:
    with pytest.raises(ValueError, match="chance"):
        clocks.items_for(chance, least)


@pytest.mark.parametrize(
    ("events", "items", "bound"),
    [(0, 20, 1 - 0.05 ** (1 / 20)), (20, 20, 1.0), (0, 1, 0.95), (1, 1, 1.0), (5, 10, 0.7776), (476, 1000, 0.5025)],
)
def test_what_a_pilot_leaves_open(events: int, items: int, bound: float) -> None:
    # The closed form for no events; the others from tables of the beta distribution.
    assert clocks.chance_bound(events, items) == pytest.approx(bound, abs=6e-4)
