"""The agent's core about notices and bounds: what it owes the controller, and an end that the agent asks for itself."""

from __future__ import annotations

from tests.unit.agent.test_core import DONE, Host, start

from tenure.agent import records as r
from tenure.agent.core import AgentState, evolve, snapshot
from tenure.domain.device import CLEAR, Condition
from tenure.domain.instructions import StopJob

NOTICE = {"kind": "idle_soon", "words": "idle", "utc": 1.0, "facts": {"idle_s": 8.0}}
OVER = r.Overran("j1", 1, "max runtime of 10 s reached: ran 10.0 s")


def test_a_notice_is_owed_under_the_tokens_of_its_attempt_until_it_is_acknowledged() -> None:
    host = Host().running()
    (sent,) = host.tell(r.Noticed("j1", 1, NOTICE))
    report = host.last()
    assert sent == r.Send(report.seq)
    assert (report.kind, report.body["notice"], report.body["tokens"]) == ("notice", NOTICE, {"g0": 1})
    rebuilt = AgentState()
    for event in snapshot(host.state):
        evolve(rebuilt, event)
    assert rebuilt.outbox[report.seq] == report, "a fresh agent owes it too"
    host.tell(r.Acked(report.seq))
    assert report.seq not in host.state.outbox


def test_nobody_is_told_of_an_attempt_that_is_unknown_or_proved_gone() -> None:
    host = Host().running()
    assert host.tell(r.Noticed("j2", 1, NOTICE)) == []
    host.tell(r.Ended("j1", 1, DONE, 0, {"g0": Condition("unknown", "could not look")}))
    assert len(host.tell(r.Noticed("j1", 1, NOTICE))) == 1, "its lease is not given back yet"
    host.tell(r.Looked("j1", 1, {"g0": CLEAR}))
    assert host.tell(r.Noticed("j1", 1, NOTICE)) == []


def test_a_bound_that_is_reached_stops_the_attempt_once_and_gives_its_reason() -> None:
    host = Host().running()
    assert host.tell(OVER) == [r.Signal(("j1", 1))]
    assert host.state.attempts[("j1", 1)].stop == OVER.reason
    assert host.tell(OVER) == []
    assert host.tell(r.Overran("j1", 1, "idle")) == []
    assert host.tell(StopJob("j1", 1, (), "cancelled by ann")) == [r.Signal(("j1", 1))]
    assert host.state.attempts[("j1", 1)].stop == OVER.reason, "the first reason stands"


def test_a_cancel_that_came_first_keeps_its_reason_and_an_end_is_not_stopped() -> None:
    host = Host().running()
    host.tell(StopJob("j1", 1, (), "cancelled by ann"), OVER)
    assert host.state.attempts[("j1", 1)].stop == "cancelled by ann"
    over = Host().running()
    over.tell(r.Ended("j1", 1, DONE, 0))
    assert over.tell(OVER) == []
    assert over.tell(r.Overran("j9", 1, "x")) == []
    early = Host()
    early.tell(start(), OVER)
    assert early.state.attempts[("j1", 1)].stop == OVER.reason
