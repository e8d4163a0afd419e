"""Somebody who never asked is on a device: seen, named, never given it; and gone again."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Iterator

import pytest
from tests.kill.harness import ApiError, Home, homes


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with homes() as make:
        made = make(sim="2xH100")
        made.up(3)
        yield made


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.mark.timeout(120)
def test_a_stranger_makes_an_unleased_device_occupied(home: Home, stranger: subprocess.Popen[bytes]) -> None:
    home.device("gpu0", "ready")
    home.scenario.add_process(0, stranger.pid, memory_mb=500, sm_util=40)
    seen = home.device("gpu0", "occupied")
    user = pwd.getpwuid(os.getuid()).pw_name
    assert f"pid {stranger.pid} ({user}): sleep" in seen["words"]
    assert not seen["free"]
    assert home.devices()["gpu1"]["state"] == "ready", "the other device is none of his business"

    with pytest.raises(ApiError) as refused:
        home.submit(["true"], device="h:gpu0", wait=False)
    assert refused.value.code == "busy"
    assert str(stranger.pid) in str(refused.value.error)

    waiting = home.submit(["/bin/sh", "-c", "exit 4"], device="h:gpu0")["id"]
    elsewhere = home.submit(["true"], select="vram>=1G")["id"]
    assert home.ended(elsewhere)["devices"] == ["h:gpu1"], "a selector passes the occupied device by"
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        assert home.job(waiting)["state"] == "queued"
        assert home.devices()["gpu0"]["state"] == "occupied"
        time.sleep(0.02)

    stranger.kill()
    stranger.wait()
    assert home.ended(waiting)["exit_status"] == 4
    home.device("gpu0", "ready")


@pytest.mark.timeout(120)
def test_memory_that_nobody_owns_up_to_is_somebody(home: Home) -> None:
    home.device("gpu1", "ready")
    rest = home.scenario.get(1, "memory_used_mb")
    home.scenario.set(1, "memory_used_mb", 9000)
    try:
        seen = home.device("gpu1", "occupied")
        assert "above the resting baseline" in seen["words"]
        waiting = home.submit(["true"], device="h:gpu1")["id"]
        time.sleep(1.0)
        assert home.job(waiting)["state"] == "queued"
    finally:
        home.scenario.set(1, "memory_used_mb", rest)
    assert home.ended(waiting)["exit_status"] == 0


@pytest.mark.timeout(120)
def test_a_stranger_beside_a_lease_is_contention(home: Home, stranger: subprocess.Popen[bytes]) -> None:
    home.device("gpu0", "ready")
    job = home.submit(["sleep", "600"], device="h:gpu0")["id"]
    home.reaches(job, "running")
    assert home.devices()["gpu0"]["contended"] is None
    home.scenario.add_process(0, stranger.pid, memory_mb=500, sm_util=40)
    seen = home.wait(lambda: (d := home.devices()["gpu0"])["contended"] and d, "contention")
    assert seen["state"] == "busy"
    assert str(stranger.pid) in str(seen["contended"])
    assert "contended" in seen["words"]

    # The job goes: the device is the stranger's, not free.
    home.ask("POST", f"/v1/jobs/{job}/stop", {"reason": "test"})
    home.ended(job)
    home.device("gpu0", "occupied")
    waiting = home.submit(["true"], device="h:gpu0")["id"]
    time.sleep(1.0)
    assert home.job(waiting)["state"] == "queued"
    stranger.kill()
    stranger.wait()
    assert home.ended(waiting)["exit_status"] == 0
    home.device("gpu0", "ready")


@pytest.mark.timeout(120)
def test_contention_ends_when_the_stranger_leaves(home: Home, stranger: subprocess.Popen[bytes]) -> None:
    home.device("gpu0", "ready")
    job = home.submit(["sleep", "600"], device="h:gpu0")["id"]
    home.reaches(job, "running")
    home.scenario.add_process(0, stranger.pid, memory_mb=500)
    home.wait(lambda: home.devices()["gpu0"]["contended"], "contention")
    home.scenario.remove_process(0, stranger.pid)
    home.wait(lambda: home.devices()["gpu0"]["contended"] is None, "the end of the contention")
    home.ask("POST", f"/v1/jobs/{job}/stop", {"reason": "test"})
    home.ended(job)
    home.device("gpu0", "ready")
