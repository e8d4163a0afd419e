"""How long a start takes, from the request to the first instruction of the command, and what a supervisor weighs.

    python bench/supervisor_start.py [starts]

The command is a small C program that writes the monotonic clock, so its own loading is part of the figure.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tenure.agent import cgroups
from tenure.agent.adopt import Handle
from tenure.agent.spawner import Spawner

CLOCK = """
#include <stdio.h>
#include <time.h>
int main(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); printf("%ld.%09ld", t.tv_sec, t.tv_nsec); }
"""


def prepare(root: Path, number: int, argv: list[str], cgroup_parent: str | None) -> Path:
    """An attempt's folder with its spec.json."""
    folder = root / f"b{number}.1"
    folder.mkdir()
    spec = {"v": 1, "job": f"b{number}", "attempt": 1, "argv": argv, "cwd": "/", "env": {}, "grace_s": 1.0}
    (folder / "spec.json").write_text(json.dumps(spec | {"cgroup_parent": cgroup_parent, "nudge": None}))
    return folder


def show(what: str, seconds: list[float]) -> None:
    """One line: median, 95th percentile and maximum in ms."""
    ordered = sorted(s * 1e3 for s in seconds)
    p95 = ordered[int(len(ordered) * 0.95) - 1]
    print(f"{what:58} p50 {statistics.median(ordered):6.2f}  p95 {p95:6.2f}  max {ordered[-1]:6.2f} ms")


def memory_of(pid: int | None) -> dict[str, int]:
    """The sizes of /proc/PID/smaps_rollup, in KiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


async def measure(root: Path, clock: str, starts: int, parent: str | None, pause_s: float) -> None:
    """Starts one after another, each a pause after the one before has ended."""
    spawner = Spawner()
    await spawner.open()
    to_reply, to_command, to_end = [], [], []
    for number in range(starts + 1):
        folder = prepare(root, number, [clock], parent)
        await asyncio.sleep(pause_s)
        began = time.monotonic()
        started = await spawner.start(folder)
        to_reply.append(time.monotonic() - began)
        handle = Handle.open(folder, started.pid, started.start_ticks)
        if handle is not None:
            with handle:
                await handle.wait_gone()
        to_end.append(time.monotonic() - began)
        to_command.append(float((folder / "output.bin").read_text()) - began)
    name = f"{'cgroup2' if parent else 'subreaper'}, {pause_s * 1e3:.0f} ms apart"
    show(f"{name}: to the command's first instruction", to_command[1:])  # the first waits for Python to start
    show(f"{name}: to the agent's reply", to_reply[1:])
    show(f"{name}: to the supervisor's end", to_end[1:])
    started = await spawner.start(prepare(root, starts + 1, ["/bin/sleep", "1000"], parent))
    for what, pid in (("spawner", spawner.pid), ("supervisor", started.pid)):
        sizes = memory_of(pid)
        print(f"{what:58} Rss {sizes['Rss']}  Pss {sizes['Pss']}  Private_Dirty {sizes['Private_Dirty']} KiB")
    handle = Handle.open(root, started.pid, started.start_ticks)
    if handle is not None:
        with handle:
            handle.kill()
            await handle.wait_gone()
    await spawner.close()


def main() -> None:
    starts = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(f"{starts} starts, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    for parent, pause_s in ((None, 0.01), (None, 0.0), (cgroups.probe().parent, 0.01)):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "clock.c").write_text(CLOCK)
            subprocess.run(["cc", "-O1", "-static", "-o", root / "clock", root / "clock.c"], check=True, timeout=60)
            asyncio.run(measure(root, str(root / "clock"), starts, parent, pause_s))


if __name__ == "__main__":
    main()
