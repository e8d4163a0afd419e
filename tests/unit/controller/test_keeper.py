"""Keeping and stopping the embedded agent: whoever it is, and however far it has come."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenure.controller.links import Links
from tenure.controller.loops import keeper
from tenure.paths import Layout

HOLDS = """
import fcntl, os, signal, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
print(flush=True)
time.sleep(60)
"""


async def until(holds: Callable[[], Any], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        await asyncio.sleep(0.01)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def service(tmp_path: Path) -> Any:
    layout = Layout(tmp_path, "m")
    layout.create()
    return SimpleNamespace(layout=layout, links=Links(), stop=asyncio.Event(), agent_process=None)


def _says(code: str, started: list[subprocess.Popen[bytes]], *arguments: str) -> subprocess.Popen[bytes]:
    """A process that has come as far as its first line."""
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def _holder(path: Path, started: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    return _says(HOLDS, started, str(path))


def test_the_holder_of_a_lock_is_named_without_touching_it(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    path = tmp_path / "agent.lock"
    assert keeper.lock_holder(path) is None
    path.touch()
    assert keeper.lock_holder(path) is None
    process = _holder(path, started)
    assert keeper.lock_holder(path) == process.pid
    assert keeper._try_lock(path) == 0, "where there is no /proc/locks: somebody"
    process.kill()
    process.wait()
    assert keeper.lock_holder(path) is None
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert keeper.lock_holder(path) == os.getpid()
    finally:
        os.close(fd)


async def test_stopping_reaches_an_agent_that_is_only_known_by_its_lock(
    service: Any, started: list[subprocess.Popen[bytes]]
) -> None:
    process = _holder(service.layout.agent_lock, started)  # of an earlier controller, and not connected
    stopping = asyncio.create_task(keeper.stop_agent(service, 5.0))
    await until(lambda: process.poll() is not None)
    assert await stopping
    assert process.returncode == -signal.SIGTERM


async def test_stopping_reaches_an_agent_that_is_just_coming_up(
    service: Any, started: list[subprocess.Popen[bytes]]
) -> None:
    coming = service.agent_process = _says("import time; print('x', flush=True); time.sleep(60)", started)
    assert await keeper.stop_agent(service, 5.0)
    assert coming.poll() is not None


async def test_an_agent_that_will_not_go_is_reported(service: Any, started: list[subprocess.Popen[bytes]]) -> None:
    deaf = "import signal, time; signal.signal(15, 1); print('x', flush=True); time.sleep(60)"
    stubborn = service.agent_process = _says(deaf, started)
    assert not await keeper.stop_agent(service, 0.3)
    assert stubborn.poll() is None


async def test_an_agent_that_is_gone_is_started_again_but_not_in_a_tight_circle_and_not_after_the_end(
    service: Any, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short_lived(layout: Layout) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"])
        started.append(process)
        return process

    monkeypatch.setattr(keeper, "start_agent", short_lived)
    monkeypatch.setattr(keeper, "PERIOD_S", 0.02)
    keeping = asyncio.create_task(keeper.keep_agent(service))
    await until(lambda: len(started) >= 2)
    began, count = time.monotonic(), len(started)
    await until(lambda: len(started) >= count + 2)
    assert time.monotonic() - began > 0.5, "each wait is longer than the one before"
    service.stop.set()  # while it waits before the next start
    count = len(started)
    await asyncio.wait_for(keeping, 10.0)
    assert len(started) == count


async def test_one_that_holds_the_lock_is_not_started_twice(
    service: Any, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _holder(service.layout.agent_lock, started)
    monkeypatch.setattr(keeper, "PERIOD_S", 0.01)
    monkeypatch.setattr(keeper, "start_agent", lambda layout: pytest.fail("there is one"))
    keeping = asyncio.create_task(keeper.keep_agent(service))
    await asyncio.sleep(0.1)
    service.stop.set()
    await keeping
