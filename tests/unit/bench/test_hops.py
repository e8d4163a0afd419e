"""From marks to a profile."""

from __future__ import annotations

from bench.hops import first_after, profile


def test_the_first_mark_of_a_name_within_the_span_counts() -> None:
    lines = [(5, "a"), (12, "b"), (10, "a"), (14, "a"), (20, "c")]
    assert first_after(lines, 10, 20) == {"a": 10, "b": 12}


def test_steps_are_taken_sample_by_sample_and_rare_hops_are_left_out() -> None:
    ms = 1_000_000
    samples = [
        {"decided": 2 * ms, "synced": 10 * ms},
        {"decided": 8 * ms, "synced": 9 * ms, "compacted": 9 * ms},
        {"decided": 3 * ms, "synced": 11 * ms},
    ]
    assert profile(samples) == [("decided", 3.0, 3.0, 8.0, 30.0), ("synced", 10.0, 8.0, 8.0, 80.0)]


def test_nothing_taken_is_an_empty_profile() -> None:
    assert profile([]) == []
