"""The two cores under a network and hosts that misbehave: every invariant after every step.

``TENURE_MODEL_SEEDS`` and ``TENURE_MODEL_STEPS`` make the random histories more and longer; for hours of it there is
``make soak-fleet``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tenure.domain import events as ev
from tenure.testing.sim import MOVES, RESTORING, History, SimFleet, Step, Violation, move, play, shrunk
from tenure.testing.sim.moves import FAULTS

SEEDS = int(os.environ.get("TENURE_MODEL_SEEDS", "50"))
STEPS = int(os.environ.get("TENURE_MODEL_STEPS", "300"))


def run_histories(first: int, count: int, moves: Mapping[str, int]) -> Counter[str]:
    """Random histories and their healing; a failure names the seed, which replays it exactly. Gives what life it had"""
    lived: Counter[str] = Counter()
    for seed in range(first, first + count):
        told = play(History.of(seed, STEPS, moves))
        assert not told.violation, f"seed {seed}: {told.violation}"
        lived += told.lived + told.made
    return lived


@pytest.mark.parametrize("block", range(4))
def test_random_histories_keep_every_invariant(block: int) -> None:
    lived = run_histories(block * SEEDS, SEEDS, MOVES)
    # Nothing is proved by a fleet in which nothing happens.
    assert lived["process_started"] > 3 * SEEDS
    assert lived["exit_observed"] > 2 * SEEDS
    assert lived["contact_lost"] > SEEDS
    assert all(lived[fault] for fault in FAULTS - {"restore"})


def test_a_restored_ledger_never_reuses_a_token_nor_doubles_a_device() -> None:
    assert run_histories(10_000, SEEDS, RESTORING)["restore"]


def test_a_seed_is_always_the_same_history() -> None:
    one, other = (play(History.of(17, STEPS)) for _ in range(2))
    assert History.of(17, STEPS) == History.of(17, STEPS)
    assert (one.lived, one.made) == (other.lived, other.made)


def test_a_failing_history_becomes_a_short_one_that_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fence is taken away; what is left of three hundred steps is a story that can be read."""
    from tenure.agent import core

    monkeypatch.setattr(core, "_why_not", lambda state, grants: "")
    seed = next(seed for seed in range(400) if play(History.of(seed, 200)).violation)
    whole = History.of(seed, 200)
    short, why = shrunk(whole)
    assert why
    assert len(short.steps) < len(whole.steps) / 4
    assert play(short).violation == why
    assert all(not play(replace(short, steps=short.steps[:n] + short.steps[n + 1 :])).violation for n in range(3))


def test_an_error_of_the_system_counts_as_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFleet, "submit", lambda fleet, *asked: 1 / 0)
    assert play(History(1, 1, 0, (Step("submit", 1),))).violation.startswith("ZeroDivisionError at submit")


def test_the_witnesses_see_what_they_are_there_for() -> None:
    """A grant of what is not free, told by hand past the core: the simulation's own eyes are open."""
    fleet = SimFleet(1, 1)
    fleet.connect("h0")
    event = ev.LeaseGranted(at=1.0, job="j1", attempt=1, leases=(("x", "h0:gpu0", 0),))
    with pytest.raises(Violation, match="I4"):
        fleet._witness(event)


class FleetMachine(RuleBasedStateMachine):
    """The same moves, chosen by Hypothesis, so that a failing history is shrunk to its shortest."""

    @initialize(hosts=st.integers(1, 2), devices=st.integers(1, 2), ephemeral=st.integers(0, 1))
    def begin(self, hosts: int, devices: int, ephemeral: int) -> None:
        self.fleet = SimFleet(hosts, devices, ephemeral=ephemeral)
        for name in self.fleet.hosts:
            self.fleet.connect(name)

    @rule(what=st.sampled_from(sorted(MOVES)), draw=st.integers(0, 2**32 - 1))
    def step(self, what: str, draw: int) -> None:
        move(self.fleet, what, draw)

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            self.fleet.settle()


TestFleetMachine = FleetMachine.TestCase
TestFleetMachine.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
