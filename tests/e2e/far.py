"""Several hosts on one machine: a home whose controller is served over TLS, and homes whose agents join it.

Every one of them is a process of its own with a home and claims of its own, as on hosts of their own. Where it is asked
for, a host is a network namespace too, and reaches the controller through a cable (veth) that a test can pull.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.e2e.conftest import RC, until

from tenure.paths import Layout, layout
from tenure.testing.nvml import Scenario


class Home:
    """One host's home folder; ``rc`` runs there. ``prefix`` begins every command line."""

    def __init__(self, folder: Path, *prefix: str) -> None:
        self.paths: Layout = layout(folder)
        self.prefix = prefix
        # Not what this test was started with: a job's variables would be taken for the caller's.
        given = {name: value for name, value in os.environ.items() if not name.startswith(("RC_", "TENURE_"))}
        self.env = {**given, "TENURE_HOME": str(folder)}
        self.paths.create()

    def rc(self, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.prefix, RC, *words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def json(self, *words: str) -> Any:
        done = self.rc(*words, "-o", "json")
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def start(self, log: Path, *words: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            return subprocess.Popen(
                [*self.prefix, RC, *words],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )


class Served(Home):
    """The controller's host. ``at`` is an address for ``--listen``."""

    def __init__(self, folder: Path, at: str = "127.0.0.1:0") -> None:
        super().__init__(folder)
        self.at = at
        self.process: subprocess.Popen[bytes] | None = None

    def own_agent(self) -> subprocess.Popen[bytes]:
        """An agent of this host, beside the controller: no token, the local socket."""
        claims = self.paths.home / "claims"
        claims.mkdir(exist_ok=True)
        settings = {"agent": {"claims_dir": str(claims), "host": "here"}}
        (self.paths.root / "embedded.json").write_text(json.dumps(settings))
        return self.start(self.paths.agent_log, "agent")

    def up(self, *words: str) -> None:
        """Starts it and waits until it answers; from then on it keeps its port."""
        self.process = self.start(self.paths.controller_log, "serve", "--listen", self.at, *words)
        until(lambda: self.rc("status").returncode == 0, "the controller answers", 60)
        [self.at] = self.json("status")["listen"]

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)

    def token(self, host: str, folder: Path, *words: str) -> Path:
        file = folder / f"{host}-{time.monotonic_ns()}.token"
        done = self.rc("admin", "token", "create", "--agent", host, "--out", str(file), *words)
        assert done.returncode == 0, done
        return file

    def device(self, name: str) -> dict[str, Any]:
        found = [d for d in self.json("devices")["devices"] if d["name"] == name]
        return found[0] if found else {"state": "none"}

    def shows(self, name: str, *states: str) -> dict[str, Any]:
        found: dict[str, Any] = until(
            lambda: (d := self.device(name))["state"] in states and d, f"{name} is {states}", 60
        )
        return found

    def job(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.json("describe", job)
        return found


class Far(Home):
    """A host whose agent joins, with one simulated GPU. Its claims are its own, as those of a host are."""

    def __init__(self, name: str, folder: Path, library: Path, *prefix: str) -> None:
        super().__init__(folder, *prefix)
        self.name = name
        self.process: subprocess.Popen[bytes] | None = None
        claims = folder / "claims"
        claims.mkdir(parents=True)
        shutil.copytree(library, self.paths.sim)
        Scenario.create(self.paths.sim_scenario, "1xH100")
        agent = {"claims_dir": str(claims), "beat_every_s": 0.3, "watch_every_s": 0.3}
        settings = {"sim": "1xH100", "agent": agent}
        (self.paths.root / "embedded.json").write_text(json.dumps(settings))

    def agent(self, *words: str) -> None:
        self.process = self.start(self.paths.agent_log, "agent", *words)

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)

    @property
    def log(self) -> str:
        return self.paths.agent_log.read_text(errors="replace")

    def close(self) -> None:
        """Ends the agent, and every job that is left with its supervisor."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        with contextlib.suppress(OSError, ValueError):  # one that somebody else started here
            self._end(int(self.paths.agent_lock.read_text()))
        for file in self.paths.attempts.glob("*/supervisor.json"):
            if not (file.parent / "exit.json").exists():
                body = json.loads(file.read_text())
                for pid in (body["pid"], body["leader_pid"]):
                    self._end(pid)

    def _end(self, pid: int) -> None:
        """A pid from a file may be somebody else's by now."""
        with contextlib.suppress(OSError):
            if str(self.paths.home) in Path(f"/proc/{pid}/environ").read_text(errors="replace"):
                os.kill(pid, signal.SIGKILL)


class Fleet:
    """One served home and those that joined it, torn down at the end."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self.library = library
        self.served = Served(folder / "served")
        self.hosts: list[Far] = []

    def host(self, name: str, *prefix: str) -> Far:
        found = Far(name, self.folder / name, self.library, *prefix)
        self.hosts.append(found)
        return found

    def joined(self, name: str, *prefix: str, addresses: tuple[str, ...] = ()) -> Far:
        """A host that has come in; ``addresses`` are what its token file says."""
        found = self.host(name, *prefix)
        words = [word for each in addresses for word in ("--address", each)]
        found.agent("--join", str(self.served.token(name, self.folder, *words)))
        self.served.shows(f"{name}:gpu0", "ready")
        return found

    def close(self) -> None:
        for host in self.hosts:
            host.close()
        if self.served.process is not None and self.served.process.poll() is None:
            self.served.kill(signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)
