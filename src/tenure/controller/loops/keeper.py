"""Keeps the embedded agent alive: starts it when none holds the agent's lock, with a bounded back-off.

The agent is a process and a session of its own: it outlives this controller, and the next one finds it by its lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.controller.logs import Log
from tenure.errors import CODES, TenureError
from tenure.paths import Layout

if TYPE_CHECKING:  # a controller that comes up starts the agent before it loads all of itself
    from tenure.controller.service import Controller

log = Log("tenure.controller.keeper")

PERIOD_S = 0.5
SLOWEST_S = 10.0


def lock_holder(path: Path) -> int | None:
    """The pid that holds the flock of a file, 0 where somebody does whose pid is not visible, ``None`` where nobody.

    Read from /proc/locks: trying the lock, even shared and for a moment, could make the agent that is just starting
    believe that another one runs.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    mark = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = Path("/proc/locks").read_text("ascii").splitlines()
    except FileNotFoundError:
        return _try_lock(path)
    for line in lines:
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == mark:
            return max(int(words[4]), 0)
    return None


def _try_lock(path: Path) -> int | None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    finally:
        os.close(fd)
    return None


def start_agent(layout: Layout) -> subprocess.Popen[bytes]:
    """Starts ``python -m tenure.agent`` for this home, detached, logging to its own file."""
    with layout.agent_log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tenure.agent"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            env={**os.environ, "TENURE_HOME": str(layout.home)},
            start_new_session=True,
        )
    log.info("agent_started", pid=process.pid)
    return process


def failure(layout: Layout, code: int) -> dict[str, Any] | None:
    """The error with which an agent ended: what it gave in its log as its reason, or that it gave none. ``None`` for an
    end that is no failure: asked for by a signal, or another agent holds the lock."""
    if code <= 0 or code == CODES["already_running"].exit:
        return None
    log_file = layout.agent_log
    unsaid = TenureError(
        "internal",
        f"the agent ended with exit status {code} and gave no reason",
        do=f"look at its log: tail -n 40 {shlex.quote(str(log_file))}",
        facts={"path": str(log_file), "exit": code},
    )
    try:
        with layout.agent_log.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 64 * 1024, 0))
            lines = file.read().splitlines()
    except OSError as error:
        log.warning("agent_log_not_read", why=str(error))
        return unsaid.to_dict()
    for line in reversed(lines[-5:]):
        with contextlib.suppress(ValueError):
            told = json.loads(line)
            if isinstance(told, dict) and isinstance(told.get("error"), dict):
                said: dict[str, Any] = told["error"]
                return said
    return unsaid.to_dict()


async def keep_agent(service: Controller) -> None:
    """Starts the agent at once and again whenever it is gone, waiting longer each time it does not stay."""
    wait, started = 0.0, time.monotonic()
    while not service.stop.is_set():
        child = service.agent_process
        if child is not None and child.poll() is not None:
            stayed = time.monotonic() - started
            log.warning("agent_gone", code=child.returncode, after_s=round(stayed, 1))
            service.agent_failure = failure(service.layout, child.returncode)
            service.agent_process = child = None
            wait = 0.0 if stayed > 10.0 else min(max(2 * wait, 0.25), SLOWEST_S)
            await asyncio.sleep(wait)
            continue
        if child is None and lock_holder(service.layout.agent_lock) is None:
            started = time.monotonic()
            try:
                service.agent_process = start_agent(service.layout)
            except OSError as error:  # no more processes, say: tried again, and said while it lasts
                log.error("agent_not_started", why=str(error))
        await asyncio.sleep(PERIOD_S)


async def stop_agent(service: Controller, timeout_s: float = 10.0) -> bool:
    """Asks the embedded agent to go and waits until it has; jobs stay with their supervisors.

    Asked are the process on the link, the one that holds the agent's lock, and the one that was started here last: an
    agent that is just coming up is only the last of these.
    """
    child = service.agent_process
    asked = {link.pid for link in service.links.links.values()} | {lock_holder(service.layout.agent_lock) or 0}
    if child is not None and child.poll() is None:
        asked.add(child.pid)
    for pid in asked - {0, os.getpid()}:
        try:
            os.kill(pid, signal.SIGTERM)
        except (ProcessLookupError, PermissionError) as error:
            log.warning("agent_not_asked_to_stop", pid=pid, why=str(error))
    end = time.monotonic() + timeout_s
    while (child is not None and child.poll() is None) or lock_holder(service.layout.agent_lock) is not None:
        if time.monotonic() > end:
            log.error("agent_did_not_stop", lock=str(service.layout.agent_lock))
            return False
        await asyncio.sleep(0.02)
    return True
