"""Tenure with its own home: controller and agent as a user has them, authentication and proof of release on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench import processes
from tenure import __version__
from tenure.errors import TenureError
from tenure.paths import layout
from tenure.sdk import Client

RC = str(Path(sys.executable).with_name("rc"))
SIMULATED = "simulated=true"
DURABILITY = "durable"
ENDED = "ended, not collected"


class TenureSite:
    """``up`` starts controller and agent with simulated devices; ``down`` ends every job and both of them."""

    def __init__(self, home: Path, sim: str) -> None:
        self.home, self.sim = home, sim
        self.paths = layout(home)
        self.env = {**os.environ, "TENURE_HOME": str(home)}
        self._client: Client | None = None

    @property
    def version(self) -> str:
        """The version that was measured."""
        return __version__

    @property
    def client(self) -> Client:
        """The client in this process; its connection stays open."""
        if self._client is None:
            self._client = self.new_client()
        return self._client

    def new_client(self) -> Client:
        """A client with a connection of its own, for a thread of its own."""
        return Client(str(self.paths.ctl_sock), timeout_s=120.0)

    def rc(self, *words: str, timeout_s: float = 90.0) -> subprocess.CompletedProcess[bytes]:
        """One ``rc`` command to its end; raises where it fails."""
        return subprocess.run(
            [RC, *words], env=self.env, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout_s, check=True
        )

    def up(self) -> None:
        """Starts everything and waits until the simulated devices are free."""
        self.rc("up", "--sim", self.sim)
        wanted = int(self.sim.partition("x")[0])
        processes.until(lambda: len(self.simulated()) >= wanted, "its devices are free", timeout_s=30)

    def simulated(self) -> list[str]:
        """The names of the simulated devices that are free now."""
        return [device.name for device in self.client.devices() if device.free and device.simulated]

    def cpu(self) -> tuple[str, str]:
        """The name of the CPU device where it is free, else nothing; and its state in words."""
        for device in self.client.devices():
            if device.kind == "cpu":
                return (device.name if device.free else ""), device.words
        return "", "this agent offers none"

    def idle(self, timeout_s: float = 60.0) -> None:
        """Waits until no job is open."""
        processes.until(lambda: not self.client.jobs(state="open", limit=1), "no job is open", timeout_s=timeout_s)

    def daemons(self) -> dict[int, str]:
        """Every process of controller and agent, with what it is. Supervisors of jobs are nobody's children."""
        locks = {"controller": self.paths.controller_lock, "agent": self.paths.agent_lock}
        roots = {int(path.read_text()): name for name, path in locks.items()}
        return {pid: _role(pid, roots) for pid in processes.descendants(roots)}

    def supervisors(self) -> dict[int, str]:
        """The supervisors of the attempts that run now."""
        found = {}
        for record in self.paths.attempts.glob("*/supervisor.json"):
            if not (record.parent / "exit.json").exists():
                pid = int(json.loads(record.read_bytes())["pid"])
                if not processes.gone(pid):
                    found[pid] = "supervisor"
        return found

    def down(self) -> None:
        """Ends jobs, controller and agent; what is left after that is killed."""
        try:
            if processes.mentioning(str(self.home)):
                for job in self.client.jobs(state="open", limit=1000):
                    self.client.stop(job.id, "the bench is over")
                self.idle(30.0)
                self.rc("down", "--leave")
        except (TenureError, TimeoutError, subprocess.SubprocessError) as error:
            print(f"{self.home.name} did not go down by itself and is ended: {error}", flush=True)
        finally:
            if self._client is not None:
                self._client.close()
                self._client = None
            left = {*processes.mentioning(str(self.home)), *self.supervisors()}
            processes.end(left, mark=str(self.home))


def _role(pid: int, roots: dict[int, str]) -> str:
    if pid in roots:
        return roots[pid]
    if processes.gone(pid):
        return ENDED
    words = processes.command(pid)
    for mark, role in (("nvml_worker", "nvml child"), ("proc_worker", "proc child"), ("supervisor.py", "spawner")):
        if mark in words:
            return "next supervisor" if Path(f"/proc/{pid}/comm").read_text().strip() == "tenure-sup" else role
    return words.rpartition("/")[2][:40] or "child"
