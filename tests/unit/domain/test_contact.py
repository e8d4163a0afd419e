"""When silence means that contact is lost, on one clock."""

from __future__ import annotations

import pytest

from tenure.domain.contact import ContactRule

RULE = ContactRule()


@pytest.mark.parametrize(("silence", "lost"), [(0.0, False), (14.9, False), (15.0, False), (15.1, True), (600.0, True)])
def test_an_open_link_counts_from_what_was_heard_last(silence: float, lost: bool) -> None:
    found = RULE.silent({"a": 100.0 - silence, "b": 100.0}, 100.0)
    assert found == ({"a": pytest.approx(silence)} if lost else {})


@pytest.mark.parametrize(("ago", "lost"), [(0.0, False), (1.5, False), (1.6, True)])
def test_a_closed_link_counts_from_its_end(ago: float, lost: bool) -> None:
    found = RULE.closed({"a": 50.0 - ago, "b": 50.0}, 50.0)
    assert found == ({"a": pytest.approx(ago)} if lost else {})


@pytest.mark.parametrize(("between", "away"), [(0.25, 0.0), (1.2, 0.0), (1.25, 0.0), (1.5, 1.25), (60.25, 60.0)])
def test_a_look_that_comes_late_is_the_controllers_own_absence(between: float, away: float) -> None:
    assert RULE.away(10.0, 10.0 + between) == pytest.approx(away)
