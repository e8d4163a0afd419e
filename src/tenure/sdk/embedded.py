"""Brings the embedded controller up and down: one per home and machine, whoever starts it.

Clients that find nobody answering start ``python -m tenure.controller --embedded``, detached, one at a time under a
lock. The controller's own lock is the last word: of two that were started after all, the second one goes.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tenure.durable import write_atomic
from tenure.errors import CODES, TenureError
from tenure.paths import Layout
from tenure.sdk.transport import Transport

READY_S = 60.0
AGENT_S = 10.0
_POLL_S = 0.01
#: With fewer bytes free than this a controller that could not say why it went is taken to have had no room.
_FULL_BYTES = 256 * 1024
_ALREADY_RUNNING = CODES["already_running"].exit


def ensure_running(paths: Layout, *, options: Mapping[str, Any] | None = None, deadline_s: float = READY_S) -> bool:
    """Sees to it that a controller answers; gives whether this call started it.

    ``options`` replace those in embedded.json, and only where one is started here. Raises what the controller says in
    its log where it does not come up, ``controller_starting`` where it is not ready in time.
    """
    end = time.monotonic() + deadline_s
    if answers(paths):
        return False
    paths.create()
    with _start_lock(paths, end):
        if answers(paths):
            return False
        if options is not None:
            write_options(paths, options)
        return _start(paths, end)


def answers(paths: Layout, timeout_s: float = 5.0) -> bool:
    """Whether a controller answers on this home's socket."""
    try:
        with Transport(str(paths.ctl_sock), timeout_s) as transport:
            transport.call("GET", "/v1/status")
    except TenureError as error:
        if error.code == "controller_unreachable":
            return False
        raise
    return True


