"""Floors against predicted operating points."""

from __future__ import annotations

import math
import random
from decimal import Decimal

import pytest

from tenure.domain.guard import Soundness, judge_floor


@pytest.mark.parametrize(
    ("floor", "predicted", "uncertainty", "verdict"),
    [
        (12000, 12223, 306, "unsound"),
        (5000, 12223, 306, "sound"),
        (11917, 12223, 306, "unsound"),  # at it is not above it
        (11916.999, 12223, 306, "sound"),
        (9500, 10000, None, "unsound"),
        (9499.999, 10000, None, "sound"),
        (11611.85, 12223, None, "unsound"),  # exactly 95 %, where floats would differ in their last bit
        (0.665, 0.7, None, "unsound"),  # the same, where 0.05 times it is a hair too small
        (0.1, 0.3, 0.2, "unsound"),
        (12000, None, None, "not_established"),
        (12000, math.nan, None, "not_established"),
        (12000, math.inf, 5, "not_established"),
        (0, 0, None, "unsound"),
        (-1, 0, None, "sound"),
    ],
)
def test_floors(floor: float, predicted: float | None, uncertainty: float | None, verdict: str) -> None:
    assert judge_floor(floor, predicted, uncertainty).verdict == verdict


def test_a_naive_second_reading_agrees() -> None:
    draw = random.Random(11)
    for _ in range(2000):
        predicted, floor = draw.randint(0, 300) / 10, draw.randint(0, 300) / 10
        spread = draw.choice([None, draw.randint(0, 50) / 10])
        given = Decimal(str(predicted)) * Decimal("0.05") if spread is None else Decimal(str(spread))
        sound = Decimal(str(predicted)) - given > Decimal(str(floor))
        found = judge_floor(floor, predicted, spread)
        assert (found.verdict is Soundness.SOUND) is sound
        assert found.margin == pytest.approx(float(Decimal(str(predicted)) - given - Decimal(str(floor))))


@pytest.mark.parametrize(("floor", "uncertainty"), [(math.nan, None), (math.inf, None), (1.0, -0.1), (1.0, math.nan)])
def test_what_is_no_number_is_refused(floor: float, uncertainty: float | None) -> None:
    with pytest.raises(ValueError, match="finite number"):
        judge_floor(floor, 10.0, uncertainty)


def test_until_a_guard_is_sound_its_trip_speaks_of_the_guard() -> None:
    assert "evidence about the guard" in judge_floor(12000, 12223, 306).words
    assert "evidence about the guard" in judge_floor(12000, None).words
    assert "evidence" not in judge_floor(5000, 12223, 306).words
    assert "(5 % assumed)" in judge_floor(5000, 12223).words
