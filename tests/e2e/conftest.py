"""A house: one home folder with its own controller and agent, all real but the NVML library, and always torn down."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.paths import Layout, layout
from tenure.testing.nvml import build

RC = str(Path(sys.executable).with_name("rc"))
DEVICES = 3


class House:
    """Runs ``rc`` under one home. ``env`` is the caller's; ``TENURE_HOME`` is added. ``prefix`` runs every command, and
    so whatever it starts."""

    def __init__(self, home: Path, library: Path) -> None:
        self.home = home
        self.paths: Layout = layout(home)
        self.env = {**os.environ, "TENURE_HOME": str(home)}
        self.prefix: tuple[str, ...] = ()
        self.paths.sim.mkdir(parents=True)
        for file in library.iterdir():  # compiled once for all houses
            shutil.copy2(file, self.paths.sim / file.name)

    def rc(self, *words: str, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*self.prefix, RC, *words],
            env={**self.env, **env},
            capture_output=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def start(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.prefix, RC, *words],
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def json(self, *words: str) -> Any:
        done = self.rc(*words, "-o", "json")
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def up(self, sim: str = f"{DEVICES}xH100") -> None:
        done = self.rc("up", "--sim", sim, timeout=90)
        assert done.returncode == 0, done

    def gpu(self, number: int) -> str:
        """The name of the n-th simulated device."""
        return str([d["name"] for d in self.json("devices")["devices"] if d["simulated"]][number])

    def newest(self) -> dict[str, Any]:
        job: dict[str, Any] = self.json("jobs", "-n", "1")["jobs"][0]
        return job

    def pid_of(self, lock: Path) -> int | None:
        try:
            return int(lock.read_text())
        except (OSError, ValueError):
            return None

    def tear_down(self) -> None:
        for job in self._open_jobs():
            self.rc("kill", job, timeout=20)
        self.rc("down", "--leave", timeout=60)
        pids = [self.pid_of(self.paths.controller_lock), self.pid_of(self.paths.agent_lock)]
        for file in self.paths.attempts.glob("*/supervisor.json"):
            if not (file.parent / "exit.json").exists():
                body = json.loads(file.read_text())
                pids += [body["pid"], body["leader_pid"]]
        for pid in pids:
            if pid is not None and str(self.home).encode() in environment_of(pid):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)

    def _open_jobs(self) -> list[str]:
        done = self.rc("ps", "-o", "json", timeout=20)
        return [job["id"] for job in json.loads(done.stdout)["jobs"]] if done.returncode == 0 else []


def environment_of(pid: int) -> bytes:
    """What a process was started with; empty where it is gone. A pid from a file may be somebody else's by now."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def until(true: Callable[[], object], what: str, timeout_s: float = 30.0) -> Any:
    """Polls until something holds; gives what it gave."""
    end = time.monotonic() + timeout_s
    while not (found := true()):
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    build(folder)
    return folder


def _house(library: Path) -> Iterator[House]:
    made = House(Path(tempfile.mkdtemp(prefix="tenure-e2e-", dir="/tmp")), library)
    try:
        yield made
    finally:
        made.tear_down()


@pytest.fixture
def empty_house(library: Path) -> Iterator[House]:
    """A home in which nothing was started yet."""
    yield from _house(library)


@pytest.fixture
def own_house(empty_house: House) -> House:
    """A home with everything up, for this test alone."""
    empty_house.up()
    return empty_house


@pytest.fixture(scope="module")
def house(library: Path) -> Iterator[House]:
    """A home with everything up, shared by a file's tests that leave its devices free."""
    for made in _house(library):
        made.up()
        yield made
