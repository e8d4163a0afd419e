"""What the contract tests of the ledger share: the stores they hold to it, and a small fleet to write about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenure.domain import commands as cmd
from tenure.domain.device import CLEAR, Condition, DeviceState
from tenure.domain.job import Ending, JobSpec, JobState, Lease, Outcome
from tenure.domain.state import FleetState
from tenure.ledger import Ledger

EXITED = Outcome(Ending.EXITED, 0, stats={"cpu_s": 0.25, "max_rss_kb": 1024})
T0 = 1_750_000_000.25


@dataclass(frozen=True)
class Store:
    """One ledger's place: ``open`` opens it, and opens the same one again."""

    name: str
    open: Callable[[], Ledger]


def sqlite_store(folder: Path) -> Store:
    return Store("sqlite", lambda: Ledger.open(folder / "ledger" / "ledger.db"))


#: Every store has to pass the same tests: name -> maker, given an empty folder.
STORES: dict[str, Callable[[Path], Store]] = {"sqlite": sqlite_store}


def register(host: str = "h", devices: int = 2, *, boot: str = "b1", **fields: Any) -> cmd.Register:
    """A host's agent comes up with so many GPUs, all seen empty unless ``condition`` says otherwise."""
    condition = fields.pop("condition", CLEAR)
    labels = {
        "vram": {"value": "80G", "source": "detected", "at": 1.5},
        "mode": {"unknown": "n/a", "source": "declared", "at": 2.0},
    }
    facts = {"model": "H100", "mig": [1, {"a": None}]}
    offered = tuple(
        cmd.OfferedDevice(f"{host}:gpu{n}", f"GPU-{host}-{n}", "nvidia", False, 0, condition, labels, facts)
        for n in range(devices)
    )
    return cmd.Register(f"a-{host}", host, boot, "ns", "i1", "ann", offered, facts={"kernel": "6.1"}, **fields)


def submit(job: str, **fields: Any) -> cmd.Submit:
    """A job for any one device; fields of the specification and of the command by name."""
    command = {name: fields.pop(name) for name in ("owner", "key", "body_hash", "wait") if name in fields}
    argv = fields.pop("argv", ("python", "train.py"))
    return cmd.Submit(job, command.pop("owner", "ann"), JobSpec(argv, env={"A": "b"}, **fields), **command)


def tokens_of(leases: list[Lease]) -> dict[str, int]:
    return {lease.device: lease.token for lease in leases}


def started(state: FleetState, job: str) -> cmd.ReportStarted:
    """The agent's true report that the current attempt of a job runs."""
    found = state.jobs[job]
    leases = state.live_leases(job, found.attempt)
    return cmd.ReportStarted(leases[0].agent, job, found.attempt, tokens_of(leases), 4711, "cgroup2")


def ended(state: FleetState, job: str, seen: Condition | None = CLEAR, outcome: Outcome = EXITED) -> cmd.ReportEnded:
    """The agent's true report of an end; ``seen`` is what it found on the devices, ``None``: it has yet to look."""
    found = state.jobs[job]
    leases = state.live_leases(job, found.attempt)
    proofs = {} if seen is None else {lease.device: seen for lease in leases}
    use = {"verdict": "used", "devices": [{"n": 1.5}]}
    return cmd.ReportEnded(leases[0].agent, job, found.attempt, tokens_of(leases), outcome, 12, proofs, use)


KINDS = ["submit", "ended", "started", "submit", "cancel", "refused", "begin"]
KINDS += ["device", "register", "silence", "use", "expire", "operate"]


def any_command(state: FleetState, dice: int, number: int) -> cmd.Command:
    """Some command, true or false, fresh or stale, for a fleet of two hosts with two devices each.

    ``dice`` chooses all of it, so that a failing run shrinks to small numbers; ``number`` names a new job.
    """

    def pick(options: list[Any]) -> Any:
        nonlocal dice
        dice, index = divmod(dice, len(options))
        return options[index]

    condition = [CLEAR, Condition("occupied", "somebody", ("pid 7 (root)",)), Condition("unknown", "no_permission")]
    proofs: list[Condition | None] = [CLEAR, None, Condition("dirty", "300 MiB left"), *condition[1:]]
    proofs += [Condition("fault", "gpu_lost")]
    jobs = sorted(state.jobs)
    alive = [job for job in jobs if state.jobs[job].attempt]
    what = pick(KINDS)
    if what == "submit" or not (alive or what in ("register", "silence", "device", "begin", "operate")):
        key = pick([None, None, f"k{number}", "k1", "k2"])
        spec = {"device": pick([None, None, "h:gpu0"]), "count": pick([1, 1, 2]), "priority": pick([0, 0, 3])}
        spec |= {"select": pick(["", "vram>=40G"])}
        if spec["device"] is not None:
            spec |= {"count": 1}
        return submit(f"j{number}", key=key, body_hash=pick(["x", "y"]), wait=pick([True, True, False]), **spec)
    if what == "begin":
        return cmd.Begin()
    host = pick(["h", "g"])
    if what == "register":
        held = [cmd.KnownAttempt(job, state.jobs[job].attempt + pick([0, 0, 2]), {}) for job in alive[:2]]
        known = tuple(held[: pick([0, 2])])
        return register(host, pick([2, 2, 1]), boot=pick(["b1", "b2"]), condition=pick(condition), known=known)
    if what == "silence":
        return cmd.LoseContact(f"a-{host}", 15.5)
    if what == "operate":
        act = pick(["drain", "resume", "quarantine", "clear", "retire"])
        return cmd.Operate(f"{host}:gpu{pick([0, 1])}", act, "root", "because")
    if what == "device":
        name = f"{host}:gpu{pick([0, 1])}"
        device = state.devices.get(name)
        return cmd.ReportDevice(f"a-{host}", name, device.token if device else 0, pick(condition))
    if what == "cancel":
        return cmd.Cancel(pick(jobs), "bob", pick(["", "wrong data"]))
    if what == "expire":
        return cmd.ExpireQueued(pick(jobs), 5.0)
    job = pick(alive)
    attempt = state.jobs[job].attempt
    leases = state.live_leases(job, attempt)
    agent = leases[0].agent if leases else "a-h"
    tokens = {device: token - pick([0, 0, 0, 1]) for device, token in tokens_of(leases).items()}
    if what == "started":
        return cmd.ReportStarted(agent, job, attempt, tokens, 99)
    if what == "use":
        return cmd.ReportUse(agent, job, attempt, tokens, {"verdict": pick(["unknown", "no_context"])})
    seen = pick(proofs)
    found = {} if seen is None else {lease.device: seen for lease in leases}
    if what == "refused":
        return cmd.ReportRefused(agent, job, attempt, tokens, "fence", found)
    outcome = pick([EXITED, Outcome(Ending.SIGNALED, None, 9), Outcome(Ending.LOST, cause="host_rebooted")])
    return cmd.ReportEnded(
        agent, job, attempt, tokens, outcome, pick([None, 0, 5]), found, pick([None, {"verdict": "used"}])
    )


async def until(holds: Callable[[], object], seconds: float = 10.0) -> None:
    """Returns once something holds; fails where it does not within the time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        await asyncio.sleep(0.005)


def queued(state: FleetState) -> list[str]:
    return sorted(job.id for job in state.jobs.values() if job.state is JobState.QUEUED)


def ready(state: FleetState) -> list[str]:
    return sorted(name for name, device in state.devices.items() if device.state is DeviceState.READY)
