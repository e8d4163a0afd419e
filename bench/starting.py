"""Submission to process start: from right before the submission to the first instruction of the submitted program.

The program says itself when that was; the same one for every product. One job at a time, each after the one before
is over and the device free again.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.rows import Row
from bench.sites.tenure import RC, SIMULATED

if TYPE_CHECKING:
    from bench.world import World

PAUSE_S = 0.02


def rows(world: World) -> list[Row]:
    """The floor (the same program started by this process) and every client of every product."""
    found = [Row("start", "limit", "fork+exec from this process", "none", "ms", lambda: _limit(world))]
    simulated = {"select": SIMULATED}
    found.append(
        Row("start", "tenure", "SDK, kept connection; simulated GPU", "durable", "ms", lambda: _sdk(world, simulated))
    )
    cpu, words = world.tenure.cpu()
    where = {"device": cpu}
    found.append(
        Row("start", "tenure", "SDK, kept connection; CPU device", "durable", "ms", lambda: _sdk(world, where))
    )
    if not cpu:
        found[-1].absent = f"the CPU device is not free: {words}"
    command = [RC, "run", "-q", "--select", SIMULATED, "--"]
    found.append(Row("start", "tenure", "rc run; simulated GPU", "durable", "ms", lambda: _rc(world, command)))
    for client in ("sbatch", "srun", "salloc"):
        found.append(Row("start", "slurm", f"{client} --gres=gpu:1", "later", "ms", _slurm(world, client)))
    found[-1].note = "the command runs beside salloc, not on the node"
    found.append(Row("start", "task-spooler", "tsp", "memory", "ms", lambda: _spooler(world)))
    for row in found:
        row.group = "start"
    return found


def _sampled(world: World, count: int, one: Callable[[str], int]) -> list[float]:
    """``one`` submits the job of a tag and gives the time right before it did."""
    values = []
    for _ in range(count):
        tag = world.stamps.tag()
        began = one(tag)
        values.append((world.stamps.wait(tag) - began) / 1e6)
        time.sleep(PAUSE_S)
    return values


def _limit(world: World) -> list[float]:
    def one(tag: str) -> int:
        argv = world.stamps.argv(tag)
        began = time.monotonic_ns()
        subprocess.run(argv, check=True, timeout=30)
        return began

    return _sampled(world, world.count(20), one)


def _sdk(world: World, where: dict[str, str]) -> list[float]:
    client = world.tenure.client

    def one(tag: str) -> int:
        argv = world.stamps.argv(tag)
        began = time.monotonic_ns()
        job = client.submit(argv, device=where.get("device"), select=where.get("select", ""))
        client.wait(job.id)
        return began

    return _sampled(world, world.count(20), one)


def _rc(world: World, command: list[str]) -> list[float]:
    def one(tag: str) -> int:
        argv = [*command, *world.stamps.argv(tag)]
        began = time.monotonic_ns()
        subprocess.run(argv, env=world.tenure.env, check=True, timeout=60, stdin=subprocess.DEVNULL)
        return began

    return _sampled(world, world.count(10), one)


def _slurm(world: World, client: str) -> Callable[[], list[float]]:
    def one(tag: str) -> int:
        argv = world.stamps.argv(tag)
        if client == "sbatch":
            words = ["sbatch", "-o", "/dev/null", "--gres=gpu:1", "--wrap", f"exec {' '.join(argv)}"]
        elif client == "srun":
            words = ["srun", "--immediate=10", "--gres=gpu:1", *argv]
        else:
            words = ["salloc", "-Q", "--immediate=10", "--gres=gpu:1", *argv]
        began = time.monotonic_ns()
        world.slurm.run(*words)
        world.slurm.idle()
        return began

    return lambda: _sampled(world, world.count(3 if client == "sbatch" else 6), one)


def _spooler(world: World) -> list[float]:
    def one(tag: str) -> int:
        argv = world.stamps.argv(tag)
        began = time.monotonic_ns()
        number = world.spooler.tsp(*argv)
        world.spooler.tsp("-w", number)
        return began

    return _sampled(world, world.count(20), one)
