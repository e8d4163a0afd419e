"""The two cores under a network and hosts that misbehave: every invariant after every step.

``TENURE_MODEL_SEEDS`` and ``TENURE_MODEL_STEPS`` make the random histories more and longer.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.model.world import MOVES, World, move

SEEDS = int(os.environ.get("TENURE_MODEL_SEEDS", "50"))
STEPS = int(os.environ.get("TENURE_MODEL_STEPS", "300"))


def run_history(seed: int, moves: dict[str, int]) -> None:
    """One random history and its healing; a failure names the seed, which replays it exactly."""
    rng = random.Random(seed)
    world = World(hosts=1 + seed % 2, devices=1 + seed % 3)
    try:
        for what in rng.choices(list(moves), weights=list(moves.values()), k=STEPS):
            move(world, what, rng)
        world.settle()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("block", range(4))
def test_random_histories_keep_every_invariant(block: int) -> None:
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        run_history(seed, MOVES)


def test_a_restored_ledger_never_reuses_a_token_nor_doubles_a_device() -> None:
    for seed in range(SEEDS):
        run_history(10_000 + seed, {**MOVES, "restore": 1})


class FleetMachine(RuleBasedStateMachine):
    """The same moves, chosen by Hypothesis, so that a failing history is shrunk to its shortest."""

    @initialize(hosts=st.integers(1, 2), devices=st.integers(1, 2))
    def begin(self, hosts: int, devices: int) -> None:
        self.world = World(hosts, devices)
        for name in self.world.hosts:
            self.world.connect(name)

    @rule(what=st.sampled_from(sorted(MOVES)), draw=st.integers(0, 2**32 - 1))
    def step(self, what: str, draw: int) -> None:
        move(self.world, what, random.Random(draw))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


TestFleetMachine = FleetMachine.TestCase
TestFleetMachine.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
