"""The ledger alone: whole lifecycles a second through deciding and synced commits, without HTTP and without processes.

Taken by ``bench/ledger.py`` in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.rows import Row

if TYPE_CHECKING:
    from bench.world import World

PROGRAM = Path(__file__).with_name("ledger.py")
#: So many wait for the end of their job before they submit the next: enough that every device always has work.
SUBMITTERS = {4: 64, 256: 512}


def rows(world: World) -> list[Row]:
    """Few devices, where a commit holds few commands, and many."""
    return [
        Row(
            "ledger",
            "tenure",
            f"{devices} devices, {submitters} submitters in the process",
            "durable",
            "lifecycles/s",
            _take(world, devices, submitters),
            better="higher",
            most=3,
        )
        for devices, submitters in SUBMITTERS.items()
    ]


def _take(world: World, devices: int, submitters: int) -> Callable[[], list[float]]:
    def take() -> list[float]:
        seconds = 1.5 if world.quick else 4.0
        words = [sys.executable, str(PROGRAM), "--json", "--folder", str(world.folder)]
        words += ["--devices", str(devices), "--submitters", str(submitters), "--seconds", str(seconds)]
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=120, check=True)
        found = json.loads(done.stdout)
        world.note("ledger", found)
        return [float(found["lifecycles_per_s"])]

    return take
