"""An agent connects: what of it is news, and what it may not take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.domain.test_fleet import BUSY, Fleet, offered, register

from tenure.domain import commands as cmd
from tenure.domain import events as ev
from tenure.domain.device import CLEAR
from tenure.domain.evolve import evolve

LABELS = {"class": {"value": "train", "source": "declared", "at": 1.0}}


def kinds(fleet: Fleet, command: cmd.Command) -> list[str]:
    return [event.kind for event in fleet.tell(command).events]


def of_agent_b(name: str, uuid: str) -> cmd.Register:
    return replace(register("b", offered(name, uuid)), host=name.split(":")[0])


def test_a_registration_that_says_nothing_new_is_that_alone() -> None:
    fleet = Fleet()
    assert kinds(fleet, register()) == ["agent_registered"]
    fleet.running()
    known = [cmd.KnownAttempt("j1", 1, fleet.tokens()), cmd.KnownAttempt("j9", 4, {"h:g0": 1})]
    assert kinds(fleet, register("a", offered(high_water=fleet.tokens()["h:g0"]), known=known)) == ["agent_registered"]


@pytest.mark.parametrize(
    ("changed", "news"),
    [
        ({"facts": {"model": "H100"}}, ["device_registered", "agent_registered"]),
        ({"labels": LABELS}, ["device_registered", "agent_registered"]),
        ({"kind": "other"}, ["device_registered", "agent_registered"]),
        ({"condition": BUSY}, ["device_observed", "agent_registered"]),
        ({"high_water": 9_000_000}, ["token_floor_raised", "agent_registered"]),
    ],
)
def test_what_is_new_of_a_device_is_an_event_and_only_once(changed: dict[str, Any], news: list[str]) -> None:
    fleet = Fleet()
    command = register("a", replace(offered(), **changed))
    assert kinds(fleet, command) == news
    assert kinds(fleet, command) == ["agent_registered"]


def test_labels_that_were_only_read_again_are_no_news() -> None:
    fleet = Fleet(cmd.Begin(), register("a", replace(offered(), labels=LABELS)))
    later = {"class": {**LABELS["class"], "at": 2.0}}
    assert kinds(fleet, register("a", replace(offered(), labels=later))) == ["agent_registered"]


def test_a_look_at_registration_ends_a_quarantine_that_it_refutes() -> None:
    fleet = Fleet()
    evolve(fleet.state, ev.DeviceQuarantined(at=1.0, actor="x", device="h:g0", cause="worker_lost", detail="why"))
    fleet.tell(register("a", offered(seen=CLEAR)))
    assert fleet.words == "ready"


def test_an_attempt_that_only_its_host_knows_of_is_never_numbered_again() -> None:
    """After a ledger was restored from a copy: what ran since is told by the host, and the next attempt is past it."""
    fleet = Fleet(cmd.Begin(), register("a", offered(seen=BUSY)))
    fleet.submit()
    fleet.tell(register("a", offered(seen=BUSY), known=[cmd.KnownAttempt("j1", 5, {"h:g0": 1})]))
    assert fleet.state.jobs["j1"].last_attempt == 5
    fleet.tell(register())
    assert fleet.state.jobs["j1"].attempt == 6


# -- whose device it is ------------------------------------------------------------------------------------------------


def test_another_agent_takes_a_silent_ones_device_over_under_its_name_only() -> None:
    fleet = Fleet()
    fleet.tell(cmd.LoseContact("a", 15.0))
    fleet.tell(of_agent_b("i:g0", "GPU-0"))
    assert set(fleet.state.devices) == {"h:g0"}  # the same card under two names would be two devices
    fleet.tell(of_agent_b("h:g0", "GPU-0"))
    assert (fleet.state.devices["h:g0"].agent, fleet.words) == ("b", "ready")


def test_no_agent_takes_over_what_a_silent_one_may_still_be_running() -> None:
    fleet = Fleet().running()
    fleet.tell(cmd.LoseContact("a", 15.0))
    (done,) = fleet.tell(of_agent_b("h:g0", "GPU-0")).events
    assert isinstance(done, ev.AgentRegistered)
    assert fleet.state.devices["h:g0"].agent == "a"
    assert fleet.state.devices["h:g0"].lease is not None


def test_a_card_that_was_replaced_may_serve_in_another_host() -> None:
    fleet = Fleet()
    fleet.tell(register("a", offered("h:g0", "GPU-1")))
    assert fleet.state.uuids == {"GPU-1": "h:g0"}
    fleet.tell(of_agent_b("i:g0", "GPU-0"))
    assert {name: device.uuid for name, device in fleet.state.devices.items()} == {"h:g0": "GPU-1", "i:g0": "GPU-0"}


def test_two_cards_that_change_places_keep_one_name_each() -> None:
    fleet = Fleet(cmd.Begin(), register("a", offered("h:g0", "GPU-0"), offered("h:g1", "GPU-1")))
    fleet.tell(register("a", offered("h:g0", "GPU-1"), offered("h:g1", "GPU-0")))
    assert fleet.state.uuids == {"GPU-1": "h:g0", "GPU-0": "h:g1"}
