"""Whole commands as a person waits for them, and the limits of the machine that nothing can beat."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from bench.rows import Row, timed_ms
from bench.sites.tenure import RC, SIMULATED, TenureSite

if TYPE_CHECKING:
    from bench.world import World

BLOCK = b"x" * 4096


def rows(world: World) -> list[Row]:
    """Commands with everything up and warm, each from its start to its end."""
    site = world.tenure
    found = [
        _command(world, "limit", "python -c pass", "none", [sys.executable, "-c", "pass"], None),
        _command(world, "limit", "python -I -S -c pass", "none", [sys.executable, "-I", "-S", "-c", "pass"], None),
        _command(world, "limit", "fork+exec+wait", "none", [world.stamps.program], None),
        _command(world, "tenure", "rc run -- true", "durable", [RC, "run", "--", "true"], site.env),
        _command(
            world,
            "tenure",
            "rc run --select simulated=true -- true",
            "durable",
            [RC, "run", "--select", SIMULATED, "--", "true"],
            site.env,
        ),
        _command(world, "tenure", "rc devices", "none", [RC, "devices"], site.env),
        Row(
            "command",
            "slurm",
            "srun --immediate --gres=gpu:1 true",
            "later",
            "ms",
            lambda: _slurm(world, ["srun", "--immediate=10", "--gres=gpu:1", "true"]),
        ),
        Row("command", "slurm", "sinfo", "none", "ms", lambda: _slurm(world, ["sinfo"])),
        _command(world, "task-spooler", "tsp -nf true", "memory", ["tsp", "-nf", "true"], world.spooler.env),
        _command(world, "task-spooler", "tsp", "none", ["tsp"], world.spooler.env),
    ]
    plain = found[3]
    inner = plain.take

    def noted() -> list[float]:
        values = inner()
        plain.note = f"on {', '.join(site.client.jobs(limit=1)[0].devices)}"
        return values

    plain.take = noted
    for row in found:
        row.group = "look" if row.client in ("rc devices", "sinfo", "tsp") else "run"
    return found


def _command(
    world: World, product: str, name: str, durability: str, words: Sequence[str], env: Mapping[str, str] | None
) -> Row:
    return Row("command", product, name, durability, "ms", lambda: [_once(words, env) for _ in range(world.count(10))])


def _once(words: Sequence[str], env: Mapping[str, str] | None) -> float:
    def run() -> None:
        subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)

    return timed_ms(run)


def _slurm(world: World, words: list[str]) -> list[float]:
    values = []
    for _ in range(world.count(6)):
        values.append(_once(words, world.slurm.env))
        world.slurm.idle()
    return values


def cold_rows(world: World) -> list[Row]:
    """``rc run -- true`` with nothing running: it starts the controller, which starts the agent."""
    site = world.make_tenure("cold", "1xH100")
    site.up()
    site.down()
    words = [RC, "run", "--select", SIMULATED, "--", "true"]
    name = "rc run --select simulated=true -- true, nothing running"
    return [Row("cold", "tenure", name, "durable", "ms", _cold(site, words), "files in the page cache", most=3)]


def _cold(site: TenureSite, words: list[str]) -> Callable[[], list[float]]:
    def take() -> list[float]:
        try:
            return [_once(words, site.env)]
        finally:
            site.down()

    return take


def limit_rows(world: World) -> list[Row]:
    """What the disk of the state can do."""
    row = Row("limit", "limit", "append 4 KiB, fdatasync", "durable", "ms", lambda: fdatasyncs(world, 100))
    return [row]


def fdatasyncs(world: World, count: int) -> list[float]:
    """How long one fdatasync takes on the file system of the state, after an append of 4 KiB, in ms."""
    path = world.folder / "synced"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        values = []
        for _ in range(count):
            os.write(fd, BLOCK)
            values.append(timed_ms(lambda: os.fdatasync(fd)))
        return values
    finally:
        os.close(fd)
        path.unlink()
