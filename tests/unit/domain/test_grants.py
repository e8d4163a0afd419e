"""Which job gets which device: wide jobs, the host they collect theirs on, and who may go ahead meanwhile."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.domain.test_fleet import BUSY, Fleet

from tenure.domain import commands as cmd
from tenure.domain.device import CLEAR, Condition
from tenure.domain.job import JobState


def host(name: str, devices: int, seen: Condition = CLEAR) -> cmd.Register:
    offered = (cmd.OfferedDevice(f"{name}:g{n}", f"GPU-{name}-{n}", "nvidia", False, 0, seen) for n in range(devices))
    return cmd.Register(f"a-{name}", name, "boot", "ns", "run", "ann", tuple(offered))


def fleet_of(**hosts: int) -> Fleet:
    return Fleet(cmd.Begin(), *(host(name, devices) for name, devices in hosts.items()))


def end(fleet: Fleet, job: str) -> None:
    found = fleet.state.jobs[job]
    tokens = {name: fleet.state.devices[name].token for name in found.devices}
    agent = fleet.state.devices[found.devices[0]].agent
    told = fleet.ended(agent=agent, job=job, attempt=found.attempt, tokens=tokens, proofs=dict.fromkeys(tokens, CLEAR))
    assert not fleet.tell(told).ignored


def held(fleet: Fleet) -> dict[str, tuple[str, ...]]:
    """Job -> its devices, of those that have some."""
    return {job.id: job.devices for job in fleet.state.jobs.values() if job.state is not JobState.QUEUED}


def look(fleet: Fleet, name: str, seen: Condition) -> None:
    device = fleet.state.devices[name]
    fleet.tell(cmd.ReportDevice(device.agent, name, device.token, seen))


def test_a_wide_job_has_all_its_devices_on_one_host_or_none() -> None:
    fleet = fleet_of(h=2, i=3)
    fleet.submit("j1", device="i:g1")
    fleet.submit("j2", device="h:g0")
    fleet.submit("j3", count=3)
    assert "j3" not in held(fleet)
    end(fleet, "j2")
    assert "j3" not in held(fleet)  # three are free by now, on two hosts
    end(fleet, "j1")
    assert held(fleet) == {"j3": ("i:g0", "i:g1", "i:g2")}


def test_a_wide_job_of_two_takes_two_of_three() -> None:
    fleet = fleet_of(h=3)
    fleet.submit("j1", count=2)
    fleet.submit("j2")
    assert held(fleet) == {"j1": ("h:g0", "h:g1"), "j2": ("h:g2",)}


def test_a_wide_job_collects_where_most_are_ready_and_leaves_the_others_to_those_behind_it() -> None:
    fleet = fleet_of(h=3, i=3)
    for job, name in (("j1", "h:g0"), ("j2", "h:g1"), ("j3", "i:g0")):
        fleet.submit(job, device=name)
    fleet.submit("j4", count=3)  # one is ready on h and two on i
    fleet.submit("j5")
    fleet.submit("j6")
    assert {job: held(fleet).get(job) for job in ("j4", "j5", "j6")} == {"j4": None, "j5": ("h:g2",), "j6": None}
    end(fleet, "j3")
    assert held(fleet)["j4"] == ("i:g0", "i:g1", "i:g2")
    assert "j6" not in held(fleet)


def test_a_host_of_too_few_devices_that_can_be_had_is_not_collected_on() -> None:
    fleet = fleet_of(h=2, i=2)
    fleet.tell(cmd.Operate("h:g0", "quarantine", "root", "fan"))
    fleet.submit("j1", device="i:g0")
    fleet.submit("j2", count=2)  # of h one is ready, as of i; but the other one of h will not be
    fleet.submit("j3")
    assert held(fleet) == {"j1": ("i:g0",), "j3": ("h:g1",)}
    end(fleet, "j1")
    assert held(fleet)["j2"] == ("i:g0", "i:g1")


def test_devices_that_stood_ready_are_given_on_when_the_collecting_moves_elsewhere() -> None:
    fleet = fleet_of(h=2, i=2)
    for job, name in (("j1", "h:g0"), ("j2", "i:g0"), ("j3", "i:g1")):
        fleet.submit(job, device=name)
    fleet.submit("j4", count=2)  # collects on h, where one is ready
    fleet.submit("j5")
    assert "j5" not in held(fleet)
    end(fleet, "j2")  # now on either host one is ready
    assert "j5" in held(fleet)
    assert len(held(fleet)["j5"]) == 1
    end(fleet, "j3")
    end(fleet, "j1")
    assert len(held(fleet)["j4"]) == 2


def test_devices_that_stood_ready_are_given_on_when_their_host_can_no_longer_do() -> None:
    fleet = fleet_of(h=3)
    fleet.submit("j1", device="h:g0")
    fleet.submit("j2", count=3)
    fleet.submit("j3")
    fleet.submit("j4")
    assert held(fleet) == {"j1": ("h:g0",)}
    fleet.tell(cmd.Operate("h:g0", "quarantine", "root", "fan"))  # the three cannot be had any more
    assert held(fleet) == {"j1": ("h:g0",), "j3": ("h:g1",), "j4": ("h:g2",)}


def test_devices_that_stood_ready_are_given_on_when_the_wide_job_is_cancelled() -> None:
    fleet = fleet_of(h=3)
    fleet.submit("j1", device="h:g0")
    fleet.submit("j2", count=3)
    fleet.submit("j3")
    fleet.submit("j4")
    fleet.tell(cmd.Cancel("j2", "ann", ""))
    assert held(fleet) == {"j1": ("h:g0",), "j3": ("h:g1",), "j4": ("h:g2",)}


def test_an_agent_that_comes_back_with_free_devices_serves_those_who_wait() -> None:
    fleet = fleet_of(h=2)
    fleet.tell(cmd.LoseContact("a-h", 15.0))
    for job in ("j1", "j2", "j3"):
        fleet.submit(job)
    fleet.tell(host("h", 2))
    assert held(fleet) == {"j1": ("h:g0",), "j2": ("h:g1",)}


def test_a_device_is_given_to_the_first_in_the_queue_of_all_who_could_have_it() -> None:
    fleet = fleet_of(h=1)
    look(fleet, "h:g0", BUSY)
    fleet.submit("j1")
    fleet.submit("j2", device="h:g0", priority=1)
    fleet.submit("j3", device="h:g0")
    look(fleet, "h:g0", CLEAR)
    assert held(fleet) == {"j2": ("h:g0",)}
    end(fleet, "j2")
    assert held(fleet) == {"j1": ("h:g0",)}


def test_a_new_label_lets_a_device_serve_what_waits_for_it() -> None:
    labels = {"class": {"value": "train", "source": "declared", "at": 1.0}}
    plain = host("h", 1)
    train = replace(plain, devices=(replace(plain.devices[0], labels=labels),))
    fleet = Fleet(cmd.Begin(), train)
    look(fleet, "h:g0", BUSY)
    fleet.submit("j1", select="class=train")
    fleet.tell(replace(plain, devices=(replace(plain.devices[0], condition=BUSY),)))
    look(fleet, "h:g0", CLEAR)
    assert held(fleet) == {}
    fleet.tell(train)
    assert held(fleet) == {"j1": ("h:g0",)}
