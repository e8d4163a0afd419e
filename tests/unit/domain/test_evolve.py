"""What events leave behind: the queue's order, what was evident, since when, and what the ledger is to take."""

from __future__ import annotations

from tests.unit.domain.test_fleet import Fleet

from tenure.domain import commands as cmd
from tenure.domain.job import JobState


def test_a_higher_priority_overtakes_and_ten_minutes_of_waiting_outweigh_one_step() -> None:
    fleet = Fleet().running()
    fleet.submit("j2")
    fleet.submit("j3", priority=1)
    fleet.now += 600.0
    fleet.submit("j4", priority=1)  # later by more than its step is worth
    order = sorted(("j2", "j3", "j4"), key=lambda job: fleet.state.jobs[job].order)
    assert order == ["j3", "j2", "j4"]
    fleet.tell(fleet.ended(proofs={"h:g0": fleet.state.devices["h:g0"].condition}))
    assert [job.id for job in fleet.state.jobs.values() if job.state is JobState.STARTING] == ["j3"]


def test_how_a_start_was_seen_stays_on_the_job() -> None:
    fleet = Fleet()
    fleet.submit()
    fleet.tell(cmd.ReportStarted("a", "j1", 1, fleet.tokens(), 51, "its supervisor's record"))
    job = fleet.state.jobs["j1"]
    assert (job.state, job.pid, job.evidence) == (JobState.RUNNING, 51, "its supervisor's record")
    assert job.started_at == fleet.now


def test_silence_counts_from_what_was_heard_last() -> None:
    fleet = Fleet()
    fleet.tell(cmd.LoseContact("a", 15.0))
    assert fleet.state.devices["h:g0"].lost_at == fleet.now - 15.0
    other = Fleet()
    other.tell(cmd.Begin())  # it heard nobody before, and so counts from now
    assert other.state.devices["h:g0"].lost_at == other.now


def test_since_is_the_last_change_of_state_and_version_the_last_event() -> None:
    fleet = Fleet()
    since = fleet.state.devices["h:g0"].since
    fleet.submit()
    busy = fleet.state.devices["h:g0"]
    assert (busy.since, busy.version) == (fleet.now, fleet.state.version)
    assert busy.since > since
    fleet.tell(cmd.ReportDevice("a", "h:g0", busy.token, busy.condition))
    assert fleet.state.devices["h:g0"].since == busy.since


def test_the_ledger_is_told_once_what_changed_and_what_is_closed() -> None:
    fleet = Fleet().running()
    changed = set(fleet.state.touched)
    assert {("agents", "a"), ("devices", "h:g0"), ("jobs", "j1"), ("tokens", "GPU-0")} <= changed
    fleet.state.drain()
    assert not fleet.state.touched
    fleet.tell(fleet.ended(proofs={"h:g0": fleet.state.devices["h:g0"].condition}))
    assert set(fleet.state.closed) == {"j1"}
    assert len(fleet.state.released) == 1
    assert ("jobs", "j1") in fleet.state.touched
    assert ("agents", "a") not in fleet.state.touched
    fleet.state.drain()
    assert (fleet.state.touched, fleet.state.closed, fleet.state.released) == ({}, {}, {})
    assert not fleet.state.leases_of