@contextmanager
def _start_lock(paths: Layout, end: float) -> Iterator[None]:
    """One starter at a time. Close-on-exec, so that the controller never holds it."""
    fd = os.open(paths.run / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                _wait_or_raise(paths, end)
        yield
    finally:
        os.close(fd)


def _wait_or_raise(paths: Layout, end: float) -> None:
    if time.monotonic() > end:
        raise TenureError(
            "controller_starting",
            f"the controller did not become ready in time; its log is {paths.controller_log}",
            do="try again, and look at that log if it happens again",
            facts={"log": str(paths.controller_log), "tail": log_tail(paths.controller_log)},
        )
    time.sleep(_POLL_S)


def _start(paths: Layout, end: float) -> bool:
    began, child = _spawn(paths)
    while True:
        if _listens(paths) and answers(paths):
            return child.poll() is None
        code = child.poll()
        if code == _ALREADY_RUNNING:
            # Another one is coming up, or going down: it answers soon, or there is room for a new one.
            time.sleep(0.1)
            if time.monotonic() > end:
                raise _held(paths)
            if not _listens(paths):
                began, child = _spawn(paths)
        elif code is not None:
            raise _failure(paths, began, code)
        else:
            _wait_or_raise(paths, end)


def _held(paths: Layout) -> TenureError:
    """The error where a process keeps the controller's lock and no controller answers."""
    holder = lock_holder(paths.controller_lock)
    return TenureError(
        "already_running",
        f"process {holder or 'unknown'} holds {paths.controller_lock}, and no controller answers at {paths.ctl_sock}",
        do=f"look at it: ps -fp {holder or 'PID'}; {paths.controller_log} may say why; end it, then: rc up",
        facts={"pid": holder, "path": str(paths.controller_lock)},
    )


def _listens(paths: Layout) -> bool:
    return paths.ctl_sock.exists()


def _spawn(paths: Layout) -> tuple[int, subprocess.Popen[bytes]]:
    """A controller in a session of its own, and how long its log was before."""
    with paths.controller_log.open("ab") as log:
        began = log.tell()
        child = subprocess.Popen(
            [sys.executable, "-m", "tenure.controller", "--embedded"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**os.environ, "TENURE_HOME": str(paths.home)},
            start_new_session=True,
        )
    return began, child


def _failure(paths: Layout, began: int, code: int) -> TenureError:
    """What the controller said before it went, under its own code where it gave one."""
    tail = log_tail(paths.controller_log, began)
    for line in reversed(tail):
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and isinstance(said.get("error"), dict):
            return TenureError.from_dict(said["error"])
    told = next(
        (line.removeprefix("tenure controller: ") for line in reversed(tail) if line.strip()), "it said nothing"
    )
    found = os.statvfs(paths.root)
    if (free := found.f_bavail * found.f_frsize) < _FULL_BYTES:
        raise TenureError(
            "disk_full",
            f"the controller did not come up (exit status {code}): {free} bytes are free on the disk of {paths.root}",
            do=f"make room, then try again: df -h {shlex.quote(str(paths.root))}",
            facts={"path": str(paths.root), "free_bytes": free, "tail": tail},
        )
    known = [name for name, entry in CODES.items() if entry.exit == code and code != 0]
    return TenureError(
        known[0] if len(known) == 1 else "not_configured" if code == CODES["not_configured"].exit else "internal",
        f"the controller did not come up (exit status {code}): {told}",
        do=f"its log is {paths.controller_log}",
        facts={"log": str(paths.controller_log), "tail": tail},
    )


def log_tail(path: Path, began: int = 0, lines: int = 20) -> list[str]:
    """The last lines of a log, none from before ``began`` (bytes)."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(began, size - 64 * 1024))
            return log.read().decode("utf-8", "replace").splitlines()[-lines:]
    except OSError as error:
        return [f"(the log cannot be read: {error.strerror})"]


def wait_for_agent(transport: Transport, deadline_s: float = AGENT_S) -> bool:
    """Waits until an agent of this controller is in contact and its devices were looked at; gives whether it came.

    Right after a start the fleet is empty: a request would be refused although a device is there. What the devices
    are is the agent's to say, so half of the time allowed is spent on those not looked at yet. Raises the error with
    which the agent did not come up; the controller runs on then.
    """
    began = time.monotonic()
    while True:
        status = transport.call("GET", "/v1/status")
        registered = any(agent["contact"] for agent in status["agents"])
        if status.get("agent_failure"):
            raise TenureError.from_dict(status["agent_failure"])
        devices = transport.call("GET", "/v1/devices")["devices"] if registered else []
        waiting = [d for d in devices if d["contact"] and d["state"] == "unknown"]
        spent = time.monotonic() - began
        if devices and (not waiting or spent > deadline_s / 2):
            return True
        if spent > deadline_s:
            return registered
        time.sleep(0.02)


def options_file(paths: Layout) -> Path:
    """The settings that controller and agent of the embedded mode start with."""
    return paths.root / "embedded.json"


def read_options(paths: Layout) -> dict[str, Any]:
    """The settings as they are; empty where there are none. Raises ``invalid_configuration`` naming the file."""
    path = options_file(paths)
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TenureError(
            "invalid_configuration",
            f"{path} cannot be read: {error.strerror if isinstance(error, OSError) else error}",
            do=_defaults(path),
            facts={"path": str(path)},
        ) from error
    if not isinstance(body, dict):
        raise TenureError(
            "invalid_configuration",
            f"{path} holds no object",
            do=_defaults(path),
            facts={"path": str(path)},
        )
    return body


def _defaults(path: Path) -> str:
    gone = "rm -r" if path.is_dir() else "rm"
    return f"correct it, or go by the defaults: {gone} {shlex.quote(str(path))}"


def write_options(paths: Layout, options: Mapping[str, Any]) -> None:
    """Sets these settings, keeps the others, and makes what they need: the simulated NVML library for ``sim``."""
    before = read_options(paths)
    sim = options.get("sim")
    if sim:
        _prepare_simulation(paths, str(sim))
    write_atomic(options_file(paths), json.dumps({**before, **options}, indent=1).encode() + b"\n")


def _prepare_simulation(paths: Layout, spec: str) -> None:
    """The library with NVML's ABI and what it answers. The same spec as before keeps its devices' UUIDs."""
    from tenure.testing.nvml import Scenario, build

    build(paths.sim)
    made_for = paths.sim / "made_for"
    # The same devices come back with the same names and UUIDs: new ones beside them would look like cards that broke.
    if paths.sim_scenario.exists() and made_for.exists() and made_for.read_text("utf-8") == spec:
        _check_scenario(paths.sim_scenario)
        return
    Scenario.create(paths.sim_scenario, spec)
    made_for.write_text(spec, "utf-8")


def _check_scenario(path: Path) -> None:
    """Raises where a scenario is none any more: its devices would be there, and unknown, without a word why."""
    from tenure.testing.nvml.scenario import HEAD

    data = path.read_bytes()
    if data.startswith(HEAD.encode()) and b"\ndevice " in data:
        return
    raise TenureError(
        "damaged_state",
        f"{path} is damaged: it is no scenario of simulated devices",
        do=f"make new devices in its place: rm {shlex.quote(str(path))}, then rc up --sim again",
        facts={"path": str(path)},
    )


def stop(paths: Layout, transport: Transport, *, leave: bool, timeout_s: float = 30.0) -> dict[str, Any]:
    """Stops controller and agent and waits until both are gone; raises ``jobs_running`` unless told to ``leave`` them.

    Gives the controller's answer: ``left_running`` and ``left_queued`` are job ids, ``pid`` was its own.
    """
    # The agent goes with an embedded controller; beside one that is served it is somebody else's to stop.
    embedded = transport.call("GET", "/v1/status")["mode"] == "embedded"
    agent = lock_holder(paths.agent_lock) if embedded else None
    answer = transport.call("POST", "/v1/shutdown", {"leave": leave})
    transport.close()
    _wait_gone([pid for pid in (int(answer["pid"]), agent) if pid], timeout_s)
    return answer


def stop_stray_agent(paths: Layout, timeout_s: float = 15.0) -> int | None:
    """Stops an agent that was left without its controller; gives its pid. Jobs stay with their supervisors."""
    import signal

    agent = lock_holder(paths.agent_lock)
    if agent is not None:
        os.kill(agent, signal.SIGTERM)
        _wait_gone([agent], timeout_s)
    return agent


def lock_holder(path: Path) -> int | None:
    """The pid in a lock file whose lock is held; ``None`` where nobody holds it.

    Read from /proc/locks: even a moment's trial of the lock could turn away the process it is meant for.
    """
    try:
        found = path.stat()
        mark = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        held = [
            words for line in Path("/proc/locks").read_text("ascii").splitlines() if mark in (words := line.split())
        ]
        text = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if held and text.isdigit() else None


def _wait_gone(pids: list[int], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while left := [pid for pid in pids if _alive(pid)]:
        if time.monotonic() > end:
            raise TenureError(
                "timed_out",
                f"still there after {timeout_s:g} s: process {', '.join(map(str, left))}",
                do="look at the logs in the state folder (rc status names it), then end it by hand",
                facts={"pids": left},
            )
        time.sleep(_POLL_S)


def _alive(pid: int) -> bool:
    """Whether a process runs. One that ended and was not collected yet is gone."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return False
    except PermissionError:
        return True
