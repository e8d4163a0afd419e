"""Silence, downtime and return, told step by step on simulated clusters: what is shown, and what never happens."""

from __future__ import annotations

import pytest

from tenure.controller.views import device_view
from tenure.domain import commands as cmd
from tenure.domain.contact import CLOSED_S, SILENT_S
from tenure.domain.job import Ending, JobState
from tenure.testing.sim import SimFleet

GPU = "h0:gpu0"


def running(devices: int = 1, hosts: int = 1, *, ephemeral: int = 0) -> SimFleet:
    """A fleet with one job running on its first device."""
    fleet = SimFleet(hosts, devices, ephemeral=ephemeral)
    for name in fleet.hosts:
        fleet.connect(name)
    fleet.submit(GPU, 1, 0, None)
    pump(fleet)
    assert fleet.state.jobs["j1"].state is JobState.RUNNING
    return fleet


def pump(fleet: SimFleet) -> None:
    for _ in range(50):
        if not fleet.pump():
            return


def words(fleet: SimFleet, device: str = GPU) -> str:
    """What people are shown, at this moment of the simulation."""
    return str(device_view(fleet.state, fleet.state.devices[device], fleet.wall)["words"])


@pytest.mark.parametrize("cut", ["cut_up", "cut_down", "both"])
def test_a_partition_of_ten_minutes_frees_nothing_and_loses_nothing(cut: str) -> None:
    fleet = running()
    for way in ("cut_up", "cut_down") if cut == "both" else (cut,):
        getattr(fleet.network, way).add("h0")
    fleet.submit(None, 1, 0, None)
    began, shown = fleet.clock, {}
    while fleet.clock - began < 600.0:
        fleet.advance(5.0)
        fleet.wall += 5.0
        shown[round(fleet.clock - began)] = words(fleet)
        assert fleet.state.jobs["j2"].state is JobState.QUEUED
        assert fleet.state.jobs["j1"].state is JobState.RUNNING
    assert shown[10] == "busy"
    # A cut of the way down alone is noticed by the agent first, which hangs up and cannot come back.
    assert shown[30].startswith("unknown (no contact ")
    # Since it was last heard, which then is when its agent hung up.
    minutes = ("4m", "9m") if cut == "cut_down" else ("5m", "10m")
    assert (shown[300], shown[600]) == tuple(f"unknown (no contact {span})" for span in minutes)
    fleet.hosts["h0"].exit_job(0, 3)  # it ends while nobody can hear of it
    assert fleet.state.jobs["j1"].state is JobState.RUNNING
    fleet.network.cut_up.clear()
    fleet.network.cut_down.clear()
    fleet.connect("h0")
    pump(fleet)
    outcome = fleet.state.closed["j1"].outcome
    assert outcome is not None
    assert (outcome.ending, outcome.code) == (Ending.EXITED, 3)
    assert fleet.state.jobs["j2"].state is JobState.RUNNING
    fleet.settle()


@pytest.mark.parametrize("downtime_s", [1.0, 60.0, 86_400.0])
def test_a_controller_that_was_down_counts_it_against_nobody(downtime_s: float) -> None:
    fleet = running(devices=2)
    fleet.crash_controller(downtime_s)
    assert fleet.state.devices[GPU].lease is not None
    fleet.connect("h0")
    pump(fleet)
    assert words(fleet) == "busy"
    assert fleet.state.jobs["j1"].state is JobState.RUNNING
    assert not any(event.kind == "device_quarantined" for event in fleet.log)
    assert fleet.hosts["h0"].alive[0].job == "j1"
    fleet.settle()
    assert fleet.terminal == {"j1": "exited"}


def test_a_controller_that_was_stopped_and_goes_on_gives_nobody_up() -> None:
    fleet = running()
    for seconds in (2.0, 16.0, 3600.0):
        fleet.away(seconds)
        assert words(fleet) == "busy"
    fleet.network.cut_up.add("h0")  # and from here on it counts again
    fleet.advance(SILENT_S + 1.0)
    assert words(fleet).startswith("unknown (no contact")


def test_silence_is_told_in_time_and_a_closed_link_sooner() -> None:
    fleet = running()
    fleet.network.cut_up.add("h0")
    fleet.advance(SILENT_S - 1.0)
    assert words(fleet) == "busy"
    fleet.advance(2.0)
    assert words(fleet).startswith("unknown")
    other = running()
    other.hosts["h0"].crash_agent()
    other.advance(CLOSED_S + 0.5)
    assert words(other).startswith("unknown")


def test_fifty_claims_on_one_device_are_one_winner_and_a_queue_in_order() -> None:
    fleet = SimFleet(1, 1)
    fleet.connect("h0")
    for _ in range(50):
        fleet.submit(GPU, 1, 0, None)
    states = [fleet.state.jobs[f"j{n}"].state for n in range(1, 51)]
    assert states == [JobState.STARTING] + [JobState.QUEUED] * 49
    pump(fleet)
    while fleet.hosts["h0"].alive:
        assert len(fleet.hosts["h0"].alive) == 1
        fleet.hosts["h0"].exit_job(0, 0)
        pump(fleet)
    assert [job for job, _ in fleet.starts] == [f"j{n}" for n in range(1, 51)]


@pytest.mark.parametrize(
    ("act", "cause"), [("reboot", "host_rebooted"), ("restart_worker", "worker_restarted"), ("crash", "")]
)
def test_a_host_that_comes_back_says_what_became_of_its_job(act: str, cause: str) -> None:
    fleet = running()
    host = fleet.hosts["h0"]
    if act == "reboot":
        host.reboot()
    elif act == "restart_worker":
        host.restart_worker(survivors=False)
    else:
        host.crash_agent()  # the agent alone: its job goes on
    fleet.advance(20.0)
    assert words(fleet).startswith("unknown (no contact")
    host.start_agent()
    fleet.connect("h0")
    pump(fleet)
    if not cause:
        assert fleet.state.jobs["j1"].state is JobState.RUNNING
        assert words(fleet) == "busy"
        return
    outcome = fleet.state.closed["j1"].outcome
    assert outcome is not None
    assert (outcome.ending, outcome.cause) == (Ending.LOST, cause)
    assert words(fleet) == "ready"


def test_what_escaped_a_lost_worker_keeps_its_device_until_it_is_gone() -> None:
    fleet = running()
    host = fleet.hosts["h0"]
    host.restart_worker(survivors=True)
    host.start_agent()
    fleet.connect("h0")
    pump(fleet)
    assert "foreign_namespace" in words(fleet)
    fleet.submit(GPU, 1, 0, None)
    fleet.advance(3600.0)
    pump(fleet)
    assert fleet.state.jobs["j2"].state is JobState.QUEUED
    host.alive.clear()
    for _ in range(3):
        pump(fleet)
        host.step()
    assert fleet.state.jobs["j2"].state is not JobState.QUEUED


def test_a_host_that_forgot_everything_starts_nothing_twice() -> None:
    fleet = running(ephemeral=1)
    started = list(fleet.starts)
    fleet.hosts["h0"].reboot()
    fleet.hosts["h0"].start_agent()
    fleet.connect("h0")
    pump(fleet)
    assert fleet.starts == started
    assert fleet.terminal == {"j1": "lost"}
    assert words(fleet) == "ready"
    fleet.execute(cmd.LoseContact("a-h0", 15.0))
    fleet.connect("h0")
    pump(fleet)
    assert fleet.starts == started
