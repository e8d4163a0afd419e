"""What the standing processes weigh, and what it costs that they watch jobs which do nothing.

Cost is CPU time of every process of the product, its helpers and supervisors included, over one window in which the
products are looked at side by side. Memory is Pss, which shares out what several processes map.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench import processes
from bench.rows import Row
from bench.sites.tenure import ENDED, SIMULATED, TenureSite

if TYPE_CHECKING:
    from bench.world import World

JOBS = 8
SLURM_NOTE = "it samples no job as configured (jobacct_gather/none)"


def memory_rows(world: World) -> list[Row]:
    """One row for each kind of process, and the sum."""
    found = []
    for product, daemons in (
        ("tenure", world.tenure.daemons),
        ("slurm", world.slurm.daemons),
        ("task-spooler", world.spooler.daemons),
    ):
        take = _total(daemons)
        found.append(Row("memory", product, "all standing processes", "none", "MiB Pss", take, most=1, group="all"))
        if product not in world.absent:
            roles = sorted(set(daemons().values()) - {ENDED})
            for role in roles if len(roles) > 1 else ():
                count = list(daemons().values()).count(role)
                name = f"{role} (x{count})" if count > 1 else role
                found.append(Row("memory", product, name, "none", "MiB Pss", _total(daemons, role), most=1))
    return found


def _total(daemons: Callable[[], dict[int, str]], only: str = "") -> Callable[[], list[float]]:
    def take() -> list[float]:
        chosen = [pid for pid, role in daemons().items() if only in ("", role)]
        return [sum(processes.memory_kib(pid).get("Pss", 0) for pid in chosen) / 1024]

    return take


class Watch:
    """One window over all products at once; each row then takes its own figure from it."""

    def __init__(self, world: World, site: TenureSite) -> None:
        self.world, self.site = world, site
        self.figures: dict[tuple[int, str], float] = {}
        self.rows: dict[tuple[int, str], Row] = {}

    def figure(self, members: int, what: str) -> list[float]:
        """The figure of one row; the first that asks for a load waits for its window."""
        if (members, what) not in self.figures:
            self._window(members)
        return [self.figures[members, what]]

    def _window(self, members: int) -> None:
        world = self.world
        tags = self._load(members)
        try:
            # What a start costs is no cost of watching: so it begins a little after the last of them.
            time.sleep(2.0 if world.quick else 5.0)
            groups = {"tenure": self.site.daemons, "tenure supervisors": self.site.supervisors}
            if "slurm" not in world.absent:
                groups |= {"slurm": world.slurm.daemons, "slurm supervisors": world.slurm.supervisors}
            before = {name: _spent(who()) for name, who in groups.items()}
            began = time.monotonic()
            time.sleep(10.0 if world.quick else 60.0)
            span = time.monotonic() - began
            for name, who in groups.items():
                now = who()
                shares = _shares(before[name], _spent(now), span)
                self.figures[members, name] = sum(shares.values())
                world.note("watching", {"of": name, "members": members, "seconds": span, "percent_by_role": shares})
                if name == "tenure":
                    words = ", ".join(f"{role} {share:.2f}" for role, share in shares.items() if share)
                    self.rows[members, name].note = f"{JOBS} simulated GPUs; {words}"
                elif name.endswith("supervisors"):
                    sizes = [processes.memory_kib(pid).get("Pss", 0) for pid in now]
                    world.note("supervisors", {"of": name, "members": members, "pss_kib": sizes})
        finally:
            self._end()
            world.stamps.forget(tags)

    def _load(self, members: int) -> list[str]:
        """Jobs of so many processes each; zero for none."""
        tags: list[str] = []
        if members:
            for _ in range(JOBS):
                tags.append(self.world.stamps.tag())
                self.site.client.submit(self.world.stamps.argv(tags[-1], "tree", str(members)), select=SIMULATED)
            if "slurm" not in self.world.absent:
                for _ in range(JOBS):
                    tags.append(self.world.stamps.tag())
                    script = f"exec {' '.join(self.world.stamps.argv(tags[-1], 'tree', str(members)))}"
                    self.world.slurm.run("sbatch", "-o", "/dev/null", "--wrap", script)
            self.world.stamps.wait_all(list(tags), 120.0)
        return tags

    def _end(self) -> None:
        for job in self.site.client.jobs(state="open"):
            self.site.client.stop(job.id)
        self.site.idle()
        if "slurm" not in self.world.absent:
            self.world.slurm.run("scancel", "--signal=KILL", "-u", "root")
            self.world.slurm.run("scancel", "-u", "root")
            self.world.slurm.idle()


def _spent(daemons: dict[int, str]) -> dict[str, float]:
    """CPU seconds by role."""
    found: dict[str, float] = {}
    for pid, role in daemons.items():
        found[role] = found.get(role, 0.0) + processes.cpu_seconds([pid])
    return found


def _shares(before: dict[str, float], after: dict[str, float], span: float) -> dict[str, float]:
    """Per cent of a core by role. What a process spent that ended is with the parent that collected it: the sum over
    all roles holds, and a role whose last process has ended shows what moved away as a negative share."""
    roles = sorted(before.keys() | after.keys())
    return {role: 100 * (after.get(role, 0.0) - before.get(role, 0.0)) / span for role in roles}


def watch_rows(world: World) -> list[Row]:
    """No jobs, 8 jobs of 4 processes, 8 jobs of 25 processes."""
    site = world.make_tenure("watch", f"{JOBS}xH100")
    site.up()
    watch = Watch(world, site)
    found = []
    for members in (0, 4, 25):
        load = f"{JOBS} jobs x {members} processes" if members else "no jobs"
        for product in ("tenure", "slurm"):
            for part in ("", " supervisors") if members else ("",):
                name = f"{load}; {'supervisors' if part else 'standing processes'}"
                take = _figure(watch, members, product + part)
                note = SLURM_NOTE if product == "slurm" else f"{JOBS} simulated GPUs"
                row = Row("watch", product, name, "none", "% of a core", take, note, most=1, group=name)
                watch.rows[members, product + part] = row
                found.append(row)
    return found


def _figure(watch: Watch, members: int, what: str) -> Callable[[], list[float]]:
    return lambda: watch.figure(members, what)
