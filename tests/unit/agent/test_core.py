"""The agent's core, told one message at a time: what it refuses, what it repeats, and what it may forget."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tenure.agent import records as r
from tenure.agent.core import MAX_UNLOOKED, AgentState, decide, evolve, owed, snapshot
from tenure.domain.device import CLEAR, Condition
from tenure.domain.instructions import Grant, StartJob, StopJob
from tenure.domain.job import Ending, JobSpec, Outcome

SPEC = JobSpec(("true",))
DONE = Outcome(Ending.EXITED, 0)
UNKNOWN = Condition("unknown", "could not look")


def grants(token: int, *devices: str) -> tuple[Grant, ...]:
    return tuple(Grant(name, f"GPU-{name}", token, f"GPU-{name}#{token}") for name in devices or ("g0",))


def start(job: str = "j1", attempt: int = 1, token: int = 1, *devices: str) -> StartJob:
    return StartJob(job, attempt, "ann", grants(token, *devices), SPEC)


class Host:
    """The core with its events applied as they come."""

    def __init__(self) -> None:
        self.state = AgentState(("boot", "ns", "run"))

    def tell(self, *messages: r.Message) -> Sequence[r.Effect]:
        """Tells each; gives the effects of the last."""
        effects: Sequence[r.Effect] = ()
        for message in messages:
            events, effects = decide(self.state, message)
            for event in events:
                evolve(self.state, event)
        return effects

    def last(self) -> r.ReportQueued:
        return self.state.outbox[max(self.state.outbox)]

    def running(self) -> Host:
        self.tell(start(), r.Started("j1", 1, (50, 7), 51))
        return self


def test_a_start_told_again_neither_spawns_nor_ends_what_runs() -> None:
    host = Host().running()
    assert host.tell(start()) == []
    assert host.state.attempts[("j1", 1)].phase == "started"


@pytest.mark.parametrize("token", [0, 4, 5])
def test_a_token_that_is_not_above_the_highest_starts_nothing(token: int) -> None:
    host = Host()
    evolve(host.state, r.Fenced({"GPU-g0": 5}))
    assert not any(isinstance(effect, r.Spawn) for effect in host.tell(start(token=token)))
    # The very token that is the highest: this attempt was accepted once, so nobody can say that it never ran.
    assert host.last().kind == ("ended" if token == 5 else "refused")
    assert host.state.high_water["GPU-g0"] == 5
    host.tell(r.Looked("j1", 1, {"g0": CLEAR}))
    assert host.tell(start("j2", 1, 6)) == [r.Spawn(("j2", 1))]


def test_a_device_not_proved_empty_of_the_last_attempt_starts_nothing_whatever_the_token() -> None:
    host = Host().running()
    host.tell(r.Ended("j1", 1, DONE, 0, {"g0": UNKNOWN}))
    assert r.Spawn(("j2", 1)) not in host.tell(start("j2", 1, 2))
    assert "j1#1 is not proved gone" in host.last().body["reason"]
    # Refusing looked at it as well, and says so; once all are proved, the next start runs.
    host.tell(r.Looked("j1", 1, {"g0": CLEAR}), r.Looked("j2", 1, {"g0": CLEAR}))
    assert host.tell(start("j3", 1, 3)) == [r.Spawn(("j3", 1))]


@pytest.mark.parametrize("seen", [UNKNOWN, Condition("occupied", "bob"), Condition("dirty", "512 MiB")])
def test_one_device_that_is_not_clear_starts_nothing_on_any(seen: Condition) -> None:
    host = Host()
    host.state.conditions = {"GPU-g0": CLEAR, "GPU-g1": seen}
    assert not any(isinstance(effect, r.Spawn) for effect in host.tell(start("j1", 1, 1, "g0", "g1")))
    assert host.last().kind == "refused"
    assert seen.detail in host.last().body["reason"]


def test_a_stop_fences_a_start_that_comes_later() -> None:
    host = Host()
    host.tell(StopJob("j1", 1, grants(3), "cancelled"))
    assert host.tell(start(token=3)) == []
    assert r.Spawn(("j2", 1)) not in host.tell(start("j2", 1, 3))
    assert host.state.high_water == {"GPU-g0": 3}


def test_a_stop_of_what_never_came_here_says_refused_and_of_what_did_says_lost() -> None:
    host = Host()
    host.tell(StopJob("j1", 1, grants(3), "cancelled"))
    assert host.last().kind == "refused"
    host.tell(StopJob("j0", 1, grants(2), "cancelled"))  # its token was accepted once: something of it may have run
    assert (host.last().kind, host.last().body["outcome"]["ending"]) == ("ended", "lost")


def test_a_stop_without_a_lease_of_an_attempt_that_is_gone_does_nothing() -> None:
    host = Host()
    assert host.tell(StopJob("j1", 1, (), "no lease")) == []
    assert not host.state.outbox
    assert not host.state.attempts


def test_a_stop_of_an_attempt_that_is_over_signals_nobody() -> None:
    host = Host().running()
    host.tell(r.Ended("j1", 1, DONE, 0))
    assert host.tell(StopJob("j1", 1, grants(1), "cancelled")) == [r.Look(("j1", 1))]
    assert host.state.attempts[("j1", 1)].stop is None
    host.tell(r.Looked("j1", 1, {"g0": CLEAR}))
    assert host.tell(StopJob("j1", 1, grants(1), "cancelled")) == []


def test_a_stop_that_comes_while_the_supervisor_is_being_made_reaches_it() -> None:
    host = Host()
    host.tell(start(), StopJob("j1", 1, grants(1), "cancelled by ann"))
    assert r.Signal(("j1", 1)) in host.tell(r.Started("j1", 1, (50, 7), 51))


def test_a_second_word_of_the_start_or_the_end_reports_nothing() -> None:
    host = Host().running()
    reports = len(host.state.outbox)
    assert host.tell(r.Started("j1", 1, (60, 8), 61)) == []
    assert host.state.attempts[("j1", 1)].supervisor == (50, 7)
    assert host.tell(r.NotStarted("j1", 1, "no room")) == []
    host.tell(r.Ended("j1", 1, DONE, 0))
    assert host.tell(r.Ended("j1", 1, Outcome(Ending.LOST), 9)) == []
    assert host.state.attempts[("j1", 1)].outcome == DONE
    assert host.tell(r.Judged("j1", 1, {"label": "used"})) == []
    assert len(host.state.outbox) == reports + 1


def test_a_look_at_other_devices_and_one_that_found_nothing_new_report_nothing() -> None:
    host = Host().running()
    host.tell(r.Ended("j1", 1, DONE, 0, {"g0": UNKNOWN}))
    reports = len(host.state.outbox)
    assert host.tell(r.Looked("j1", 1, {"g7": CLEAR})) == []
    assert host.tell(r.Looked("j1", 1, {"g0": UNKNOWN})) == []
    host.tell(r.Looked("j1", 1, {"g0": CLEAR}))
    assert host.tell(r.Looked("j1", 1, {"g0": UNKNOWN})) == []  # proved once: a later look is of somebody else
    assert len(host.state.outbox) == reports + 1
    assert host.last().body["proofs"]["g0"]["outcome"] == "clear"


def all_told(host: Host) -> None:
    host.tell(*(r.Acked(seq) for seq in sorted(host.state.outbox)))


def test_an_attempt_is_forgotten_only_when_its_reports_proofs_and_output_are_all_with_the_controller() -> None:
    """Each of the three alone holds the record back; the one that comes last lets it go."""
    ended, proof, output = r.Ended("j1", 1, DONE, 10), r.Looked("j1", 1, {"g0": CLEAR}), r.OutputTaken("j1", 1, 10)

    host = Host().running()
    host.tell(ended, proof)
    all_told(host)
    assert ("j1", 1) in host.state.attempts, "output is missing"
    host.tell(r.OutputTaken("j1", 1, 9))
    assert ("j1", 1) in host.state.attempts, "a byte is missing"
    assert host.tell(output) == [r.Discard(("j1", 1))]

    host = Host().running()
    host.tell(ended, proof, output)
    assert ("j1", 1) in host.state.attempts, "reports are owed"
    *first, last = sorted(host.state.outbox)
    host.tell(*(r.Acked(seq) for seq in first))
    assert host.tell(r.Acked(last)) == [r.Discard(("j1", 1))]

    host = Host().running()
    host.tell(ended, output)
    all_told(host)
    assert ("j1", 1) in host.state.attempts, "a device is not proved empty"
    host.tell(proof)
    all_told(host)
    assert ("j1", 1) not in host.state.attempts


def test_what_the_controller_has_of_the_output_never_falls() -> None:
    host = Host().running()
    host.tell(r.OutputTaken("j1", 1, 8))
    assert decide(host.state, r.OutputTaken("j1", 1, 3)) == ([], []), "nothing to write down"
    assert host.state.attempts[("j1", 1)].output_acked == 8
    host.tell(r.Ended("j1", 1, DONE, 10))
    assert host.tell(r.OutputTaken("j1", 1, 8)) == []


def test_an_acknowledgement_of_what_is_not_owed_does_nothing() -> None:
    host = Host().running()
    all_told(host)
    assert host.tell(r.Acked(1)) == []
    assert host.tell(r.Acked(99)) == []
    assert host.state.next_seq == 2


def test_an_end_is_told_again_on_every_connection_until_it_is_forgotten() -> None:
    host = Host().running()
    host.tell(r.Ended("j1", 1, DONE, 10))
    all_told(host)
    assert [(report.seq, report.kind) for report in owed(host.state)] == [(0, "ended")]


def test_a_compacted_journal_is_the_same_state() -> None:
    host = Host().running()
    host.tell(start("j2", 1, 5, "g1"), StopJob("j2", 1, grants(5, "g1"), "cancelled"))
    host.tell(StopJob("j3", 1, grants(9, "g2"), "never came"), r.OutputTaken("j1", 1, 3))
    host.tell(r.Ended("j1", 1, DONE, 10, {"g0": UNKNOWN}), r.Acked(1))
    again = AgentState(host.state.identity)
    for event in snapshot(host.state):
        evolve(again, event)
    assert again == host.state


def test_what_ran_since_the_last_look_is_asked_until_a_look_that_began_after_its_end_is_on_disk() -> None:
    host = Host().running()
    host.tell(start("j2", 1, 5, "g1"), r.NotStarted("j2", 1, "its folder cannot be made"))
    assert list(host.state.unlooked) == [("j1", 1)], "of an attempt that never ran nothing is left"
    host.tell(r.WorkerLooked(frozenset()))
    assert list(host.state.unlooked) == [("j1", 1)]
    host.tell(r.Ended("j1", 1, DONE, 0, {"g0": CLEAR}), *(r.Acked(seq) for seq in range(1, 9)))
    assert ("j1", 1) not in host.state.attempts
    again = AgentState(host.state.identity)
    for event in snapshot(host.state):
        evolve(again, event)
    assert list(again.unlooked) == [("j1", 1)], "forgotten by the controller's leave, and still asked"
    host.tell(r.WorkerLooked(frozenset({("j1", 1)})))
    assert not host.state.unlooked


def test_more_jobs_than_are_named_are_counted_and_one_that_still_runs_is_named_again() -> None:
    host = Host().running()
    for number in range(MAX_UNLOOKED + 4):
        host.tell(start(f"k{number}", 1, number + 2, f"x{number}"), r.Started(f"k{number}", 1, (1, 1), 2))
    assert (len(host.state.unlooked), host.state.unlooked_more) == (MAX_UNLOOKED, 5)
    over = frozenset(host.state.unlooked)
    host.tell(r.WorkerLooked(over))
    assert set(host.state.unlooked) == {("j1", 1), *((f"k{number}", 1) for number in range(4))}
    assert host.state.unlooked_more == 0


def test_a_floor_fences_what_this_host_has_forgotten_and_lowers_nothing() -> None:
    host = Host()
    host.tell(r.FloorsGiven({"GPU-g0": 5, "GPU-g1": 2}))
    assert host.state.high_water == {"GPU-g0": 5, "GPU-g1": 2}
    host.tell(r.FloorsGiven({"GPU-g0": 3}))
    assert host.state.high_water["GPU-g0"] == 5
    assert decide(host.state, r.FloorsGiven({"GPU-g0": 5})) == ([], [])
    host.tell(start(token=5))
    assert (host.last().kind, host.last().body["outcome"]["ending"]) == ("ended", "lost")
    host.tell(r.Looked("j1", 1, {"g0": CLEAR}))
    assert host.tell(start("j2", token=6)) == [r.Spawn(("j2", 1))]


def test_a_stop_of_what_a_forgetful_host_once_ran_is_answered_as_lost() -> None:
    host = Host()
    host.tell(r.FloorsGiven({"GPU-g0": 1}), StopJob("j1", 1, grants(1), "over"))
    body = host.last().body
    assert (host.last().kind, body["outcome"]["ending"]) == ("ended", "lost")


def test_a_notice_is_owed_until_it_is_acknowledged_and_none_comes_after_the_proof() -> None:
    host = Host().running()
    notice = {"kind": "idle_soon", "words": "w", "utc": 1.0, "facts": {}}
    (effect,) = host.tell(r.Noticed("j1", 1, notice))
    report = host.last()
    assert effect == r.Send(report.seq)
    assert (report.kind, report.body["notice"], report.body["tokens"]) == ("notice", notice, {"g0": 1})
    assert report in owed(host.state)
    host.tell(r.Ended("j1", 1, DONE, 0, {"g0": CLEAR}))
    assert decide(host.state, r.Noticed("j1", 1, notice)) == ([], [])


def test_an_attempt_that_overran_is_ended_once_and_its_first_reason_stands() -> None:
    host = Host().running()
    assert host.tell(r.Overran("j1", 1, "max runtime")) == [r.Signal(("j1", 1))]
    assert host.tell(r.Overran("j1", 1, "idle")) == []
    assert host.state.attempts[("j1", 1)].stop == "max runtime"
    host.tell(r.Ended("j1", 1, DONE, 0))
    assert host.tell(r.Overran("j1", 1, "late")) == []


@pytest.mark.parametrize(("then", "cause"), [("boot", "lost_cause_not_established"), ("older", "host_rebooted")])
def test_what_a_host_forgot_is_gone_for_sure_only_if_it_has_booted_since(then: str, cause: str) -> None:
    host = Host()
    host.tell(r.FloorsGiven({"GPU-g0": 1}), StopJob("j1", 1, grants(1), "over", then))
    assert host.last().body["outcome"]["cause"] == cause
    assert host.state.attempts[("j1", 1)].identity[0] == then
    again = AgentState(host.state.identity)
    for event in snapshot(host.state):
        evolve(again, event)
    assert again.attempts == host.state.attempts


def test_who_asked_nobody_to_begin_it_remembers_that_through_a_restart() -> None:
    host = Host()
    host.tell(start(), r.NotStarted("j1", 1, "its folder cannot be made", unasked=True))
    assert host.state.attempts[("j1", 1)].unasked
    again = AgentState(host.state.identity)
    for event in snapshot(host.state):
        evolve(again, event)
    assert again.attempts == host.state.attempts
    host.tell(start("j2", 1, 2, "g1"), r.NotStarted("j2", 1, "sealed"))
    assert not host.state.attempts[("j2", 1)].unasked
