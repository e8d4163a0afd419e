"""Processes of Tenure that stop moving, lose their socket, or are killed where it hurts: late, and never wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kill import outside
from tests.kill.harness import PYTHON, Home, control, homes, is_alive, members
from tests.kill.test_crashes import COUNTER

FROZEN_S = 3.0
GONE_S = 17.0  # past the 15 s after which a silent agent's devices are unknown


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with homes() as make:
        made = make(sim="2xH100")
        made.up(3)
        yield made


@contextlib.contextmanager
def frozen(pid: int | None) -> Iterator[None]:
    """SIGSTOP while inside."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def counting(home: Home, notes: Path, lines: int, code: int, device: str = "h:gpu0") -> str:
    """A job that numbers its lines, one every 3 ms, and ends with a code; runs when this comes back."""
    argv = [*PYTHON, COUNTER, str(lines), str(code), str(notes)]
    job = str(home.submit(argv, device=device)["id"])
    home.wait(lambda: (notes / f"{job}.began").exists(), f"{job} to begin")
    return job


def holds(home: Home, job: str, notes: Path, lines: int, code: int) -> None:
    """The job's end is on record, and its output is whole."""
    record = home.ended(job, 60.0)
    pid = (notes / f"{job}.began").read_text().split()
    assert len(pid) == 1, f"started {len(pid)} times"
    assert (record["outcome"]["ending"], record["exit_status"]) == ("exited", code), record["words"]
    assert str(record["pid"]) == pid[0]
    right = f"pid {pid[0]}\n" + "".join(f"line {number}\n" for number in range(lines))
    assert home.output(job).decode() == right


