"""A served controller and the agents that joined it, asked over the controller's socket and looked up in /proc.

Everything is as in ``tests.e2e.far``; what is added is a quick way to ask, jobs that prove their own output, and hosts
whose kernel tells them something of their own (``prefix``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tests.e2e.far import Far, Served
from tests.kill.harness import Api, is_alive, joined, members

from tenure.testing.nvml import Scenario

T = TypeVar("T")

#: Says who it is, numbers its lines until a file is there, and ends with the digest of all it said before.
STORY = """
import hashlib, os, sys, time
said, number = hashlib.sha256(), 0
def say(words):
    said.update(words)
    while words:
        words = words[os.write(1, words):]
say(b"pid %d\\n" % os.getpid())
while not os.path.exists(sys.argv[1]):
    say(b"line %d\\n" % number)
    number += 1
    time.sleep(0.02)
os.write(1, said.hexdigest().encode())
sys.exit(7)
"""
QUICK = {"beat_every_s": 0.3, "watch_every_s": 0.5, "sample_every_s": 0.5, "settle_s": 1.0, "leftovers": False}


def until(condition: Callable[[], T | None], what: str, timeout_s: float = 60.0) -> T:
    """Polls until the condition holds; gives what it gave."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {timeout_s:g} s in vain for {what}"
        time.sleep(0.05)
    return found


class Controller(Served):
    """The controller's host. ``env`` may be changed before ``up``."""

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        api = Api(self.paths.ctl_sock, 30.0)
        try:
            return api.ask(method, path, body)
        finally:
            api.close()

    def devices(self) -> dict[str, dict[str, Any]]:
        return {d["name"]: d for d in self.ask("GET", "/v1/devices")["devices"]}

    def reaches(self, device: str, *states: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """Waits until a device is in one of the states."""

        def there() -> dict[str, Any] | None:
            found = self.devices().get(device)
            return found if found and found["state"] in states else None

        try:
            return until(there, f"{device} to be {' or '.join(states)}", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.devices().get(device)}\n{self.tail()}") from None

    def record(self, job: str) -> dict[str, Any]:
        return dict(self.ask("GET", f"/v1/jobs/{job}"))

    def submit(self, device: str, *argv: str, **more: Any) -> str:
        return str(self.ask("POST", "/v1/jobs", {"argv": list(argv), "device": device, **more})["job"]["id"])

    def running(self, job: str) -> dict[str, Any]:
        """Waits until a job runs; its record."""
        return until(lambda: ((found := self.record(job))["state"] == "running" and found) or None, f"{job} to run")

    def ended(self, job: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """Waits for a job's end; its record."""
        try:
            return until(
                lambda: ((found := self.record(job))["state"] == "ended" and found) or None, f"{job}", timeout_s
            )
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.record(job)}\n{self.tail()}") from None

    def output(self, job: str) -> bytes:
        """All output; no offset missing or repeated."""
        return joined(self.ask("GET", f"/v1/jobs/{job}/output"))

    def events(self, after: int = 0) -> list[dict[str, Any]]:
        """What the ledger holds after an event, each with its ``kind``."""
        with contextlib.closing(sqlite3.connect(f"file:{self.paths.ledger_db}?mode=ro", uri=True)) as ledger:
            found = ledger.execute("select kind, body from events where seq > ? order by seq", (after,)).fetchall()
        return [{**json.loads(body), "kind": kind} for kind, body in found]

    def kinds(self, after: int = 0) -> set[str]:
        return {event["kind"] for event in self.events(after)}

    def tail(self) -> str:
        return "\n".join(self.paths.controller_log.read_text(errors="replace").splitlines()[-12:])


class Host(Far):
    """A host. ``sim``: its devices; ``environment`` is added to its agent's; other words are settings of the agent."""

    def __init__(
        self,
        name: str,
        folder: Path,
        library: Path,
        *prefix: str,
        sim: str = "1xH100",
        environment: dict[str, str] | None = None,
        **agent: Any,
    ) -> None:
        super().__init__(name, folder, library, *prefix)
        Scenario.create(self.paths.sim_scenario, sim)
        self.env |= environment or {}
        settings = {**QUICK, "claims_dir": str(folder / "claims"), **agent}
        (self.paths.root / "embedded.json").write_text(json.dumps({"sim": sim, "agent": settings}))

    def supervisor(self, job: str) -> int:
        return int(json.loads((self.paths.attempt(job, 1) / "supervisor.json").read_bytes())["pid"])

    def mine(self) -> list[int]:
        """Every process of this host: by its environment, or by where it works."""
        mark, root = f"TENURE_HOME={self.paths.home}".encode(), str(self.paths.home)
        found = []
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):  # noqa: PTH208 (a Path a name is slow)
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/environ").read_bytes()
                if (
                    mark in words.split(b"\0")
                    or root.encode() in words
                    or str(Path(f"/proc/{pid}/cwd").readlink()).startswith(root)
                ):
                    found.append(pid)
        return [pid for pid in found if pid != os.getpid() and is_alive(pid)]

    def dies(self) -> None:
        """Everything that runs on this host is gone at once, as when its power is cut."""
        for _ in range(200):
            pids = self.mine()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process is not None:
                self.process.poll()
            if not pids:
                return
            time.sleep(0.02)
        raise AssertionError(f"they do not die: {self.mine()}")


