"""Recoveries by itself: how many within an hour, and what their proof was."""

from __future__ import annotations

import pytest
from tests.unit.domain.test_fleet import BUSY

from tenure.domain import events as ev
from tenure.domain.device import CLEAR, FLAP_WINDOW_S, FLAPS, Cause, Condition, Device, DeviceState, Quarantine
from tenure.domain.pieces import self_cleared
from tenure.domain.replacing import replaced

AWAY = Device(
    "h:g0",
    "GPU-0",
    "nvidia",
    "h",
    "a",
    False,
    0,
    DeviceState.UNHEALTHY,
    1.0,
    contact=True,
    quarantine=Quarantine(Cause.DIRTY, "512 MiB left", 1.0),
)


@pytest.mark.parametrize(("oldest", "clears"), [(FLAP_WINDOW_S - 1.0, False), (FLAP_WINDOW_S, True)])
def test_what_lies_an_hour_back_counts_no_more(oldest: float, clears: bool) -> None:
    now = 10_000.0
    device = replaced(AWAY, recoveries=(now - oldest, *(now - 60.0 for _ in range(FLAPS - 1))))
    (done,) = self_cleared(device, CLEAR, now, "agent:a")
    assert isinstance(done, ev.DeviceCleared if clears else ev.DeviceQuarantined)


@pytest.mark.parametrize(
    ("seen", "proof"),
    [(CLEAR, "clear"), (Condition("clear", "0 MiB, no process"), "0 MiB, no process"), (BUSY, "bob")],
)
def test_the_proof_is_what_was_seen(seen: Condition, proof: str) -> None:
    (done,) = self_cleared(AWAY, seen, 10.0, "agent:a")
    assert isinstance(done, ev.DeviceCleared)
    assert (done.proof, done.itself) == (proof, True)


@pytest.mark.parametrize("outcome", ["unknown", "fault", "dirty"])
def test_what_refutes_nothing_clears_nothing(outcome: str) -> None:
    assert self_cleared(AWAY, Condition(outcome, "why"), 10.0, "agent:a") == []
