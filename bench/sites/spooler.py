"""task-spooler: a queue in the memory of one process of one user. The floor of what a queue can cost."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from bench import processes

PACKAGES = ("task-spooler",)
DURABILITY = "memory"
SLOTS = 4


class SpoolerSite:
    """A server of its own behind a socket of its own; output goes to files, as it comes configured."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = str(folder / "socket")
        self.env = {**os.environ, "TS_SOCKET": self.socket, "TMPDIR": str(folder), "TS_MAXFINISHED": "20"}
        self.version = ""

    def tsp(self, *words: str, timeout_s: float = 60.0) -> str:
        """One ``tsp`` command to its end; raises where it fails."""
        done = subprocess.run(
            ["tsp", *words], env=self.env, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout_s, check=True
        )
        return done.stdout.decode().strip()

    def up(self) -> None:
        """Starts the server. Raises ``FileNotFoundError`` where there is no ``tsp``."""
        if shutil.which("tsp") is None:
            raise FileNotFoundError("tsp is not installed")
        self.folder.mkdir()
        self.slots(SLOTS)
        self.version = self.tsp("-V").partition(" - ")[0]

    def slots(self, count: int) -> None:
        """How many jobs may run at once: what it has for devices."""
        self.tsp("-S", str(count))

    def idle(self, timeout_s: float = 60.0) -> None:
        """Waits until no job waits or runs."""
        processes.until(
            lambda: not any(word in self.tsp("-l") for word in (" queued ", " running ")),
            "tsp is idle",
            timeout_s=timeout_s,
        )
        self.tsp("-C")

    def daemons(self) -> dict[int, str]:
        """The server."""
        return {pid: "server" for pid in processes.mentioning(self.socket) if processes.command(pid).startswith("tsp")}

    def down(self) -> None:
        """Ends the server and whatever of its jobs is left."""
        try:
            if self.daemons():
                self.tsp("-K")
        finally:
            processes.end(processes.mentioning(self.socket), mark=self.socket)