class Story:
    """A job that goes on until it is told to end, and proves its own output."""

    def __init__(self, controller: Controller, device: str, folder: Path, **more: Any) -> None:
        self.controller, self.device = controller, device
        self.over = folder / f"over-{device.replace(':', '-')}-{time.monotonic_ns()}"
        self.id = controller.submit(device, sys.executable, "-I", "-S", "-c", STORY, str(self.over), **more)
        self.pid = int(controller.running(self.id)["pid"])
        until(lambda: b"line 3\n" in controller.output(self.id), f"output of {self.id}")
        self.began_with = controller.output(self.id)

    def alive(self) -> bool:
        """Whether a process of it runs."""
        return bool(members(self.id))

    def told_to_end(self) -> None:
        self.over.touch()

    def holds(self, timeout_s: float = 90.0) -> None:
        """It was never disturbed: one process, its own end, every byte, in order."""
        self.told_to_end()
        record = self.controller.ended(self.id, timeout_s)
        assert (record["outcome"]["ending"], record["exit_status"]) == ("exited", 7), record["words"]
        assert (record["pid"], record["attempt"]) == (self.pid, 1)
        output = self.controller.output(self.id)
        said, digest = output[:-64], output[-64:].decode()
        assert hashlib.sha256(said).hexdigest() == digest, "the output is not what the job wrote"
        assert said.startswith(b"pid %d\nline 0\n" % self.pid)
        assert said.startswith(self.began_with), "what was here once has changed"
        assert record["output_bytes"] == len(output)


class Fleet:
    """One controller and its hosts under a folder, all torn down at the end."""

    def __init__(self, library: Path, *, at: str = "127.0.0.1:0", environment: dict[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tenure-hosts-", dir="/tmp"))
        self.library = library
        self.controller = Controller(self.folder / "served", at)
        self.controller.env |= environment or {}
        self.hosts: list[Host] = []

    def host(self, name: str, *prefix: str, **settings: Any) -> Host:
        """A host that has not come in yet."""
        self.hosts.append(Host(name, self.folder / name, self.library, *prefix, **settings))
        return self.hosts[-1]

    def join(self, host: Host) -> Host:
        """Has its agent come in."""
        host.agent("--join", str(self.controller.token(host.name, self.folder)))
        self.controller.reaches(f"{host.name}:gpu0", "ready")
        return host

    def joined(self, name: str, *prefix: str, **settings: Any) -> Host:
        """A host that has come in."""
        return self.join(self.host(name, *prefix, **settings))

    def story(self, host: Host | str, **more: Any) -> Story:
        name = host if isinstance(host, str) else host.name
        return Story(self.controller, f"{name}:gpu0", self.folder, **more)

    def close(self) -> None:
        try:
            for host in self.hosts:
                host.dies()
            process = self.controller.process
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                self.controller.kill(signal.SIGKILL)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def fleet(library: Path, **settings: Any) -> Iterator[Fleet]:
    """A fleet with its controller up, until the block ends."""
    made = Fleet(library, **settings)
    try:
        made.controller.up()
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """SIGSTOP while inside."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def shell(*words: str, timeout_s: float = 60.0) -> str:
    """Runs a command to its end; what it printed. Fails where it failed."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done
    return done.stdout
