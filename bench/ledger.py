"""How many job lifecycles a second go through the writer, each synced: submitted, granted, started, ended, released.

    python bench/ledger.py [--devices 4] [--submitters 64] [--seconds 5] [--folder DIR] [--profile] [--json]

A lifecycle is three commands (submit, report of the start, report of the end with the proof), six events. Submitters
wait for the end of their job before they submit the next, as people do. Prints wall time and processor time apart:
on a shared machine only the second says something about the code.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tenure.domain import commands as cmd
from tenure.domain.device import CLEAR
from tenure.domain.instructions import StartJob
from tenure.domain.job import Ending, JobSpec, Outcome
from tenure.ledger import Committed, Ledger, Writer

OUTCOME = Outcome(Ending.EXITED, 0, stats={"cpu_s": 1.25, "max_rss_kb": 102400})
SPEC = JobSpec(
    ("python", "train.py"), cwd="/tmp", env={"PATH": "/usr/bin:/bin", "HOME": "/home/ann", "LANG": "C.UTF-8"}
)


class Load:
    """Submitters and an agent that obeys at once."""

    def __init__(self, ledger: Ledger, devices: int) -> None:
        self.writer = Writer(ledger, self.committed)
        self.devices = devices
        self.ends: dict[str, asyncio.Future[None]] = {}
        self.running: set[asyncio.Task[None]] = set()
        self.done = self.batches = self.submitted = 0

    def committed(self, batch: Sequence[Committed]) -> None:
        self.batches += 1
        for each in batch:
            for agent, told in each.instructions:
                if isinstance(told, StartJob):
                    task = asyncio.create_task(self.run(agent, told))
                    self.running.add(task)
                    task.add_done_callback(self.running.discard)

    async def run(self, agent: str, told: StartJob) -> None:
        tokens = {grant.device: grant.token for grant in told.grants}
        await self.writer.submit(cmd.ReportStarted(agent, told.job, told.attempt, tokens, 4711, "subreaper"))
        proofs = dict.fromkeys(tokens, CLEAR)
        await self.writer.submit(cmd.ReportEnded(agent, told.job, told.attempt, tokens, OUTCOME, 100, proofs))
        self.done += 1
        self.ends.pop(told.job).set_result(None)

    async def submitter(self, until: float) -> None:
        while time.monotonic() < until:
            self.submitted += 1
            job = f"j{self.submitted:08d}"
            end = self.ends[job] = asyncio.get_running_loop().create_future()
            await self.writer.submit(cmd.Submit(job, "ann", SPEC, f"key{job}", "hash"))
            await end

    async def measure(self, submitters: int, seconds: float) -> dict[str, float]:
        """The figures; see ``words`` for what each of them means."""
        async with self.writer:
            await self.writer.submit(cmd.Begin())
            for host in range(0, self.devices, 8):
                offered = tuple(
                    cmd.OfferedDevice(f"h{host}:gpu{n}", f"GPU-{host + n}", "nvidia", False, 0, CLEAR)
                    for n in range(min(8, self.devices - host))
                )
                await self.writer.submit(cmd.Register(f"a{host}", f"h{host}", "b", "n", "i", "ann", offered))
            wall, processor = time.monotonic(), time.process_time()
            until = wall + seconds
            await asyncio.gather(*(self.submitter(until) for _ in range(submitters)))
            wall, processor = time.monotonic() - wall, time.process_time() - processor
        return {
            "devices": self.devices,
            "submitters": submitters,
            "lifecycles_per_s": self.done / wall,
            "processor_us_each": processor / self.done * 1e6,
            "commands_per_commit": self.done * 3 / self.batches,
            "commits_per_s": self.batches / wall,
        }


def words(found: dict[str, float]) -> str:
    """The figures in a line."""
    return (
        f"{found['devices']:.0f} devices, {found['submitters']:.0f} submitters: "
        f"{found['lifecycles_per_s']:,.0f} lifecycles/s; {found['processor_us_each']:.0f} us of processor each "
        f"({1e6 / found['processor_us_each']:,.0f}/s of processor); "
        f"{found['commands_per_commit']:.1f} commands a commit, {found['commits_per_s']:,.0f} commits/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--submitters", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tenure-bench-", dir=chosen.folder) as folder:
        ledger = Ledger.open(Path(folder) / "ledger.db")
        load = Load(ledger, chosen.devices)
        try:
            import uvloop
        except ImportError:
            run = asyncio.run
        else:
            run = uvloop.run
        profile = cProfile.Profile() if chosen.profile else None
        if profile is not None:
            profile.enable()
        found = run(load.measure(chosen.submitters, chosen.seconds))
        print(json.dumps(found) if chosen.json else words(found))
        if profile is not None:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(35)
        ledger.close()


if __name__ == "__main__":
    main()
