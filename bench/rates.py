"""Jobs per second: so many trivial jobs, from right before the first submission to the start of the last one.

Every device runs one job at a time, so the last start has waited for all ends but the last few. The clients are named:
a loop of one client waits for each answer before it submits the next.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.rows import Row
from bench.sites.tenure import SIMULATED

if TYPE_CHECKING:
    from bench.world import World

CLIENTS = 8


def rows(world: World) -> list[Row]:
    """One device and four of them; Slurm also without devices, where its scheduler has least to do."""
    found = []
    jobs = 500 if not world.quick else 60
    for devices in (4, 1):
        where = f"{devices} simulated GPU{'s' * (devices > 1)}"
        for clients in (1, CLIENTS):
            who = "SDK, 1 client" if clients == 1 else f"SDK, {clients} clients"
            found.append(_row(world, "tenure", f"{who}; {where}", jobs, _tenure(world, devices, clients)))
        few = (24 if devices == 4 else 8) if world.quick else (60 if devices == 4 else 16)
        found.append(_row(world, "slurm", f"sbatch loop; {devices} GRES", few, _slurm(world, devices)))
        found.append(
            _row(world, "task-spooler", f"tsp loop; {devices} slot{'s' * (devices > 1)}", jobs, _tsp(world, devices))
        )
    found.append(_row(world, "slurm", "sbatch loop; no device, 24 CPUs", jobs, _slurm(world, 0)))
    found.append(_row(world, "slurm", "sbatch array; no device, 24 CPUs", jobs, _array(world)))
    return found


def _row(world: World, product: str, client: str, jobs: int, run: Callable[[int], list[str]]) -> Row:
    durability = {"tenure": "durable", "slurm": "later", "task-spooler": "memory"}[product]

    def take() -> list[float]:
        began = time.monotonic_ns()
        tags = run(jobs)
        last = max(world.stamps.wait_all(tags, 300.0))
        world.idle(product)
        return [jobs / ((last - began) / 1e9)]

    group = "one" if " 1 " in client.partition(";")[2] else "four"
    return Row("rate", product, client, durability, "jobs/s", take, f"{jobs} jobs", "higher", 3, group=group)


def _tenure(world: World, devices: int, clients: int) -> Callable[[int], list[str]]:
    def run(jobs: int) -> list[str]:
        tags = [world.stamps.tag() for _ in range(jobs)]
        device = world.tenure.simulated()[0] if devices == 1 else None
        select = "" if device else SIMULATED
        failed: list[BaseException] = []

        def submit(mine: list[str]) -> None:
            try:
                with world.tenure.new_client() as client:
                    for tag in mine:
                        client.submit(world.stamps.argv(tag), device=device, select=select)
            except BaseException as error:
                failed.append(error)

        if clients == 1:
            submit(tags)
        else:
            threads = [threading.Thread(target=submit, args=(tags[nth::clients],)) for nth in range(clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(300.0)
        if failed:
            raise failed[0]
        return tags

    return run


def _slurm(world: World, devices: int) -> Callable[[int], list[str]]:
    def run(jobs: int) -> list[str]:
        tags = [world.stamps.tag() for _ in range(jobs)]
        where = {0: [], 1: ["-w", world.slurm.names[0], "--gres=gpu:1"], 4: ["--gres=gpu:1"]}[devices]
        for tag in tags:
            script = f"exec {' '.join(world.stamps.argv(tag))}"
            world.slurm.run("sbatch", "-o", "/dev/null", *where, "--wrap", script)
        return tags

    return run


def _array(world: World) -> Callable[[int], list[str]]:
    def run(jobs: int) -> list[str]:
        series = world.stamps.tag()
        script = f"exec {' '.join(world.stamps.argv(f'{series}a'))}$SLURM_ARRAY_TASK_ID"
        world.slurm.run("sbatch", "-o", "/dev/null", f"--array=0-{jobs - 1}", "--wrap", script)
        return [f"{series}a{number}" for number in range(jobs)]

    return run


def _tsp(world: World, devices: int) -> Callable[[int], list[str]]:
    def run(jobs: int) -> list[str]:
        world.spooler.slots(devices)
        tags = [world.stamps.tag() for _ in range(jobs)]
        for tag in tags:
            subprocess.run(
                ["tsp", *world.stamps.argv(tag)],
                env=world.spooler.env,
                stdout=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
                timeout=60,
                check=True,
            )
        return tags

    return run
