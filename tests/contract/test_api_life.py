"""The controller as a process: how it comes up, what it refuses to come up on, and how it goes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.contract.controller_world import Agent, connected, registration

from tenure.domain import commands as cmd
from tenure.errors import CODES
from tenure.paths import Layout, layout

START_S = 60.0


class Process:
    """``python -m tenure.controller`` on a home of its own, without an agent."""

    def __init__(self, home: Path) -> None:
        self.layout: Layout = layout(home)
        self.path = str(self.layout.ctl_sock)
        self.process = self.spawn()

    def spawn(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tenure.controller"],
            env={**os.environ, "TENURE_HOME": str(self.layout.home)},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(transport=httpx.HTTPTransport(uds=self.path), base_url="http://tenure", timeout=30)

    def wait_ready(self) -> dict[str, Any]:
        end = time.monotonic() + START_S
        while True:
            try:
                with self.http as client:
                    status: dict[str, Any] = client.get("/v1/status").json()
                return status
            except httpx.TransportError:
                assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
                assert time.monotonic() < end, "it never answered"
                time.sleep(0.01)

    def ends(self, seconds: float = 30.0) -> tuple[int, str]:
        _, told = self.process.communicate(timeout=seconds)
        return self.process.returncode, told


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tn") as folder:
        yield Path(folder)


@pytest.fixture
def controller(home: Path) -> Iterator[Process]:
    process = Process(home)
    yield process
    if process.process.poll() is None:
        process.process.kill()
    process.process.communicate()


class Place:
    """What ``connected`` needs to know of a controller."""

    def __init__(self, path: str) -> None:
        self.path = path


async def _with_a_running_job(controller: Process, then: Any) -> str:
    async with connected(Place(controller.path)) as agent:  # type: ignore[arg-type]
        with controller.http as client:
            job: str = client.post("/v1/jobs", json={"argv": ["x"]}).json()["job"]["id"]
        start = await agent.start_of(job)
        await agent.started(start)
        await agent.output(start, 0, b"so far")
        await agent.output_acked(6)
        await asyncio.to_thread(then, agent)
    return job


def _error(told: str) -> dict[str, Any]:
    """The error for programs among what was said on stderr."""
    [line] = [line for line in told.splitlines() if line.startswith('{"event": "refused"')]
    error: dict[str, Any] = json.loads(line)["error"]
    return error


def test_the_first_request_finds_all_of_it(controller: Process) -> None:
    end = time.monotonic() + START_S
    while not Path(controller.path).exists():
        assert time.monotonic() < end
        time.sleep(0.001)
    with controller.http as client:  # at once, as soon as there is a socket: it waits, and is answered
        answers = [client.get("/v1/status"), client.get("/v1/devices"), client.get("/v1/jobs")]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[0].json()["pid"] == controller.process.pid
    assert answers[0].json()["ledger_version"] >= 1, "that it began is on record before anybody is answered"


def test_a_socket_left_by_a_killed_controller_is_replaced_and_everything_is_there(controller: Process) -> None:
    controller.wait_ready()

    def kill(_: Agent) -> None:
        controller.process.kill()
        controller.ends()

    job = asyncio.run(_with_a_running_job(controller, kill))
    assert Path(controller.path).exists(), "it had no time to tidy up"
    controller.process = controller.spawn()
    status = controller.wait_ready()
    assert status["running"] == 1
    with controller.http as client:
        found = client.get(f"/v1/jobs/{job}").json()
        assert (found["state"], found["pid"]) == ("running", 4711)
        lines = client.get(f"/v1/jobs/{job}/output").text.splitlines()
        told = [json.loads(line) for line in lines]
        assert [line["data"] for line in told if line["type"] == "output"] == ["c28gZmFy"]
        [device] = client.get("/v1/devices").json()["devices"]
        assert (device["state"], device["free"]) == ("unknown", False)


def test_a_second_controller_goes_and_names_the_first(controller: Process) -> None:
    controller.wait_ready()
    second = controller.spawn()
    _, told = second.communicate(timeout=START_S)
    assert second.returncode == CODES["already_running"].exit == 73
    assert f"pid {controller.process.pid}" in told
    assert _error(told)["facts"]["pid"] == str(controller.process.pid)
    assert controller.wait_ready()["pid"] == controller.process.pid


def test_shutting_down_with_running_jobs_wants_to_be_told_so(controller: Process) -> None:
    controller.wait_ready()

    def shut(_: Agent) -> None:
        with controller.http as client:
            refused = client.post("/v1/shutdown", json={})
            assert refused.status_code == 409
            error = refused.json()["error"]
            assert error["code"] == "jobs_running"
            assert "--leave" in error["do"]
            [job] = error["facts"]["jobs"]
            waiting = client.post("/v1/jobs", json={"argv": ["x"]}).json()["job"]["id"]
            left = client.post("/v1/shutdown", json={"leave": True})
            assert left.status_code == 202
            assert left.json() == {"left_running": [job], "left_queued": [waiting], "pid": controller.process.pid}
            try:
                again = client.post("/v1/shutdown", json={"leave": True})  # it is going: one more is no harm
                assert again.status_code == 202
            except httpx.TransportError:
                pass
        assert controller.ends()[0] == 0

    job = asyncio.run(_with_a_running_job(controller, shut))
    controller.process = controller.spawn()
    assert controller.wait_ready()["running"] == 1
    with controller.http as client:
        assert client.get(f"/v1/jobs/{job}").json()["state"] == "running"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_jobs_and_puts_everything_away(controller: Process, number: signal.Signals) -> None:
    controller.wait_ready()

    def end(agent: Agent) -> None:
        controller.process.send_signal(number)
        code, told = controller.ends()
        assert (code, told) == (0, "")
        assert not controller.layout.ledger_db.with_name("ledger.db-wal").exists(), "the ledger was closed"

    job = asyncio.run(_with_a_running_job(controller, end))
    controller.process = controller.spawn()
    controller.wait_ready()
    with controller.http as client:
        assert client.get(f"/v1/jobs/{job}").json()["state"] == "running"


def test_open_streams_do_not_hold_up_the_end(controller: Process) -> None:
    controller.wait_ready()
    streams = []
    for _ in range(5):
        plain = socket.socket(socket.AF_UNIX)
        plain.connect(controller.path)
        plain.sendall(b"GET /v1/events?after=0 HTTP/1.1\r\nHost: x\r\n\r\n")
        plain.settimeout(10)
        plain.recv(100)
        streams.append(plain)
    began = time.monotonic()
    controller.process.terminate()
    assert controller.ends()[0] == 0
    assert time.monotonic() - began < 5.0
    for plain in streams:
        plain.close()


# -- what it will not come up on ---------------------------------------------------------------------------------------


def _refused(home: Path, *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tenure.controller", *options],
        env={**os.environ, "TENURE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=START_S,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize("content", [b"", b"this is no database" * 100, b"SQLite format 3\x00" + b"\xff" * 8000])
def test_a_damaged_ledger_is_refused_with_its_path_and_the_next_command(home: Path, content: bytes) -> None:
    where = layout(home)
    where.create()
    where.ledger_db.write_bytes(content)
    code, told = _refused(home)
    assert code == CODES["damaged_state"].exit
    first = told.splitlines()[0]
    assert "damaged_state" in first
    assert str(where.ledger_db) in first
    assert "cp -a" in first
    assert _error(told)["facts"]["path"] == str(where.ledger_db)
    assert where.ledger_db.read_bytes() == content, "and it is left as it was"
    assert not where.ctl_sock.exists()


def test_a_ledger_that_is_a_folder_is_refused(home: Path) -> None:
    where = layout(home)
    where.create()
    where.ledger_db.mkdir()
    code, told = _refused(home)
    assert code == CODES["damaged_state"].exit
    assert str(where.ledger_db) in told


def test_a_home_that_cannot_be_made_is_named(home: Path) -> None:
    (home / "file").write_text("x")
    code, told = _refused(home / "file")
    assert code == CODES["io_error"].exit
    assert str(home / "file") in told
    assert f"mv {home / 'file'} " in told


def test_a_socket_path_taken_by_something_else_is_named(home: Path) -> None:
    where = layout(home)
    where.create()
    where.ctl_sock.write_text("precious")
    code, told = _refused(home)
    assert code == CODES["io_error"].exit
    assert str(where.ctl_sock) in told
    assert where.ctl_sock.read_text() == "precious"


def test_an_embedded_controller_that_does_not_come_up_leaves_no_agent_behind(home: Path) -> None:
    where = layout(home)
    where.create()
    where.ctl_sock.write_text("in the way")
    code, told = _refused(home, "--embedded")
    assert code == CODES["io_error"].exit, told
    end = time.monotonic() + 20
    while left := _processes_of(home):
        assert time.monotonic() < end, left
        time.sleep(0.05)


def _processes_of(home: Path) -> list[str]:
    mark = f"TENURE_HOME={home}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_a_full_disk_is_called_that(home: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: a small tmpfs that is really full")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(home)], check=True)
    try:
        code, told = _refused(home)
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)
    assert code == CODES["disk_full"].exit, told
    assert "df -h" in told


def test_a_network_file_system_is_refused(home: Path) -> None:
    """What counts as one is decided in ``tenure.mounts``, from a table that here says that the home lies on NFS."""
    code = (
        "import sys, tenure.mounts as m, pathlib\n"
        "def network(path): raise m.TenureError('network_file_system', f'{path} is on nfs', do='set TENURE_HOME')\n"
        "m.require_local = network\n"
        "import tenure.paths; tenure.paths.require_local = network\n"
        "from tenure.controller.__main__ import main\n"
        "sys.exit(main([]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TENURE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=START_S,
    )
    assert done.returncode == CODES["network_file_system"].exit == 78
    assert "TENURE_HOME" in done.stderr
    assert not list(home.iterdir())


def test_a_registration_still_counts_after_the_restart(controller: Process) -> None:
    controller.wait_ready()

    async def register() -> None:
        known = (cmd.KnownAttempt("j1", 1, {"h:gpu0": 1}),)
        async with connected(Place(controller.path), registration(known=known)):  # type: ignore[arg-type]
            pass

    asyncio.run(register())
    with controller.http as client:
        [agent] = client.get("/v1/status").json()["agents"]
    assert (agent["id"], agent["host"]) == ("a-h", "h")
