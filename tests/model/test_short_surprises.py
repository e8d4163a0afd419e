"""Short histories that have surprised systems of this kind, told step by step."""

from __future__ import annotations

from tenure.agent import records as r
from tenure.domain.device import CLEAR
from tenure.domain.instructions import StartJob, StopJob
from tenure.domain.job import Ending, JobState, Outcome
from tenure.testing.sim import SimFleet


def one_host() -> SimFleet:
    """One host with one device, connected."""
    world = SimFleet(hosts=1, devices=1)
    world.connect("h0")
    return world


def pump(world: SimFleet) -> None:
    """Lets the agent carry out all its effects and every message arrive in order."""
    for _ in range(50):
        if not world.pump():
            return


def test_grant_cancel_stop_delivered_start_delivered_late() -> None:
    world = one_host()
    world.submit(None, 1, 0, None)
    world.cancel("j1")
    start, stop = (told for _, told in world.network.to_agent)
    assert isinstance(start, StartJob)
    assert isinstance(stop, StopJob)
    world.deliver_to_agent(1)
    pump_without_start = [world.network.to_agent.pop(0)]
    pump(world)
    assert world.terminal == {"j1": "cancelled"}
    world.network.to_agent += pump_without_start
    pump(world)
    assert world.starts == []
    assert world.state.devices["h0:gpu0"].state == "ready"


def test_an_end_told_again_does_not_clear_the_next_holder() -> None:
    world = one_host()
    world.submit(None, 1, 0, None)
    pump(world)
    host = world.hosts["h0"]
    world.hosts["h0"].exit_job(0, 0)
    first_end = host.agent.outbox[max(host.agent.outbox)] if host.agent else None
    assert first_end is not None
    assert first_end.kind == "ended"
    pump(world)
    world.submit(None, 1, 0, None)
    pump(world)
    assert world.state.jobs["j2"].state is JobState.RUNNING
    from tenure.wire import frames

    again = frames.read_report(frames.loads(frames.report(first_end.seq, first_end.kind, first_end.body)), "a-h0")
    version = world.state.version
    world.execute(again)
    assert world.state.version == version
    assert world.state.devices["h0:gpu0"].state == "busy"
    assert world.state.jobs["j2"].state is JobState.RUNNING


def test_a_job_that_exits_as_it_is_cancelled_keeps_its_own_exit() -> None:
    world = one_host()
    world.submit(None, 1, 0, None)
    pump(world)
    world.cancel("j1")
    world.hosts["h0"].exit_job(0, 3)
    pump(world)
    outcome = world.state.closed["j1"].outcome
    assert outcome is not None
    assert (outcome.ending, outcome.code) == (Ending.EXITED, 3)
    assert "cancelled by ann" in outcome.words


def test_silence_keeps_the_lease_and_the_job() -> None:
    world = one_host()
    world.submit(None, 1, 0, None)
    pump(world)
    world.lose_contact("h0")
    device = world.state.devices["h0:gpu0"]
    assert device.state == "unknown"
    assert device.lease is not None
    assert world.state.jobs["j1"].state is JobState.RUNNING
    world.submit(None, 1, 0, None)
    assert world.state.jobs["j2"].state is JobState.QUEUED
    world.connect("h0")
    assert world.state.devices["h0:gpu0"].state == "busy"


def test_what_is_left_on_a_device_keeps_it_until_it_is_gone() -> None:
    world = one_host()
    world.submit(None, 1, 0, None)
    pump(world)
    host = world.hosts["h0"]
    host.kill_supervisor(0)
    host.happened(r.Ended("j1", 1, Outcome(Ending.LOST, cause="lost_cause_not_established"), 0))
    for _ in range(6):
        host.step()
        while world.network.to_controller:
            world.deliver_to_controller(0)
    device = world.state.devices["h0:gpu0"]
    assert device.state == "unhealthy"
    assert "j1 left a process" in device.words
    host.reap_survivors()
    pump(world)
    assert world.state.devices["h0:gpu0"].state == "ready"
    assert world.state.devices["h0:gpu0"].condition == CLEAR
