"""``python -m tenure.testing.sim``: seeds for a given time or number of steps, and what came of them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter

from tenure.testing.sim.histories import History, play, shrunk
from tenure.testing.sim.moves import FAULTS, MOVES, RESTORING

TELL_EVERY_S = 10.0


def main() -> int:
    """Exit status 1 where a guarantee did not hold; then the seed, and the shortest history found that fails too."""
    parser = argparse.ArgumentParser(prog="python -m tenure.testing.sim", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="stop after so long (1)")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps instead")
    parser.add_argument("--seed", type=int, default=None, help="replay this one seed")
    parser.add_argument("--first", type=int, default=0, help="begin with this seed (0)")
    parser.add_argument("--length", type=int, default=300, help="steps of one history (300)")
    parser.add_argument("--restore", action="store_true", help="with controllers restored from old copies, always")
    parser.add_argument("--no-shrinking", action="store_true", help="end at the first violation, as it is")
    given = parser.parse_args()
    if given.seed is not None:
        return _one(given.seed, given.length, given.restore)
    return _many(given)


def _history(seed: int, length: int, restore: bool) -> History:
    """Every fifth seed is one with restored ledgers, unless all are."""
    return History.of(seed, length, RESTORING if restore or seed % 5 == 4 else MOVES)


def _one(seed: int, length: int, restore: bool) -> int:
    history = _history(seed, length, restore)
    told = play(history)
    if not told.violation:
        print(f"seed {seed}: {len(history.steps)} steps, no violation")
        return 0
    _show(seed, told.violation, history)
    return 1


def _show(seed: int, violation: str, history: History) -> None:
    print(f"seed {seed}: {violation}", flush=True)
    short, why = shrunk(history)
    print(f"  shrunk from {len(history.steps)} to {len(short.steps)} steps: {why}")
    size = {"hosts": short.hosts, "devices": short.devices, "ephemeral": short.ephemeral}
    print("  " + json.dumps({**size, "steps": short.steps}))


def _many(given: argparse.Namespace) -> int:
    began = told_at = time.monotonic()
    made: Counter[str] = Counter()
    lived: Counter[str] = Counter()
    seed, failed = given.first, 0
    while _more(given, began, made):
        history = _history(seed, given.length, given.restore)
        told = play(history)
        made += told.made
        lived += told.lived
        if told.violation and given.no_shrinking:
            print(f"seed {seed}: {told.violation}")
            return 1
        if told.violation:
            failed += 1
            _show(seed, told.violation, history)
        seed += 1
        now = time.monotonic()
        if now - told_at >= TELL_EVERY_S and sys.stderr.isatty():
            told_at = now
            print(f"\r{seed - given.first} seeds, {made.total():,} steps, {failed} violations", end="", file=sys.stderr)
    took = time.monotonic() - began
    steps = made.total()
    print(f"{seed - given.first} seeds, {steps:,} steps in {took:.1f} s: {steps / max(took, 1e-9):,.0f} steps/s")
    print("faults by kind: " + ", ".join(f"{name} {made[name]:,}" for name in sorted(FAULTS & made.keys())))
    print("what life there was: " + ", ".join(f"{name} {count:,}" for name, count in sorted(lived.items())))
    print(f"violations: {failed}")
    return 1 if failed else 0


def _more(given: argparse.Namespace, began: float, made: Counter[str]) -> bool:
    if given.steps:
        return made.total() < int(given.steps)
    return time.monotonic() - began < 60 * float(given.minutes)


if __name__ == "__main__":
    sys.exit(main())
