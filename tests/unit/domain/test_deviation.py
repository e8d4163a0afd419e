"""Deviations at their boundaries, and a signature for every telemetry."""

from __future__ import annotations

import itertools
import math

import pytest

from tenure.domain.deviation import Signature, Telemetry, Tripped, assess, read_hours, signature_of, times

JUST_UNDER = math.nextafter(2.0, 0.0)


@pytest.mark.parametrize(
    ("planned", "projected", "tripped"),
    [
        (5.0, 10.0, Tripped.YES),
        (5, 10, Tripped.YES),
        (0.35, 0.7, Tripped.YES),
        (0.1, 0.2, Tripped.YES),
        (5.0, math.nextafter(10.0, 0.0), Tripped.NO),
        (1.9999, math.nextafter(3.9998, 0.0), Tripped.NO),
        (5.0, 9.9999, Tripped.NO),
        (5.0, 12.84, Tripped.YES),
        (5.0, 0.1, Tripped.NO),
        ("about a day", 12.0, Tripped.NOT_ESTABLISHED),
        ("5.0", 12.0, Tripped.NOT_ESTABLISHED),
        (None, 12.0, Tripped.NOT_ESTABLISHED),
        (0.0, 12.0, Tripped.NOT_ESTABLISHED),
        (-5.0, 12.0, Tripped.NOT_ESTABLISHED),
        (True, 12.0, Tripped.NOT_ESTABLISHED),
        (math.nan, 12.0, Tripped.NOT_ESTABLISHED),
        (math.inf, 12.0, Tripped.NOT_ESTABLISHED),
        (10**400, 12.0, Tripped.NOT_ESTABLISHED),
        (5.0, None, Tripped.NOT_ESTABLISHED),
        (5.0, math.nan, Tripped.NOT_ESTABLISHED),
        (5.0, -1.0, Tripped.NOT_ESTABLISHED),
        (5.0, "soon", Tripped.NOT_ESTABLISHED),
    ],
)
def test_a_plan_and_a_projection(planned: object, projected: object, tripped: Tripped) -> None:
    found = assess(planned, projected)
    assert found.tripped is tripped
    assert found.recorded.startswith("tripwire disabled: ") is (tripped is Tripped.NOT_ESTABLISHED)


@pytest.mark.parametrize(
    ("ratio", "tripped"),
    [
        (2.0, Tripped.YES),
        (2, Tripped.YES),
        (JUST_UNDER, Tripped.NO),
        (1.9999, Tripped.NO),
        (math.nan, Tripped.NOT_ESTABLISHED),
        (math.inf, Tripped.NOT_ESTABLISHED),
        (-3.0, Tripped.NOT_ESTABLISHED),
        ("2.5x", Tripped.NOT_ESTABLISHED),
    ],
)
def test_a_ratio_that_was_measured_whole(ratio: object, tripped: Tripped) -> None:
    assert assess(None, None, ratio=ratio).tripped is tripped
    assert assess(5.0, 50.0, ratio=ratio).tripped is tripped  # a ratio that does not read is not replaced by another


def test_what_cannot_be_read_is_named() -> None:
    assert assess("about a day", 3.0).recorded == "tripwire disabled: the budget 'about a day' cannot be read"
    assert assess(3.0, "soon").recorded == "tripwire disabled: the projection 'soon' cannot be read"
    assert assess(3.0, 9.0, ratio="x").recorded == "tripwire disabled: the ratio 'x' cannot be read"


def test_rounding_never_moves_a_ratio_across_a_threshold() -> None:
    assert times(2.568) == "2.568"
    assert times(1.99999) == "1.99999"
    assert times(4.9999) == "4.9999"
    assert "1.9999999999999998" in assess(None, None, ratio=JUST_UNDER).recorded


def test_hours_are_positive_finite_numbers() -> None:
    assert read_hours(3) == 3.0
    assert [read_hours(value) for value in (0, -1, True, "3", None, math.nan, 10**400, [3])] == [None] * 8


SHARES = (None, math.nan, -0.1, 0.0, 0.49, 0.5, 0.7, 0.85, 1.0, 1.01, 85.0)
CORES = (None, math.nan, -1.0, 0.0, 0.89, 0.9, 4.8)
BATCHES = (None, math.nan, 0.0, 1.0, 1.5, 64.0)


def test_every_telemetry_has_a_signature() -> None:
    for busy, utilisation, cores, batch in itertools.product(SHARES, SHARES, CORES, BATCHES):
        found, inputs, words = signature_of(Telemetry(busy, utilisation, cores, batch))
        read = [x is not None and 0 <= x <= 1 for x in (busy, utilisation)]
        if not all(read):
            assert found is Signature.AMBIGUOUS
        else:
            assert busy is not None
            assert utilisation is not None
            batched = batch is not None and batch > 1
            unbatched = batch == 1.0
            working = cores is not None and cores >= 0.9
            if min(busy, utilisation) >= 0.85:
                assert found is (Signature.FLOP_BOUND if batched else Signature.AMBIGUOUS)
            elif min(busy, utilisation) < 0.5:
                assert found is (Signature.OVERHEAD_BOUND if unbatched or working else Signature.AMBIGUOUS)
            else:
                assert found is Signature.AMBIGUOUS
        assert set(inputs) == {"gpu_busy", "utilisation", "cores", "units_per_launch"}
        assert words


def test_the_inputs_are_shown_as_they_came() -> None:
    _, inputs, words = signature_of(Telemetry(0.97, 0.93, 1.0, 64))
    assert inputs == {"gpu_busy": 0.97, "utilisation": 0.93, "cores": 1.0, "units_per_launch": 64}
    assert words == "device busy 97% of the time at 93%, 64 units a launch: saturated and batched"
