"""The queue's indexes, by themselves: classes that come and go, and how much they keep."""

from __future__ import annotations

from tenure.domain.queue import AGEING_S, Queue, Requirement, order_of

ANY = Requirement(None, "", 1)
TRAIN = Requirement(None, "class=train", 1)
ONE = Requirement("h:g0", "", 1)


def test_a_step_of_priority_is_worth_ten_minutes_of_waiting() -> None:
    assert AGEING_S == 600.0
    assert order_of(1000.0, 1, 7) == (400.0, 7)
    assert order_of(1000.0, -1, 7) == (1600.0, 7)


def test_a_class_is_opened_once_with_the_devices_that_are_ready() -> None:
    queue = Queue()
    queue.set_ready("h:g1", True)
    queue.set_ready("h:g0", True)
    found = queue.open(ANY, {"h:g0", "h:g1", "h:g2"})
    assert (found.head, found.first_ready, found.ready) == (None, "h:g0", {"h:g0", "h:g1"})
    assert queue.open(ANY, set()) is found
    assert queue.has(ANY)
    assert not queue.has(TRAIN)


def test_classes_without_jobs_are_dropped_when_there_are_too_many_of_them() -> None:
    queue = Queue()
    for need in (ANY, TRAIN, ONE):
        queue.open(need, {"h:g0"})
    queue.add("j1", (1.0, 1), TRAIN)
    queue.forget_empty(3)
    assert set(queue.classes) == {ANY, TRAIN, ONE}
    queue.forget_empty(2)
    assert set(queue.classes) == {TRAIN}
    assert queue.of_device["h:g0"] == {TRAIN}


def test_a_device_that_fits_anew_is_ready_for_what_waits_only_if_it_is() -> None:
    queue = Queue()
    train = queue.open(TRAIN, set())
    queue.refit("h:g0", {TRAIN})
    assert (train.fits, train.ready, train.first_ready) == ({"h:g0"}, set(), None)
    queue.set_ready("h:g0", True)
    queue.refit("h:g0", set())
    assert (train.fits, train.ready, train.first_ready) == (set(), set(), None)
    queue.refit("h:g0", {TRAIN})
    assert (train.fits, train.ready, train.first_ready) == ({"h:g0"}, {"h:g0"}, "h:g0")


def test_what_left_long_ago_does_not_pile_up() -> None:
    """Entries are dropped lazily: what lies behind the head goes once it is more than what is there."""
    queue = Queue()
    found = queue.open(ANY, {f"h:g{n:04d}" for n in range(1000)})
    for number in range(1000):
        queue.add(f"j{number}", (float(number), number), ANY)
        queue.set_ready(f"h:g{number:04d}", True)
    for number in range(1, 1000):
        queue.remove(f"j{number}", ANY)
        queue.set_ready(f"h:g{number:04d}", False)
        assert len(found.heap) <= 2 * len(found.waiting) + 64
        assert len(found.ready_heap) <= 2 * len(found.ready) + 64
    assert (found.head, found.first_ready) == (((0.0, 0), "j0"), "h:g0000")
    assert (queue.length, queue.ready) == (1, {"h:g0000"})
