"""What an agent is told: the reason of a stop, and what it is told again."""

from __future__ import annotations

from tests.unit.domain.test_fleet import UNKNOWN, Fleet, offered, register

from tenure.domain import commands as cmd
from tenure.domain.instructions import Grant, Instruction, StartJob, StopJob, from_events, on_register

OVER = "the attempt is over; its devices are not proved empty yet"


def told(fleet: Fleet, command: cmd.Command) -> list[tuple[str, Instruction]]:
    return from_events(fleet.state, fleet.tell(command).events)


def stops(fleet: Fleet, *, forgetful: bool = False) -> list[tuple[str, str]]:
    found = on_register(fleet.state, "a", [cmd.KnownAttempt("j1", 1, fleet.tokens())], forgetful=forgetful)
    return [(one.job, one.reason) for one in found if isinstance(one, StopJob)]


def test_a_grant_is_told_with_every_device_and_its_token() -> None:
    fleet = Fleet(cmd.Begin(), register("a", offered(), offered("h:g1", "GPU-1")))
    fleet.submit("j1", count=2)
    (start,) = on_register(fleet.state, "a", ())
    assert isinstance(start, StartJob)
    assert (start.job, start.attempt, start.owner) == ("j1", 1, "ann")
    devices = fleet.state.devices
    assert start.grants == tuple(
        Grant(name, devices[name].uuid, devices[name].token, devices[name].lease or "") for name in ("h:g0", "h:g1")
    )


def test_a_stop_says_who_asked_for_it_while_the_job_runs_and_that_it_is_over_afterwards() -> None:
    fleet = Fleet().running()
    ((agent, stop),) = told(fleet, cmd.Cancel("j1", "ann", "late"))
    assert isinstance(stop, StopJob)
    assert (agent, stop.reason, stop.boot_id) == ("a", "cancelled by ann: late", "boot")
    assert stops(fleet) == [("j1", "cancelled by ann: late")]
    fleet.tell(fleet.ended(proofs={"h:g0": UNKNOWN}))
    assert on_register(fleet.state, "a", [cmd.KnownAttempt("j1", 1, fleet.tokens())]) == []  # it looks by itself
    (again,) = on_register(fleet.state, "a", [])
    assert isinstance(again, StopJob)
    assert again.reason == OVER


def test_what_an_agent_knows_to_be_running_is_not_told_again() -> None:
    fleet = Fleet().running()
    known = [cmd.KnownAttempt("j1", 1, fleet.tokens())]
    assert on_register(fleet.state, "a", known) == []
    assert on_register(fleet.state, "a", known, forgetful=True) == []


def test_a_stop_of_what_a_lost_record_spoke_of_names_the_boot_it_was_granted_in() -> None:
    fleet = Fleet(cmd.Begin(), register("a", offered(), offered("h:g1", "GPU-1")))
    fleet.submit("j1", device="h:g1")
    second = register("a", offered(), offered("h:g1", "GPU-1"))
    fleet.tell(cmd.Register("a", "h", "later", "ns", "run", "ann", second.devices))
    (stop,) = on_register(fleet.state, "a", (), forgetful=True)
    assert isinstance(stop, StopJob)
    assert (stop.reason, stop.boot_id) == ("its host has rebooted and kept no record of it", "boot")
