"""Status of units and workers: every order, repeat and loss of short histories, against a naive second reading.

What is exhaustive and what is sampled is said at each test: all histories of 3 units, 2 workers and 2 attempts with
every event would be beyond any machine, so all sequences up to a length are walked and longer ones are drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.domain import tracker_naive as naive

from tenure.domain.tracker import Stage, Tracker, UnitEvent, parse_event

KINDS = (
    "start {} w0",
    "start {} w1",
    "prepared {}",
    "gpu {}",
    "kernel_end {}",
    "end {} ok",
    "end {} failed",
    "lost {}",
)
FEW = ("start {} w0", "start {} w1", "gpu {}", "end {} ok", "lost {}")


def alphabet(kinds: Sequence[str], units: int, attempts: int) -> list[UnitEvent]:
    names = [f"u{unit}#{attempt}" for unit in range(units) for attempt in range(1, attempts + 1)]
    return [parse_event(kind.format(name)) for name in names for kind in kinds]


def hold(arrived: Iterable[UnitEvent], registered: frozenset[str] | None = None) -> Tracker:
    """Folds the events and holds the whole view against the naive one."""
    fold, events = Tracker(registered), [UnitEvent(e.unit, e.attempt, e.stage, e.worker) for e in arrived]
    for event in events:
        fold.apply(event)
    view = fold.snapshot()
    assert view.units == naive.units(events)
    assert {worker: list(held) for worker, held in view.workers.items()} == naive.workers(events, set(registered or ()))
    assert view.ignored == naive.ignored(events)
    assert set(view.reported) == naive.reported(events, None if registered is None else set(registered))
    assert view.version == len(events)
    assert sum(view.counts.values()) == len(view.units)
    return fold


def test_every_sequence_of_events_of_a_unit_with_two_attempts() -> None:
    # Exhaustive: any order, any repeat, any loss. Up to three of all 16 events of one unit, two attempts and two
    # workers; four of those that give and take a worker (but for the workers' names, which are interchangeable).
    letters = alphabet(KINDS, units=1, attempts=2)
    for length in range(4):
        for arrived in itertools.product(letters, repeat=length):
            hold(arrived)
    for arrived in itertools.product(alphabet(FEW, units=1, attempts=2), repeat=4):
        if next((event.worker for event in arrived if event.worker), "w0") == "w0":
            hold(arrived)


def test_every_sequence_of_three_events_of_three_units_with_two_attempts() -> None:
    # Exhaustive over 3 units x 2 workers x 2 attempts, with the events that give and take a worker.
    for arrived in itertools.product(alphabet(FEW, units=3, attempts=2), repeat=3):
        if arrived[0].unit == "u0":  # the units' names are interchangeable
            hold(arrived)


HISTORIES = {
    "a late finaliser": ("start u1#1 w0", "gpu u1#1", "kernel_end u1#1", "start u2#1 w0", "gpu u2#1", "end u1#1 ok"),
    "a retry": ("start u1#1 w0", "gpu u1#1", "lost u1#1", "start u1#2 w1", "gpu u1#2", "end u1#2 ok"),
    "a failure beside": (
        "start u1#1 w0",
        "end u1#1 failed",
        "start u2#1 w1",
        "prepared u2#1",
        "gpu u2#1",
        "end u2#1 ok",
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_every_order_and_loss_of_a_history(name: str) -> None:
    # Exhaustive: all orders of all subsets (1957); each of the shorter ones with an event once more at the end as well.
    events = [parse_event(text) for text in HISTORIES[name]]
    for count in range(len(events) + 1):
        for arrived in itertools.permutations(events, count):
            hold(arrived)
            if 0 < count < 5:
                hold([*arrived, arrived[len(arrived) // 2]])


@pytest.mark.parametrize("name", HISTORIES)
def test_what_shows_in_the_end_does_not_depend_on_the_order(name: str) -> None:
    # One end and one worker an attempt: then every order of the whole history must end in one picture.
    seen = set()
    for arrived in itertools.permutations(HISTORIES[name]):
        fold = Tracker()
        for text in arrived:
            fold.apply(parse_event(text))
        view = fold.snapshot()
        seen.add((tuple(sorted(view.units.items())), tuple(sorted((w, frozenset(h)) for w, h in view.workers.items()))))
    assert len(seen) == 1


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(alphabet(KINDS, units=3, attempts=2)), max_size=40), st.booleans())
def test_long_histories_of_three_units(arrived: list[UnitEvent], registered: bool) -> None:
    # Sampled: 3 units x 2 workers x 2 attempts with every event, up to forty of them.
    hold(arrived, frozenset(["w0"]) if registered else None)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(alphabet(KINDS, units=3, attempts=2)), max_size=25))
def test_an_event_touches_its_own_attempt_alone(arrived: list[UnitEvent]) -> None:
    fold = Tracker()
    for event in arrived:
        before = {(u, n): (a.stage, a.worker) for u, own in fold.units.items() for n, a in own.items()}
        fold.apply(event)
        after = {(u, n): (a.stage, a.worker) for u, own in fold.units.items() for n, a in own.items()}
        assert {key for key in after if before.get(key) != after[key]} <= {(event.unit, event.attempt)}


def test_a_unit_that_a_worker_holds_never_shows_as_over() -> None:
    fold = hold([parse_event(text) for text in ("start u#1 w0", "gpu u#1", "start u#2 w1", "end u#2 failed")])
    assert fold.snapshot().units == {"u": "gpu"}


def test_units_wait_before_they_begin_and_again_after_a_loss() -> None:
    fold = Tracker()
    fold.expect(["a", "b"])
    assert fold.snapshot().counts == {"pending": 2}
    for text in ("start a#1 w0", "lost a#1"):
        fold.apply(parse_event(text))
    assert fold.snapshot().units == {"a": "pending", "b": "pending"}
    fold.expect(["a"])
    assert fold.version == 2


def test_a_snapshot_carries_its_age() -> None:
    fold = Tracker()
    assert fold.snapshot(now=5.0).age_s is None
    fold.apply(parse_event("start a#1 w0"), at=10.0)
    fold.apply(parse_event("gpu a#1"), at=9.0)  # late: what came last on the clock counts
    assert fold.snapshot(now=12.5).age_s == 2.5
    assert fold.snapshot(now=3.0).age_s == 0.0
    assert fold.snapshot().age_s is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "start",
        "start u1#1",
        "start u1#1 w0 w1",
        "start u1 w0",
        "start #1 w0",
        "gpu u1#1 w0",
        "gpu u1#-1",
        "gpu u1#1_0",
        "gpu u1#",
        "gpu u1#²",
        "end u1#1",
        "end u1#1 perhaps",
        "end u1#1 ok twice",
        "began u1#1 w0",
    ],
)
def test_what_is_no_event_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="no unit event"):
        parse_event(text)


def test_a_unit_may_hold_a_hash_in_its_name() -> None:
    assert parse_event("start a#b#2 w0") == UnitEvent("a#b", 2, Stage.PREPARING, "w0")
