"""What a host has to say beside a job's output: whose word counts, how often it is kept, and how much of it."""

from __future__ import annotations

from typing import Any

from tests.unit.domain.test_fleet import Fleet

from tenure.domain import commands as cmd
from tenure.domain import events as ev
from tenure.domain.device import CLEAR
from tenure.domain.job import JobState
from tenure.domain.notices import MAX_NOTICES


def notice(number: int = 1) -> dict[str, Any]:
    return {"kind": "idle_soon", "words": f"idle ({number})", "utc": 1000.0 + number, "facts": {}}


def told(fleet: Fleet, number: int = 1, **more: Any) -> cmd.ReportNotice:
    usual: dict[str, Any] = {
        "agent": "a",
        "job": "j1",
        "attempt": 1,
        "tokens": fleet.tokens(),
        "notice": notice(number),
    }
    return cmd.ReportNotice(**usual | more)


def test_a_notice_is_kept_once_in_order_and_changes_nothing_else() -> None:
    fleet = Fleet().running()
    done = fleet.tell(told(fleet))
    assert [type(event) for event in done.events] == [ev.JobNoticed]
    assert fleet.tell(told(fleet)).events == []
    fleet.tell(told(fleet, 2))
    assert fleet.tell(told(fleet, 1)).events == [], "an earlier one that comes again late"
    job = fleet.state.jobs["j1"]
    assert job.notices == (notice(1), notice(2))
    assert (job.state, fleet.words) == (JobState.RUNNING, "busy")


def test_a_notice_of_another_agent_of_another_token_or_of_another_attempt_is_not_taken() -> None:
    fleet = Fleet().running()
    wrong = {"h:g0": fleet.state.devices["h:g0"].token - 1}
    others: list[dict[str, Any]] = [{"agent": "b"}, {"tokens": wrong}, {"tokens": {}}, {"attempt": 2}, {"job": "j9"}]
    for more in others:
        assert fleet.tell(told(fleet, **more)).ignored, more
    assert fleet.state.jobs["j1"].notices == ()


def test_a_notice_may_come_after_the_end_until_the_device_is_given_back() -> None:
    fleet = Fleet().running()
    fleet.tell(fleet.ended())
    fleet.tell(told(fleet))
    assert fleet.state.jobs["j1"].notices == (notice(),)
    fleet.tell(fleet.ended(proofs={"h:g0": CLEAR}))
    assert fleet.tell(told(fleet, 2)).ignored


def test_one_job_keeps_so_many_notices_the_newest_among_them_and_every_kind() -> None:
    fleet = Fleet().running()
    rare = {"kind": "output_quota", "words": "full", "utc": 1000.5, "facts": {}}
    fleet.tell(told(fleet, notice=rare))
    for number in range(1, MAX_NOTICES + 5):
        fleet.tell(told(fleet, number))
    kept = fleet.state.jobs["j1"].notices
    assert len(kept) == MAX_NOTICES == 64
    assert kept[0] == rare, "one kind that comes again and again crowds out no other"
    assert kept[1:] == tuple(notice(number) for number in range(6, MAX_NOTICES + 5))
    assert fleet.tell(told(fleet, 3)).events == [], "given up before, and told again late"
    other = {"kind": "other", "words": "new", "utc": 2000.0, "facts": {}}
    fleet.tell(told(fleet, notice=other))
    assert fleet.state.jobs["j1"].notices[-1] == other
    assert len(fleet.state.jobs["j1"].notices) == MAX_NOTICES
