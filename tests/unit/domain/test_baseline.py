"""Baselines: a naive second reading over random runs, names and never counts, entries."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tenure.domain.baseline import Comparison, Entry, Mode, compare, mode_of, read_entry

MODES = list(Mode)


def naive(before: dict[str, Mode], after: dict[str, Mode], absent: set[str]) -> dict[str, set[str]]:
    """From the rule's text, a set for each sentence."""
    worse_first = [Mode.CRASH, Mode.FAILED, Mode.SKIPPED, Mode.PASSED]
    lacking = {name for name in absent if after.get(name) != Mode.PASSED}
    listed = {name for name in after if after[name] != Mode.PASSED} - lacking
    both = (set(before) & set(after)) - lacking
    moved = {name: worse_first.index(after[name]) - worse_first.index(before[name]) for name in both}
    better = {name for name in both if moved[name] > 0}
    return {
        "absent_instrument": lacking,
        "arrivals": {name for name in listed if name not in before},
        "mode_worse": {name for name in both if moved[name] < 0},
        "departures_seen_passed": {name for name in better if after[name] == Mode.PASSED},
        "stopped_being_measured": {name for name in better if after[name] == Mode.SKIPPED},
        "mode_improved": {name for name in better if after[name] not in (Mode.PASSED, Mode.SKIPPED)},
        "unexplained_departures": set(before) - set(after) - lacking,
    }


def test_random_runs_against_the_naive_reading() -> None:
    draw = random.Random(7)
    names = [f"t{number}" for number in range(6)]
    exits = set()
    for _ in range(4000):
        before = {name: draw.choice(MODES) for name in names if draw.random() < 0.7}
        after = {name: draw.choice(MODES) for name in names if draw.random() < 0.7}
        absent = {name for name in names if draw.random() < 0.15}
        found, right = compare(before, after, absent), naive(before, after, absent)
        assert {key: set(getattr(found, key)) for key in right} == right
        assert all(list(getattr(found, key)) == sorted(getattr(found, key)) for key in right)
        regressed = bool(right["arrivals"] or right["mode_worse"])
        assert found.regression is regressed
        assert found.improved is bool(right["mode_improved"] or right["departures_seen_passed"])
        assert found.exit == (1 if regressed else 2 if right["absent_instrument"] else 0)
        exits.add(found.exit)
    assert exits == {0, 1, 2}


@pytest.mark.parametrize("old", [None, *MODES])
@pytest.mark.parametrize("new", [None, *MODES])
def test_a_run_against_itself_and_every_move(old: Mode | None, new: Mode | None) -> None:
    before, after = ({} if mode is None else {"t": mode} for mode in (old, new))
    found = compare(before, after)
    if new is None:
        regression = False
    elif old is None:
        regression = new is not Mode.PASSED
    else:
        regression = new > old
    assert found.regression is regression
    # A name has at most one place.
    places = [key for key in Comparison.__dataclass_fields__ if getattr(found, key)]
    assert len(places) == (0 if old is new or (old is None and new is Mode.PASSED) else 1)


def test_counts_say_nothing() -> None:
    before = {"a": Mode.FAILED, "b": Mode.PASSED, "c": Mode.PASSED}
    fewer = {"a": Mode.PASSED, "b": Mode.FAILED}  # one failure as before, and another test
    assert compare(before, fewer).mode_worse == ("b",)
    more = {**before, "d": Mode.PASSED, "e": Mode.PASSED}
    assert compare(before, more) == compare(before, before)


def test_order_says_nothing() -> None:
    before = {"a": Mode.FAILED, "b": Mode.PASSED}
    assert compare(before, dict(reversed(before.items()))) == compare(before, before)


@pytest.mark.parametrize(
    ("word", "mode"),
    [
        ("passed", 0),
        ("OK", 0),
        ("skipped", 1),
        (" not run ", 1),
        ("failed", 2),
        ("abort", 3),
        ("timeout", 3),
        ("crash", 3),
    ],
)
def test_words_for_modes(word: str, mode: int) -> None:
    assert mode_of(word) == mode


def test_a_word_that_is_no_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="'flaky' is no mode; known are abort, crash"):
        mode_of("flaky")


def test_an_entry_says_what_is_known() -> None:
    told = {
        "first_assertion": "x == y",
        "cause": "a race",
        "owner": "ana",
        "owner_closed": True,
        "unrun": ["a", "b"],
        "flake_rate": 0.125,
    }
    assert read_entry(told).notes() == (
        "x == y",
        "cause: a race",
        "owner: ana (CLOSED, and it still does not pass)",
        "2 cases behind it were not run: a, b",
        "flakes in 0.125 of its runs",
    )
    assert read_entry({}) == Entry()
    assert Entry().notes() == ()


@pytest.mark.parametrize(
    ("told", "named"),
    [
        (3, "table of fields"),
        ({"owners": "x"}, "'owners'"),
        ({"owner": 3}, "owner 3"),
        ({"owner_closed": "yes"}, "owner_closed"),
        ({"unrun": [1]}, "list of names"),
        ({"flake_rate": 1.5}, "flake_rate"),
        ({"flake_rate": True}, "flake_rate"),
    ],
)
def test_an_entry_that_is_wrong_is_named(told: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read_entry(told)
