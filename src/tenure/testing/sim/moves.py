"""What may happen to a simulated fleet, one small thing at a time, and how often each does."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from tenure.testing.sim.fleet import SimFleet
from tenure.testing.sim.host import SimHost

#: Moves of ordinary life and of every fault, each with its weight.
MOVES: Mapping[str, int] = {
    "submit": 8,
    "cancel": 1,
    "to_agent": 14,
    "to_agent_again": 1,
    "to_controller": 14,
    "to_controller_again": 1,
    "ack": 10,
    "drop": 1,
    "effect": 30,
    "exit": 10,
    "notice": 3,
    "overrun": 1,
    "kill_supervisor": 1,
    "reap": 3,
    "reboot": 1,
    "restart_worker": 1,
    "foreign": 1,
    "look": 6,
    "crash_agent": 1,
    "start_agent": 8,
    "connect": 16,
    "pass_time": 3,
    "cut_up": 1,
    "cut_down": 1,
    "heal": 6,
    "suspend": 1,
    "resume": 8,
    "fill_disk": 1,
    "make_room": 6,
    "wall_clock": 1,
    "break_card": 1,
    "controller_away": 1,
    "crash_controller": 1,
    "operate": 1,
}
#: The same with a controller that comes back from an old copy of its ledger.
RESTORING: Mapping[str, int] = {**MOVES, "restore": 1}

#: Which of them are faults; the others are life.
FAULTS = frozenset(
    {
        "to_agent_again",
        "to_controller_again",
        "drop",
        "kill_supervisor",
        "reboot",
        "restart_worker",
        "foreign",
        "crash_agent",
        "cut_up",
        "cut_down",
        "suspend",
        "fill_disk",
        "wall_clock",
        "break_card",
        "controller_away",
        "crash_controller",
        "restore",
    }
)
_ACTS = ("drain", "resume", "quarantine", "clear", "retire")


def move(fleet: SimFleet, what: str, draw: int) -> None:
    """One move; everything about it that is left open is drawn from ``draw``."""
    rng = random.Random(draw)
    host = fleet.hosts[rng.choice(sorted(fleet.hosts))]
    _MOVE[what](fleet, host, rng)


def _submit(fleet: SimFleet, host: SimHost, rng: random.Random) -> None:
    devices = sorted(fleet.state.devices)
    device = rng.choice(devices) if devices and rng.random() < 0.3 else None
    key = f"k{rng.randrange(6)}" if rng.random() < 0.3 else None
    count = 1 if device or rng.random() < 0.7 else 2
    fleet.submit(device, count, rng.randrange(-2, 3), key, rng.random() < 0.9)


def _cancel(fleet: SimFleet, host: SimHost, rng: random.Random) -> None:
    if fleet.state.jobs:
        fleet.cancel(rng.choice(sorted(fleet.state.jobs)))


def _operate(fleet: SimFleet, host: SimHost, rng: random.Random) -> None:
    if fleet.state.devices:
        fleet.operate(rng.choice(sorted(fleet.state.devices)), rng.choice(_ACTS))


def _start_agent(fleet: SimFleet, host: SimHost, rng: random.Random) -> None:
    if host.agent is None and not host.suspended:
        host.start_agent()


def _connect(fleet: SimFleet, host: SimHost, rng: random.Random) -> None:
    if not host.connected:
        fleet.connect(host.name)


def _suspend(fleet: SimFleet, host: SimHost, rng: random.Random) -> None:
    host.suspended = True


def _resume(fleet: SimFleet, host: SimHost, rng: random.Random) -> None:
    host.suspended = False


def _fill_disk(fleet: SimFleet, host: SimHost, rng: random.Random) -> None:
    host.full = True


def _make_room(fleet: SimFleet, host: SimHost, rng: random.Random) -> None:
    host.full = False
    if host.running is not None:
        host.retry()


def _heal(fleet: SimFleet, host: SimHost, rng: random.Random) -> None:
    fleet.network.cut_up.discard(host.name)
    fleet.network.cut_down.discard(host.name)


def _wall_clock(fleet: SimFleet, host: SimHost, rng: random.Random) -> None:
    fleet.wall = max(1.0, fleet.wall + rng.choice((-7200.0, -30.0, 30.0, 86_400.0)))


def _foreign(fleet: SimFleet, host: SimHost, rng: random.Random) -> None:
    host.foreign ^= {rng.choice(sorted(host.uuids.values()))}


def _break_card(fleet: SimFleet, host: SimHost, rng: random.Random) -> None:
    host.broken ^= {rng.choice(sorted(host.uuids.values()))}


def _reap(fleet: SimFleet, host: SimHost, rng: random.Random) -> None:
    if not host.suspended:
        host.reap_survivors()
        if rng.random() < 0.2:  # what escaped into another namespace ends some day
            host.alive = [process for process in host.alive if process.namespace == host.namespace]


_Move = Callable[[SimFleet, SimHost, random.Random], None]
_MOVE: Mapping[str, _Move] = {
    "submit": _submit,
    "cancel": _cancel,
    "to_agent": lambda f, h, r: f.deliver_to_agent(r.randrange(1 << 16)),
    "to_agent_again": lambda f, h, r: f.deliver_to_agent(r.randrange(1 << 16), keep=True),
    "to_controller": lambda f, h, r: f.deliver_to_controller(r.randrange(1 << 16)),
    "to_controller_again": lambda f, h, r: f.deliver_to_controller(r.randrange(1 << 16), keep=True),
    "ack": lambda f, h, r: f.deliver_ack(r.randrange(1 << 16)),
    "drop": lambda f, h, r: f.drop(r.randrange(1 << 16)),
    "effect": lambda f, h, r: h.step(),
    "exit": lambda f, h, r: h.exit_job(r.randrange(1 << 16), r.randrange(3)),
    "notice": lambda f, h, r: h.bound(r.randrange(1 << 16), reached=False),
    "overrun": lambda f, h, r: h.bound(r.randrange(1 << 16), reached=True),
    "kill_supervisor": lambda f, h, r: h.kill_supervisor(r.randrange(1 << 16)),
    "reap": _reap,
    "reboot": lambda f, h, r: h.reboot(),
    "restart_worker": lambda f, h, r: h.restart_worker(r.random() < 0.3),
    "foreign": _foreign,
    "look": lambda f, h, r: f.report_device(h.name, r.randrange(1 << 16)),
    "crash_agent": lambda f, h, r: h.crash_agent(),
    "start_agent": _start_agent,
    "connect": _connect,
    "pass_time": lambda f, h, r: f.advance(r.choice((0.25, 1.0, 3.0, 25.0))),
    "cut_up": lambda f, h, r: f.network.cut_up.add(h.name),
    "cut_down": lambda f, h, r: f.network.cut_down.add(h.name),
    "heal": _heal,
    "suspend": _suspend,
    "resume": _resume,
    "fill_disk": _fill_disk,
    "make_room": _make_room,
    "wall_clock": _wall_clock,
    "break_card": _break_card,
    "controller_away": lambda f, h, r: f.away(r.choice((2.0, 30.0, 600.0))),
    "crash_controller": lambda f, h, r: f.crash_controller(r.choice((0.0, 60.0, 3600.0))),
    "operate": _operate,
    "restore": lambda f, h, r: f.restore_backup(len(f.log) - r.randrange(40)),
}
