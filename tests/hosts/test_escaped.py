"""Processes that nobody can end, or find: their device is not free while they are there, and nobody waits for them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.fleet import Fleet, until
from tests.kill.harness import is_alive

from tenure.testing.nvml import Scenario

pytestmark = [
    pytest.mark.root(reason="mounts a share that never answers, to show that what hangs in it hangs nothing else"),
    pytest.mark.timeout(180),
]

SHARE = Path(__file__).parents[1] / "e2e" / "fuse_share.py"


@pytest.fixture
def elsewhere() -> Iterator[subprocess.Popen[bytes]]:
    """What a daemon runs for a job, and does not say for whom: no descent, no session, no environment, no mark."""
    process = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_an_escaped_process_of_a_lost_worker_keeps_its_device(hosts: Fleet, elsewhere: subprocess.Popen[bytes]) -> None:
    host = hosts.joined("escaped")
    controller, pid = hosts.controller, elsewhere.pid
    job = controller.submit("escaped:gpu0", "/bin/sleep", "600", grace_s=0.2)
    controller.running(job)
    Scenario(host.paths.sim_scenario).add_process(0, pid, memory_mb=700, sm_util=30)
    waiting = controller.submit("escaped:gpu0", "/bin/sh", "-c", "exit 6")
    host.kill(signal.SIGKILL)
    os.kill(host.supervisor(job), signal.SIGKILL)
    host.agent()
    record = controller.ended(job)
    assert (record["outcome"]["ending"], record["exit_status"]) == ("lost", 71), record["words"]
    named = until(lambda: _named(controller.devices()["escaped:gpu0"], pid), "the device to say by whom it is kept")
    assert named["state"] in ("ending", "unhealthy", "occupied"), named["words"]
    end = time.monotonic() + 4.0
    while time.monotonic() < end:
        device = controller.devices()["escaped:gpu0"]
        assert _named(device, pid), device["words"]
        assert not device["free"]
        assert controller.record(waiting)["state"] == "queued"
        time.sleep(0.1)
    assert elsewhere.poll() is None, "nobody signals what cannot be shown to be the job's"
    assert f"pid {pid}" in controller.rc("devices").stdout
    elsewhere.kill()
    elsewhere.wait()
    assert controller.ended(waiting)["exit_status"] == 6
    controller.reaches("escaped:gpu0", "ready")


def _named(device: dict[str, Any], pid: int) -> dict[str, Any] | None:
    return device if f"pid {pid}" in device["words"] else None


@contextlib.contextmanager
def mute_share(place: Path) -> Iterator[int]:
    """A share whose server is gone: what asks it sleeps where no signal wakes it. Gives the server's pid."""
    place.mkdir()
    server = subprocess.Popen([sys.executable, SHARE, place, "mute-server:/", "mute"], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"mounted\n"
    try:
        yield server.pid
    finally:
        subprocess.run(["umount", "-f", place], check=False, capture_output=True)
        server.kill()
        server.wait(10)
        subprocess.run(["umount", "-l", place], check=False, capture_output=True)


def test_a_process_that_no_signal_wakes_hangs_nothing_else(hosts: Fleet, tmp_path: Path) -> None:
    hosts.joined("sleeps", sim="2xH100")
    hosts.joined("answers")
    controller = hosts.controller
    with mute_share(tmp_path / "share") as server:
        script = f"echo here; exec ls {tmp_path}/share/file"
        job = controller.submit("sleeps:gpu0", "/bin/sh", "-c", script, grace_s=0.2)
        pid = int(controller.running(job)["pid"])
        until(lambda: "fuse" in _waits_in(pid), "a call of the share")
        controller.ask("POST", f"/v1/jobs/{job}/stop", {"reason": "test"})
        until(lambda: _state(pid) == "D", "SIGKILL to leave it in a sleep that nothing ends")
        end = time.monotonic() + 6.0
        while time.monotonic() < end:
            began = time.monotonic()
            devices = controller.devices()
            assert time.monotonic() - began < 2.0, "an answer waited for it"
            assert devices["sleeps:gpu0"]["state"] in ("busy", "ending", "unhealthy"), devices["sleeps:gpu0"]["words"]
            assert devices["sleeps:gpu0"]["contact"], "its agent hangs"
            time.sleep(0.2)
        assert _state(pid) == "D", "SIGKILL ended it: that proves nothing here"
        began = time.monotonic()
        assert controller.rc("devices").returncode == 0
        assert controller.ended(controller.submit("answers:gpu0", "/bin/sh", "-c", "exit 3"))["exit_status"] == 3
        assert controller.ended(controller.submit("sleeps:gpu1", "/bin/sh", "-c", "exit 3"))["exit_status"] == 3
        assert time.monotonic() - began < 20.0
        os.kill(server, signal.SIGKILL)
    until(lambda: not is_alive(pid), "its end, now that the share is gone")
    record = controller.ended(job)
    assert record["outcome"]["ending"] in ("signaled", "exited"), record["words"]
    controller.reaches("sleeps:gpu0", "ready")


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "gone"


def _waits_in(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stack").read_text() + Path(f"/proc/{pid}/wchan").read_text()
    return ""
