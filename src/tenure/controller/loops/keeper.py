"""Keeps the embedded agent alive: starts it when none holds the agent's lock, with a bounded back-off.

The agent is a process and a session of its own: it outlives this controller, and the next one finds it by its lock.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import structlog

from tenure.controller.service import Controller
from tenure.paths import Layout

log = structlog.get_logger("tenure.controller.keeper")

PERIOD_S = 0.5
SLOWEST_S = 10.0


def is_held(path: Path) -> bool:
    """Whether somebody holds the flock of a file. A file that is not there is held by nobody.

    Read from /proc/locks: trying the lock, even shared and for a moment, could make the agent that is just starting
    believe that another one runs.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    mark = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = Path("/proc/locks").read_text("ascii").splitlines()
    except FileNotFoundError:
        return _try_lock(path)
    return any(words[1] == "FLOCK" and mark in words for line in lines if len(words := line.split()) > 5)


def _try_lock(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def start_agent(layout: Layout) -> subprocess.Popen[bytes]:
    """Starts ``python -m tenure.agent`` for this home, detached, logging to its own file."""
    with layout.agent_log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "tenure.agent"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            env={**os.environ, "TENURE_HOME": str(layout.home)},
            start_new_session=True,
        )


async def keep_agent(service: Controller) -> None:
    """Starts the agent at once and again whenever it is gone, waiting longer each time it does not stay."""
    child: subprocess.Popen[bytes] | None = None
    wait, started = 0.0, 0.0
    while not service.stop.is_set():
        if child is not None and child.poll() is not None:
            stayed = time.monotonic() - started
            log.warning("agent_gone", code=child.returncode, after_s=round(stayed, 1))
            child = None
            wait = 0.0 if stayed > 10.0 else min(max(2 * wait, 0.25), SLOWEST_S)
            await asyncio.sleep(wait)
        if child is None and not is_held(service.layout.agent_lock):
            child, started = start_agent(service.layout), time.monotonic()
            log.info("agent_started", pid=child.pid)
        await asyncio.sleep(PERIOD_S)


async def stop_agent(service: Controller, timeout_s: float = 10.0) -> bool:
    """Asks the connected embedded agent to go and waits until its lock is free; jobs stay with their supervisors."""
    for link in list(service.links.links.values()):
        if link.pid:
            try:
                os.kill(link.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
    end = time.monotonic() + timeout_s
    while is_held(service.layout.agent_lock):
        if time.monotonic() > end:
            log.error("agent_did_not_stop", lock=str(service.layout.agent_lock))
            return False
        await asyncio.sleep(0.02)
    return True