def never_ready(home: Home, device: str, seconds: float) -> set[str]:
    """The states that a device shows for so long; fails where ready is one of them."""
    states = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        states.add(str(home.devices()[device]["state"]))
        time.sleep(0.02)
    assert "ready" not in states, states
    return states


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_frozen_agent_loses_nothing_and_frees_nothing(home: Home, tmp_path: Path) -> None:
    home.device("gpu0", "ready")
    job = counting(home, tmp_path, 300, 5)  # ends while nobody watches
    with frozen(home.agent_pid):
        never_ready(home, "gpu0", FROZEN_S)
        assert (tmp_path / f"{job}.ends").exists()
        assert home.job(job)["state"] in ("starting", "running"), "nobody has told of its end"
    holds(home, job, tmp_path, 300, 5)
    home.device("gpu0", "ready")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_an_agent_frozen_for_long_is_unknown_until_it_proves(home: Home, tmp_path: Path) -> None:
    home.device("gpu0", "ready")
    job = counting(home, tmp_path, 400, 6)
    with frozen(home.agent_pid):
        assert never_ready(home, "gpu0", GONE_S) >= {"unknown"}
        seen = home.devices()["gpu0"]
        assert seen["words"].startswith("unknown (no contact"), seen["words"]
        assert seen["job"] == job, "the lease stays in force"
        assert home.job(job)["state"] == "running"
    holds(home, job, tmp_path, 400, 6)
    home.device("gpu0", "ready")


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("seconds", [FROZEN_S, GONE_S], ids=["short", "long"])
def test_a_frozen_controller_counts_against_nobody(home: Home, tmp_path: Path, seconds: float) -> None:
    home.device("gpu0", "ready")
    before = home.ask("GET", "/v1/status")["ledger_version"]
    job = counting(home, tmp_path, int(seconds * 400), 7)
    with frozen(home.controller_pid):
        time.sleep(seconds)
        assert members(job)
    holds(home, job, tmp_path, int(seconds * 400), 7)
    home.device("gpu0", "ready")
    assert not _events(home, "contact_lost", before), "the controller's own silence was held against the agent"


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_frozen_supervisor_keeps_its_device(home: Home, tmp_path: Path) -> None:
    home.device("gpu0", "ready")
    job = counting(home, tmp_path, 200, 8)
    with frozen(home.supervisor_pid(job)):
        home.wait(lambda: not members(job), "the command to end by itself")
        states = never_ready(home, "gpu0", FROZEN_S)
        assert states <= {"busy", "ending"}
    holds(home, job, tmp_path, 200, 8)
    home.device("gpu0", "ready")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_no_job_escapes_its_stop_by_freezing_its_supervisor(home: Home) -> None:
    home.device("gpu0", "ready")
    script = "trap '' TERM; kill -STOP $PPID; echo frozen; sleep 600; sleep 600"
    job = str(home.submit(["/bin/sh", "-c", script], device="h:gpu0", grace_s=0.1)["id"])
    home.wait(lambda: len(members(job)) == 2, "the tree")
    supervisor = home.supervisor_pid(job)
    home.wait(lambda: b") T " in Path(f"/proc/{supervisor}/stat").read_bytes(), "the supervisor to stop")
    never_ready(home, "gpu0", 1.0)
    home.ask("POST", f"/v1/jobs/{job}/stop", {"reason": "test"})
    assert home.ended(job)["outcome"]["ending"] == "signaled"
    assert not members(job)
    home.device("gpu0", "ready")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_supervisor_killed_mid_job_takes_its_tree_with_it(home: Home) -> None:
    script = "trap '' TERM; (setsid sh -c \"trap '' TERM; sleep 600; sleep 600\" &); sleep 600 & sleep 600; sleep 600"
    lost = 0
    with outside.observing(home) as seen:
        for number in range(10):
            home.device("gpu0", "ready")
            job = str(home.submit(["/bin/sh", "-c", script], device="h:gpu0", env=seen.environment)["id"])
            home.reaches(job, "running")
            time.sleep(0.02 * number)
            os.kill(home.supervisor_pid(job), signal.SIGKILL)
            record = home.ended(job)
            assert record["outcome"]["ending"] == "lost", record["words"]
            assert record["exit_status"] != 0
            home.device("gpu0", "ready")
            assert not members(job)
            lost += 1
    early, margins = outside.released_early(seen, home)
    found = [*outside.shown_free(seen), *early, *outside.overlapping(seen)]
    print(f"\n{lost} supervisors killed: {outside.summary(seen, margins)}")
    assert not found, found


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_what_hides_from_a_killed_supervisor_keeps_its_device() -> None:
    hides = "(env -i setsid sh -c 'exec sleep 600' </dev/null >/dev/null 2>&1 & echo $!)"
    with homes() as make:
        home = make(sim="1xH100", prefix=control(without_cgroups=True))
        home.up(2)
        home.device("gpu0", "ready")
        job = str(home.submit(["/bin/sh", "-c", f"{hides}; sleep 600; true"], device="h:gpu0")["id"])
        home.wait(lambda: b"\n" in home.output(job), "the hidden process")
        hidden = int(home.output(job))
        try:
            os.kill(home.supervisor_pid(job), signal.SIGKILL)
            home.ended(job)
            end = time.monotonic() + 5.0
            while time.monotonic() < end:
                assert home.devices()["gpu0"]["state"] != "ready" or not is_alive(hidden)
                time.sleep(0.02)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(hidden, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_supervisor_agent_and_controller_killed_at_once(home: Home) -> None:
    home.device("gpu0", "ready")
    script = "trap '' TERM; (setsid sh -c \"trap '' TERM; sleep 600; sleep 600\" &); sleep 600; sleep 600"
    job = str(home.submit(["/bin/sh", "-c", script], device="h:gpu0")["id"])
    home.reaches(job, "running")
    home.wait(lambda: len(members(job)) >= 3, "the tree")
    os.kill(home.supervisor_pid(job), signal.SIGKILL)
    home.kill("controller", "agent")
    assert members(job), "nobody was left to kill the tree"
    home.start()
    home.answers()
    end = time.monotonic() + 40.0
    while home.devices()["gpu0"]["state"] != "ready":
        assert time.monotonic() < end, home.devices()["gpu0"]["words"]
    assert not members(job), "the device was free before the tree was gone"
    assert home.ended(job)["outcome"]["ending"] == "lost"


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_socket_that_is_deleted_comes_back(home: Home, tmp_path: Path) -> None:
    home.device("gpu0", "ready")
    job = counting(home, tmp_path, 600, 9)
    pid = home.controller_pid
    home.layout.ctl_sock.unlink()
    assert home.answers(20.0)["pid"] is not None
    assert pid is not None
    assert is_alive(pid) == (home.controller_pid == pid), "two controllers"
    holds(home, job, tmp_path, 600, 9)
    home.device("gpu0", "ready")


def _events(home: Home, kind: str, after: int) -> list[object]:
    import sqlite3

    with contextlib.closing(sqlite3.connect(f"file:{home.layout.ledger_db}?mode=ro", uri=True)) as ledger:
        return ledger.execute("select at, body from events where kind = ? and seq > ?", (kind, after)).fetchall()
