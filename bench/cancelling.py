"""From the call that cancels to the device being free again, less the grace, for a job that ignores SIGTERM.

Two ways to see it: the product says that the device is free (asked again and again), and a job that waits for that
device starts (the job says so itself, which is the same for every product).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench import processes
from bench.rows import Row
from bench.sites import slurm

if TYPE_CHECKING:
    from bench.world import World

GRACE_S = 1.0
SPOOLER = "tsp -k sends SIGTERM and nothing after it: what ignores that runs on"


def rows(world: World) -> list[Row]:
    """Every product that ends a job whatever it does."""
    found = [
        Row("cancel", "tenure", "SDK; shown as free", "durable", "s", lambda: _shown(world), most=3),
        Row("cancel", "tenure", "SDK; the next job has started", "durable", "s", lambda: _next(world), most=3),
        Row("cancel", "slurm", "scancel; shown as idle", "later", "s", lambda: _slurm_shown(world), most=2),
        Row("cancel", "slurm", "scancel; the next job has started", "later", "s", lambda: _slurm_next(world), most=2),
        Row("cancel", "task-spooler", "tsp -k", "memory", "s", list, absent=SPOOLER),
    ]
    for row in found:
        row.group = "next" if "next" in row.client else "shown"
    return found


def _tenure(world: World) -> tuple[str, str]:
    """A job on a device of its own that ignores SIGTERM, once it does; and its device."""
    device = world.tenure.simulated()[0]
    tag = world.stamps.tag()
    job = world.tenure.client.submit(world.stamps.argv(tag, "stubborn"), device=device, grace_s=GRACE_S)
    world.stamps.wait(tag)
    # Its start is to have been reported and recorded: what is cancelled is a running job.
    processes.until(lambda: world.tenure.client.job(job.id).state == "running", "it runs", timeout_s=10)
    return job.id, device


def _shown(world: World) -> list[float]:
    job, device = _tenure(world)
    client = world.tenure.client
    began = time.monotonic()
    client.stop(job)
    processes.until(lambda: client.device(device).free, "its device is free", timeout_s=60, every_s=0.005)
    return [time.monotonic() - began - GRACE_S]


def _next(world: World) -> list[float]:
    job, device = _tenure(world)
    tag = world.stamps.tag()
    world.tenure.client.submit(world.stamps.argv(tag), device=device)
    began = time.monotonic_ns()
    world.tenure.client.stop(job)
    started = world.stamps.wait(tag)
    world.tenure.idle()
    return [(started - began) / 1e9 - GRACE_S]


def _slurm_job(world: World) -> str:
    tag = world.stamps.tag()
    job = _submit(world, tag, "stubborn")
    world.stamps.wait(tag)
    return job


def _submit(world: World, tag: str, *words: str) -> str:
    script = f"exec {' '.join(world.stamps.argv(tag, *words))}"
    where = ("-w", world.slurm.names[0], "--gres=gpu:1")
    return world.slurm.run("sbatch", "--parsable", "-o", "/dev/null", *where, "--wrap", script)


def _slurm_shown(world: World) -> list[float]:
    job = _slurm_job(world)
    site = world.slurm
    began = time.monotonic()
    site.run("scancel", job)
    asked = ("sinfo", "-h", "-n", site.names[0], "-o", "%t")
    processes.until(lambda: site.run(*asked) == "idle", "its node is idle", timeout_s=60)
    return [time.monotonic() - began - slurm.GRACE_S]


def _slurm_next(world: World) -> list[float]:
    job = _slurm_job(world)
    tag = world.stamps.tag()
    _submit(world, tag)
    began = time.monotonic_ns()
    world.slurm.run("scancel", job)
    started = world.stamps.wait(tag)
    world.slurm.idle()
    return [(started - began) / 1e9 - slurm.GRACE_S]
