"""The agent's journal: what was recorded is what is replayed, and what is damaged starts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.agent import core
from tenure.agent import records as r
from tenure.agent.journal import Journal, decode, encode
from tenure.domain.device import Condition
from tenure.domain.instructions import Grant, StartJob, StopJob
from tenure.domain.job import Ending, JobSpec, Outcome
from tenure.errors import TenureError

GRANTS = (Grant("h:gpu0", "GPU-1", 7, "l1"), Grant("h:gpu1", "GPU-2", 9, "l2"))
SPEC = JobSpec(("python", "-c", "print(1)"), env={"A": "ü"}, umask=0o22, window={"grace_s": 1.5})
EVENTS: list[r.AgentEvent] = [
    r.Fenced({"GPU-1": 3}),
    r.AttemptAccepted("j1", 2, "ann", GRANTS, SPEC, ("b", "n", "i")),
    r.AttemptDeclined("j2", 1, GRANTS[:1], "busy", Outcome(Ending.LOST, cause="x")),
    r.StopAccepted("j1", 2, "ann asked"),
    r.SupervisorMade("j1", 2, (4242, 123456789)),
    r.AttemptEnded("j1", 2, Outcome(Ending.SIGNALED, signal=9, stats={"cpu_s": 1.5, "deep": {"a": [1]}}), 10, {"v": 1}),
    r.DevicesLooked("j1", 2, {"h:gpu0": Condition("occupied", "pid 1", ("pid 1",))}),
    r.ReportQueued(1, "ended", {"job": "j1", "tokens": {"h:gpu0": 7}}, ("j1", 2)),
    r.ReportAcked(1),
    r.OutputAcked("j1", 2, 10),
    r.AttemptForgotten("j2", 1),
]


def replayed(path: Path) -> core.AgentState:
    state = core.AgentState()
    Journal.open(path, state).close()
    return state


def test_every_kind_of_event_comes_back_equal() -> None:
    assert decode(encode(EVENTS)) == EVENTS


def test_a_decision_is_one_frame_and_is_replayed_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    state = core.AgentState()
    journal = Journal.open(path, state)
    for message in (StartJob("j1", 1, "ann", GRANTS, SPEC), StopJob("j1", 1, GRANTS, "ann asked")):
        events, _ = core.decide(state, message)
        journal.record(events)
        for event in events:
            core.evolve(state, event)
    journal.close()
    found = replayed(path)
    assert found.attempts == state.attempts
    assert found.high_water == {"GPU-1": 7, "GPU-2": 9}
    assert found.next_seq == state.next_seq


def test_a_torn_end_is_cut_off_and_said(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    journal = Journal.open(path, core.AgentState())
    journal.record([r.Fenced({"GPU-1": 3})])
    whole = path.stat().st_size
    journal.record([r.Fenced({"GPU-1": 5})])
    journal.close()
    path.write_bytes(path.read_bytes()[:-3])
    state = core.AgentState()
    journal = Journal.open(path, state)
    assert journal.recovered is not None
    assert journal.recovered.offset == whole
    assert state.high_water == {"GPU-1": 3}
    journal.close()


def test_damage_names_the_file_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    journal = Journal.open(path, core.AgentState())
    for token in range(1, 5):
        journal.record([r.Fenced({"GPU-1": token})])
    journal.close()
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    with pytest.raises(TenureError, match=r"journal\.log") as caught:
        Journal.open(path, core.AgentState())
    assert caught.value.code == "damaged_state"
    assert path.read_bytes() == bytes(data)


@pytest.mark.parametrize("payload", [b'[["AttemptRenamed", {}]]', b'[["StopAccepted", {"job": 1}]]', b"{}{", b"[[1]]"])
def test_an_event_of_another_version_is_refused(tmp_path: Path, payload: bytes) -> None:
    from tenure.durable import FramedLog

    path = tmp_path / "journal.log"
    with FramedLog.open(path) as log:
        log.append(payload)
    with pytest.raises(TenureError, match="cannot be read") as caught:
        Journal.open(path, core.AgentState())
    assert caught.value.code == "damaged_state"


def test_compaction_keeps_the_state(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    state = core.AgentState()
    journal = Journal.open(path, state, limit_bytes=2_000)
    compacted = False
    for token in range(1, 80):
        event = r.Fenced({"GPU-1": token})
        journal.record([event])
        core.evolve(state, event)
        compacted = journal.compact(state) or compacted
    accepted = r.AttemptAccepted("j1", 1, "ann", (Grant("h:gpu0", "GPU-1", 1000, "l"),), SPEC, ("b", "n", "i"))
    journal.record([accepted])
    core.evolve(state, accepted)
    journal.close()
    assert compacted
    assert path.stat().st_size < 5_000
    found = replayed(path)
    assert (found.high_water, found.attempts) == (state.high_water, state.attempts)
