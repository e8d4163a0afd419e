"""A device's state follows from its facts, and its words say why."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.domain.device import CLEAR, Cause, Condition, Device, DeviceState, Quarantine, state_of
from tenure.domain.replacing import replaced

BARE = Device("h:g0", "GPU-0", "nvidia", "h", "a", False, 0, DeviceState.UNKNOWN, 1.0)
BROKEN = Quarantine(Cause.FAULT, "fan", 1.0)


def test_a_device_of_which_nothing_is_known_is_not_free() -> None:
    assert BARE.contact is False
    assert BARE.version == 0
    assert state_of(BARE) is DeviceState.UNKNOWN
    assert state_of(replaced(BARE, contact=True)) is DeviceState.UNKNOWN  # nobody has looked at it yet


@pytest.mark.parametrize(
    ("facts", "state", "words"),
    [
        ({}, "ready", "ready"),
        ({"contact": False}, "unknown", "unknown (no contact)"),
        ({"contact": False, "quarantine": BROKEN, "lease": "l"}, "unknown", "unknown (no contact)"),
        ({"quarantine": BROKEN, "lease": "l"}, "unhealthy", "unhealthy (fault: fan)"),
        ({"lease": "l", "condition": Condition("occupied", "bob")}, "busy", "busy"),
        ({"lease": "l", "contended": Condition("occupied", "bob")}, "busy", "busy (contended: bob)"),
        ({"lease": "l", "lease_ending": True}, "ending", "ending"),
        ({"lease": "l", "lease_ending": True, "condition": Condition("unknown", "why")}, "ending", "ending (why)"),
        ({"condition": Condition("unknown", "why")}, "unknown", "unknown (why)"),
        ({"condition": Condition("fault", "why")}, "unknown", "unknown (why)"),
        ({"condition": Condition("occupied", "pid 9 of bob", ("bob",))}, "occupied", "occupied (pid 9 of bob)"),
        ({"condition": Condition("occupied", "", ("ann", "bob")), "draining": "x"}, "occupied", "occupied (ann, bob)"),
        ({"draining": "fan, by root"}, "draining", "draining (fan, by root)"),
    ],
)
def test_the_state_follows_from_the_facts_in_one_order(facts: dict[str, Any], state: str, words: str) -> None:
    device = replaced(BARE, **{"contact": True, "condition": CLEAR, **facts})
    assert str(state_of(device)) == state
    assert replaced(device, state=state_of(device)).words == words


@pytest.mark.parametrize("cause", list(Cause))
def test_a_fault_and_an_operators_word_never_clear_themselves(cause: Cause) -> None:
    clears = cause not in (Cause.FAULT, Cause.OPERATOR)
    assert Quarantine(cause, "why", 1.0).clears_itself is clears
    assert not Quarantine(cause, "why", 1.0, by_hand=True).clears_itself
