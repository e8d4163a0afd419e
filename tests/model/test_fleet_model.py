"""The two cores under a network and hosts that misbehave: every invariant after every step."""

from __future__ import annotations

import os
import random

import pytest
from tests.model.world import World, random_step, steps

SEEDS = int(os.environ.get("TENURE_MODEL_SEEDS", "60"))
STEPS = int(os.environ.get("TENURE_MODEL_STEPS", "400"))
MOVES = tuple(steps())


@pytest.mark.parametrize("block", range(4))
def test_random_histories_keep_every_invariant(block: int) -> None:
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        rng = random.Random(seed)
        world = World(hosts=1 + seed % 2, devices=1 + seed % 3)
        try:
            for _ in range(STEPS):
                random_step(world, rng, MOVES)
            world.settle()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
