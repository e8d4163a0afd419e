"""The arithmetic behind the benches' figures, against values worked out by hand."""

from __future__ import annotations

import math

import pytest
from bench.stats import Ratio, columns, figure, percentile, ratio, summarize
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("samples", "share", "wanted"),
    [
        ([7.0], 0.95, 7.0),
        (list(range(1, 21)), 0.95, 19),  # 0.95 x 20 is exactly the 19th, whatever a float makes of it
        (list(range(1, 101)), 0.95, 95),
        (list(range(1, 11)), 0.95, 10),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([3.0, 1.0, 2.0], 0.0, 1.0),
        ([3.0, 1.0, 2.0], 1.0, 3.0),
    ],
)
def test_percentile_is_the_nearest_rank(samples: list[float], share: float, wanted: float) -> None:
    assert percentile(samples, share) == wanted


def test_no_samples_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)


def test_a_share_is_no_percentage() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        percentile([1.0], 95)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60), st.floats(0.01, 1))
def test_at_least_that_share_lies_at_or_below_and_less_below_any_smaller_sample(
    samples: list[float], share: float
) -> None:
    found = percentile(samples, share)
    assert found in samples
    assert sum(value <= found for value in samples) >= share * len(samples) - 1e-6
    assert sum(value < found for value in samples) < share * len(samples) + 1e-6


def test_a_summary_holds_all_samples_and_the_range_of_the_rounds_medians() -> None:
    found = summarize({1: [1.0, 2.0, 9.0], 2: [4.0, 6.0], 3: []})
    assert found is not None
    assert (found.n, found.rounds) == (5, 2)
    assert (found.p50, found.p95) == (4.0, 9.0)
    assert (found.low, found.high) == (2.0, 5.0)
    assert (found.least, found.most) == (1.0, 9.0)


def test_nothing_measured_is_no_summary() -> None:
    assert summarize({}) is None
    assert summarize({1: []}) is None


def test_a_ratio_is_taken_round_by_round() -> None:
    # All samples pooled would say 1.0; under the load of each round the first took twice as long.
    first = {1: [2.0, 2.0, 2.0], 2: [20.0]}
    second = {1: [1.0], 2: [10.0, 10.0, 10.0], 3: [5.0]}
    assert ratio(first, second) == Ratio(2.0, 2.0, 2.0, 2)


def test_a_ratio_shows_its_range() -> None:
    assert ratio({1: [1.0], 2: [3.0], 3: [4.0]}, {1: [2.0], 2: [2.0], 3: [2.0]}) == Ratio(1.5, 0.5, 2.0, 3)


@pytest.mark.parametrize("second", [{}, {2: [1.0]}, {1: []}, {1: [0.0]}])
def test_without_a_common_round_or_over_zero_there_is_no_ratio(second: dict[int, list[float]]) -> None:
    assert ratio({1: [1.0]}, second) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0123456, "0.0123"),
        (0.9996, "1.00"),
        (9.996, "10.0"),
        (2.5, "2.50"),
        (948.4, "948"),
        (1234.6, "1,235"),
        (-3.14159, "-3.14"),
        (1e6, "1,000,000"),
    ],
)
def test_figures_have_three_significant_digits(value: float, text: str) -> None:
    assert figure(value) == text


@given(st.floats(1e-6, 1e9))
def test_a_figure_is_within_half_a_per_cent(value: float) -> None:
    assert math.isclose(float(figure(value).replace(",", "")), value, rel_tol=0.0051)


def test_columns_line_up() -> None:
    assert columns([["a", "1"], ["long", "22", "x"]], right=(1,)) == ["a      1", "long  22  x"]
    assert columns([]) == []
