"""Everything that is up while the benches run, in one folder, and taken down whatever happens."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from bench import peers, processes
from bench.program import Stamps, compile_program
from bench.sites.slurm import SlurmSite
from bench.sites.spooler import SpoolerSite
from bench.sites.tenure import TenureSite

SIM = "4xH100"


class World:
    """The products side by side. ``absent`` says of a product that could not be had why; the others go on.

    ``deadline`` (monotonic) is when no further round is begun. ``notes`` are facts found beside the samples.
    """

    def __init__(self, *, quick: bool, minutes: float, install: bool, where: Path | None, without: set[str]) -> None:
        self.quick = quick
        self.deadline = time.monotonic() + minutes * 60
        self.absent: dict[str, str] = dict.fromkeys(without, "left out by --without")
        self.notes: list[dict[str, Any]] = []
        self._install = install
        self._exit = contextlib.ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="tenure-bench-", dir=where))
        self.folder.chmod(0o755)  # munged refuses a socket that not everybody could reach
        self._exit.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._exit.callback(self._end_strays)

    def __enter__(self) -> World:
        try:
            self.stamps = Stamps(self.folder, compile_program(self.folder))
            self._exit.callback(self.stamps.close)
            why = peers.install() if self._install else ""
            if why:
                print(why)
            self.tenure = self.make_tenure("tenure", SIM)
            self.slurm = SlurmSite(self.folder / "slurm")
            self.spooler = SpoolerSite(self.folder / "tsp")
            self._up("tenure", self.tenure)
            self._up("slurm", self.slurm)
            self._up("task-spooler", self.spooler)
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._exit.close()

    def _up(self, name: str, site: TenureSite | SlurmSite | SpoolerSite) -> None:
        if name in self.absent:
            return
        if name != "tenure":  # its own is taken down already
            self._exit.callback(site.down)
        try:
            site.up()
        except Exception as error:
            if name == "tenure":
                raise
            self.absent[name] = f"{error}"
            print(f"{name} is absent: {error}", flush=True)

    def _end_strays(self) -> None:
        processes.end(processes.mentioning(str(self.folder)), mark=str(self.folder))

    def make_tenure(self, name: str, sim: str) -> TenureSite:
        """A home of its own, taken down at the end; not started yet."""
        site = TenureSite(self.folder / name, sim)
        self._exit.callback(site.down)
        return site

    def count(self, samples: int) -> int:
        """So many samples in a round; about a third of them in a quick run."""
        return max(2, samples // 3) if self.quick else samples

    def idle(self, product: str) -> None:
        """Waits until a product has no job left."""
        sites: dict[str, TenureSite | SlurmSite | SpoolerSite]
        sites = {"tenure": self.tenure, "slurm": self.slurm, "task-spooler": self.spooler}
        sites[product].idle(120.0)

    def clear(self, product: str) -> None:
        """Ends whatever jobs a product still has, after something went wrong with one of them."""
        if product == "tenure":
            for job in self.tenure.client.jobs(state="open", limit=1000):
                self.tenure.client.stop(job.id, "its measurement failed")
        elif product == "slurm":
            self.slurm.run("scancel", "-u", "root")
        else:
            return
        self.idle(product)

    def note(self, kind: str, body: dict[str, Any]) -> None:
        """Keeps a fact beside the samples."""
        self.notes.append({"kind": kind, **body})

    def versions(self) -> dict[str, str]:
        """The product versions that take part."""
        return {
            "tenure": self.tenure.version,
            "slurm": self.absent.get("slurm", self.slurm.version),
            "task-spooler": self.absent.get("task-spooler", self.spooler.version),
        }
