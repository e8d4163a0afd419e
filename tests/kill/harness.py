"""Whole homes to attack: a real controller and agent in a fresh TENURE_HOME with simulated devices, always torn down.

Nothing here asks Tenure what to believe: the API is spoken over the socket as any program would, and processes are
looked up in /proc. A home's claims lie in a folder of its own unless a test wants two homes to meet.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tenure.paths import Layout, connect_unix, machine_id
from tenure.testing.nvml import Scenario, install

T = TypeVar("T")

#: Quick looks, so that a thousand ends fit into minutes. The periods of a real home are ten times longer.
QUICK = {"sample_every_s": 0.5, "watch_every_s": 0.5, "beat_every_s": 0.5, "settle_s": 1.0}
PYTHON = (sys.executable, "-I", "-S", "-c")

#: Takes the cgroup mounts of either version away before going on, in a mount namespace of its own.
NO_CGROUPS = ("unshare", "-m", "sh", "-c", 'umount -a -t cgroup2,cgroup && exec "$0" "$@"')


class ApiError(Exception):
    """An answer of the API that says no. ``error`` is what it said."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(f"{status} {error}")
        self.status = status
        self.error = error
        self.code = str(error.get("code", ""))


class _Local(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock: socket.socket = connect_unix(self._path, timeout=self.timeout)


class Api:
    """The REST API over one kept connection. Raises ``ApiError``, or OSError and HTTPException where nobody answers."""

    def __init__(self, path: Path, timeout_s: float = 10.0) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._link: _Local | None = None

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One request; the JSON of its answer, or the lines of a stream of JSON lines."""
        if self._link is None:
            self._link = _Local(self._path, self._timeout_s)
        try:
            text = json.dumps(body) if body is not None else None
            self._link.request(method, path, text, {"Content-Type": "application/json"} if text else {})
            answer = self._link.getresponse()
            data = answer.read()
        except BaseException:
            self.close()
            raise
        if answer.status >= 400:
            raise ApiError(answer.status, json.loads(data).get("error", {}))
        if "ndjson" in (answer.getheader("Content-Type") or ""):
            return [json.loads(line) for line in data.splitlines()]
        return json.loads(data)

    def close(self) -> None:
        """Ends the connection; the next request makes a new one."""
        if self._link is not None:
            self._link.close()
        self._link = None


@dataclass
class Home:
    """One TENURE_HOME with what runs in it. ``prefix`` goes before every command line (another user, for instance)."""

    layout: Layout
    environment: dict[str, str]
    prefix: tuple[str, ...] = ()
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @classmethod
    def make(
        cls,
        root: Path,
        *,
        sim: str = "",
        claims: Path | None = None,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        **agent: Any,
    ) -> Home:
        """A fresh home. ``sim``: simulated devices, such as ``4xH100``; other words are settings of the agent."""
        layout = Layout(root / "home", machine_id(Path("/nonexistent")))
        layout.create()
        if claims is None:
            claims = root / "claims"
            claims.mkdir()
            claims.chmod(0o1777)
        settings = {**QUICK, "host": "h", "claims_dir": str(claims), **agent}
        (layout.root / "embedded.json").write_text(json.dumps({"sim": sim or None, "agent": settings}))
        if sim:
            install(layout.sim, sim)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TENURE_", "RC_", "CUDA_"))}
        env |= {"TENURE_HOME": str(layout.home), **(environment or {})}
        return cls(layout, env, tuple(prefix))

    @property
    def api(self) -> Api:
        """A new connection to this home's controller."""
        return Api(self.layout.ctl_sock)

    @property
    def scenario(self) -> Scenario:
        """What the simulated devices answer from."""
        return Scenario(self.layout.sim_scenario)

    # -- life

    def start(self) -> subprocess.Popen[bytes]:
        """Starts a controller, as the first command a person types does; does not wait for it."""
        with self.layout.controller_log.open("ab") as out:
            child = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "tenure.controller", "--embedded"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd="/",
                env=self.environment,
                start_new_session=True,
            )
        self.children.append(child)
        return child

    def up(self, devices: int = 0) -> None:
        """Starts and waits until the controller answers and shows so many devices in contact."""
        self.start()
        self.answers()
        self.wait(lambda: len([d for d in self.devices().values() if d["contact"]]) >= devices, "devices", 30)

    def answers(self, timeout_s: float = 30.0) -> dict[str, Any]:
        """Waits until the controller answers; its status."""

        def status() -> dict[str, Any] | None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return dict(self.ask("GET", "/v1/status"))
            return None

        return self.wait(status, "an answer of the controller", timeout_s)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One request on a connection of its own."""
        api = self.api
        try:
            return api.ask(method, path, body)
        finally:
            api.close()

    def wait(self, condition: Callable[[], T | None], what: str, timeout_s: float = 20.0) -> T:
        """Polls until the condition holds and gives what it gave; a failure tells what the logs say."""
        end = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < end, f"waited {timeout_s:g} s in vain for {what}\n{self.logs()}"
            time.sleep(0.01)
        return found

    def logs(self, lines: int = 12) -> str:
        """The ends of both logs."""
        told = []
        for path in (self.layout.controller_log, self.layout.agent_log):
            if path.exists():
                told += [f"-- {path.name}", *path.read_text(errors="replace").splitlines()[-lines:]]
        return "\n".join(told)

    # -- what is asked of it

    def submit(self, argv: Sequence[str], **body: Any) -> dict[str, Any]:
        """Submits a job; the record that came back."""
        return dict(self.ask("POST", "/v1/jobs", {"argv": list(argv), **body})["job"])

    def job(self, name: str) -> dict[str, Any]:
        """A job's record."""
        return dict(self.ask("GET", f"/v1/jobs/{name}"))

    def ended(self, name: str, timeout_s: float = 30.0) -> dict[str, Any]:
        """Waits for the end of a job; its record."""
        return self.reaches(name, "ended", timeout_s)

    def reaches(self, name: str, state: str, timeout_s: float = 30.0) -> dict[str, Any]:
        """Waits until a job is in a state; its record."""
        return self.wait(lambda: (job := self.job(name))["state"] == state and job, f"{name} to be {state}", timeout_s)

    def output(self, name: str, gaps: list[Mapping[str, Any]] | None = None) -> bytes:
        """All output of a job as the API serves it; asserts that no offset is missing or repeated. See ``joined``."""
        return joined(self.ask("GET", f"/v1/jobs/{name}/output"), gaps)

    def devices(self) -> dict[str, dict[str, Any]]:
        """Every device by what follows the host in its name."""
        return {d["name"].split(":", 1)[1]: d for d in self.ask("GET", "/v1/devices")["devices"]}

    def device(self, name: str, state: str, timeout_s: float = 20.0) -> dict[str, Any]:
        """Waits until a device is in a state; its record."""

        def there() -> dict[str, Any] | None:
            found = self.devices().get(name)
            return found if found is not None and found["state"] == state else None

        try:
            return self.wait(there, f"{name} to be {state}", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{name} is {self.devices()[name]['words']}; {error}") from None

    # -- who runs in it

    @property
    def controller_pid(self) -> int | None:
        """The controller that holds this home."""
        return _holder(self.layout.controller_lock, "tenure.controller")

    @property
    def agent_pid(self) -> int | None:
        """The agent that holds this home."""
        return _holder(self.layout.agent_lock, "tenure.agent")

    def supervisor_pid(self, job: str, attempt: int = 1) -> int:
        """The supervisor of an attempt, from its record."""
        return int(json.loads((self.layout.attempt(job, attempt) / "supervisor.json").read_bytes())["pid"])

    def kill(self, *who: str) -> None:
        """SIGKILL to ``controller`` and ``agent`` as named, at once; waits until they are gone."""
        pids = [self.controller_pid if name == "controller" else self.agent_pid for name in who]
        for pid in filter(None, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in filter(None, pids):
            self.wait(lambda pid=pid: not is_alive(pid), f"the end of {pid}")  # type: ignore[misc]
        for child in self.children:
            child.poll()

    def mine(self) -> list[int]:
        """Every process of this home: by its environment, or by a working directory inside (supervisors)."""
        mark, root = f"TENURE_HOME={self.layout.home}".encode(), str(self.layout.home)
        controller = f"RC_CONTROLLER={self.layout.ctl_sock}".encode()
        found = []
        for pid in all_pids():
            words = environ_of(pid)
            if mark in words or controller in words or cwd_of(pid).startswith(root):
                found.append(pid)
        return found

    def close(self) -> None:
        """Kills everything that belongs to this home, in whatever state it is, and waits until nothing is left."""
        end = time.monotonic() + 20.0
        while pids := [pid for pid in self.mine() if pid != os.getpid() and is_alive(pid)]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for child in self.children:
                child.poll()
            assert time.monotonic() < end, f"cannot be killed: {pids}"
            time.sleep(0.01)
        for child in self.children:
            child.wait(5)


@contextlib.contextmanager
def homes() -> Iterator[Callable[..., Home]]:
    """A maker of homes under one short folder in /tmp, or at a ``place`` given; all are torn down, and the folder goes,
    at the end."""
    root = Path(tempfile.mkdtemp(prefix="tk-", dir="/tmp"))
    root.chmod(0o755)
    made: list[Home] = []

    def make(name: str = "a", *, place: Path | None = None, **settings: Any) -> Home:
        if place is None:
            place = root / name
            place.mkdir()
        made.append(Home.make(place, **settings))
        return made[-1]

    try:
        yield make
    finally:
        try:
            for home in made:
                home.close()
        finally:
            shutil.rmtree(root, ignore_errors=True)


def joined(lines: Sequence[Mapping[str, Any]], gaps: list[Mapping[str, Any]] | None = None) -> bytes:
    """The bytes of a stream's output lines; no byte twice, none left out. Gaps go to ``gaps``, and fail without it."""
    data = bytearray()
    for line in lines:
        if line["type"] == "gap":
            assert gaps is not None, line
            gaps.append(line)
        if line["type"] == "output":
            assert line["offset"] == len(data), f"offset {line['offset']} after {len(data)} bytes"
            data += base64.b64decode(line["data"])
    return bytes(data)


def control(without_cgroups: bool) -> tuple[str, ...]:
    """The prefix of a home with or without the cgroups of this machine."""
    if not without_cgroups:
        return ()
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root: takes cgroups away, to show that the subreaper alone kills whole trees")
    if subprocess.run([*NO_CGROUPS, "true"], capture_output=True, check=False).returncode != 0:
        return ()  # none are mounted: without this home is without them as well
    return NO_CGROUPS


# -- /proc


def all_pids() -> list[int]:
    """Every process there is."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 (a Path a name is slow)


def stat_of(pid: int) -> tuple[bool, int, int] | None:
    """(alive, parent, start in ticks) of a process; None where it is gone. A zombie runs nothing: it is not alive."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0] not in (b"Z", b"X") or int(fields[17]) > 1, int(fields[1]), int(fields[19])


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    found = stat_of(pid)
    return found is not None and found[0]


def environ_of(pid: int) -> list[bytes]:
    """The environment of a process; empty where it is gone or not ours to read."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def cwd_of(pid: int) -> str:
    """The working directory of a process; empty where it is gone."""
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""


def members(job: str) -> list[int]:
    """The living processes that carry a job's id in their environment."""
    mark = f"RC_JOB_ID={job}".encode()
    return [pid for pid in all_pids() if mark in environ_of(pid) and is_alive(pid)]


def _holder(lock: Path, module: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        pid = int(lock.read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if module.encode() in words and is_alive(pid):
            return pid
    return None
