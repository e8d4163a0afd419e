"""Histories: a seed becomes a list of steps, a list of steps becomes a run, and a failing one becomes a short one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tenure.testing.sim.fleet import SimFleet
from tenure.testing.sim.moves import MOVES, move


class Step(NamedTuple):
    """One move by name, and the number that everything else about it is drawn from."""

    what: str
    draw: int


@dataclass(frozen=True)
class History:
    """A run to be: the size of the fleet and its steps. ``seed`` is where it came from, if it did."""

    hosts: int
    devices: int
    ephemeral: int
    steps: tuple[Step, ...]
    seed: int | None = None

    @classmethod
    def of(cls, seed: int, length: int, moves: Mapping[str, int] = MOVES) -> History:
        """The history of a seed: always the same one for the same moves."""
        rng = random.Random(seed)
        names, weights = list(moves), list(moves.values())
        steps = tuple(Step(what, rng.getrandbits(32)) for what in rng.choices(names, weights=weights, k=length))
        hosts = 1 + seed % 2
        return cls(hosts, 1 + seed % 3, seed // 6 % (hosts + 1), steps, seed)


@dataclass
class Told:
    """What became of a history: the violation in words (empty where there was none), the moves that were made, and
    what came of them in the fleet (events by kind, starts and observed exits): a run without life proves nothing."""

    violation: str = ""
    made: Counter[str] = field(default_factory=Counter)
    lived: Counter[str] = field(default_factory=Counter)


def play(history: History) -> Told:
    """Runs a history and lets everything heal. An error that is no violation counts as one: nothing may raise."""
    told = Told()
    fleet = SimFleet(history.hosts, history.devices, ephemeral=history.ephemeral)
    what = "settle"
    try:
        for what, draw in history.steps:
            told.made[what] += 1
            move(fleet, what, draw)
        what = "settle"
        fleet.settle()
    except Exception as error:
        told.violation = f"{type(error).__name__} at {what}: {error}"
    told.lived.update(event.kind for event in fleet.log)
    told.lived["process_started"] = len(fleet.starts)
    told.lived["exit_observed"] = len(fleet.observed_exit)
    return told


def shrunk(history: History, tries: int = 2000) -> tuple[History, str]:
    """A shorter history that fails too, with its violation: pieces are left out while the rest still fails."""
    why = play(history).violation
    if not why:
        raise ValueError("this history does not fail")
    piece = max(1, len(history.steps) // 2)
    while tries > 0:
        at, shorter = 0, False
        while at < len(history.steps) and tries > 0:
            tries -= 1
            candidate = replace(history, steps=_without(history.steps, at, piece))
            found = play(candidate).violation
            if found:
                history, why, shorter = candidate, found, True
            else:
                at += piece
        if piece == 1 and not shorter:
            break
        piece = max(1, piece // 2)
    return history, why


def _without(steps: Sequence[Step], at: int, count: int) -> tuple[Step, ...]:
    return (*steps[:at], *steps[at + count :])
