"""Whole clusters from one seed in one thread: the two real cores, a network that misbehaves, hosts with real truths.

``SimFleet`` is the controller's core with its contact rule and durable log, ``SimNetwork`` what lies between,
``SimHost`` one machine with an agent's core, a disk and the processes that are really there. The fleet knows what no
part of the system knows, and holds every guarantee against it after every step. Nothing reads a clock: time is the
simulation's own, and so a seed replays exactly. What a failing seed did can be made shorter: see ``shrunk``.

``python -m tenure.testing.sim --minutes 10`` runs seed after seed and prints steps, faults by kind, and violations.
"""

from tenure.testing.sim.fleet import SimFleet
from tenure.testing.sim.histories import History, Step, play, shrunk
from tenure.testing.sim.host import SimHost
from tenure.testing.sim.moves import MOVES, RESTORING, move
from tenure.testing.sim.network import SimNetwork
from tenure.testing.sim.truth import Violation, check

__all__ = [
    "MOVES",
    "RESTORING",
    "History",
    "SimFleet",
    "SimHost",
    "SimNetwork",
    "Step",
    "Violation",
    "check",
    "move",
    "play",
    "shrunk",
]
