"""A job's output to the last byte: at every size that fits a test, through kills, to a quota, on a terminal.

The same at full size is ``make soak``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import RC, House, environment_of, until
from tests.soak.stream import killer, pass_through, without_notices
from tests.unit.cli.terminal import on_a_terminal


@pytest.mark.parametrize(
    ("kind", "size"), [("flat", 16 << 20), ("bars", 5000), ("nuls", 3_000_001), ("emoji", 2000), ("lines", 1)]
)
def test_what_is_written_is_stored_and_shown(house: House, kind: str, size: int) -> None:
    passed = pass_through(house, kind, size)
    assert passed.exact, passed
    counted = {"bytes": len(passed.said), "sha256": hashlib.sha256(passed.said).hexdigest()}
    assert counted == passed.produced["stderr"], passed.said[-500:]
    assert passed.status == 0
    told = json.loads(house.rc("logs", passed.job, "-o", "json").stdout.splitlines()[-1])
    counts = {name: stream["bytes"] for name, stream in passed.produced.items()}
    assert (told["type"], told["agree"], told["words"]) == ("account", True, [])
    assert told["produced"] == told["shown"] == counts
    assert told["stored"] == told["held"] == sum(counts.values())


@pytest.mark.parametrize("who", ["agent", "controller"])
def test_a_kill_in_the_middle_costs_no_byte(own_house: House, who: str) -> None:
    lock = own_house.paths.agent_lock if who == "agent" else own_house.paths.controller_lock
    passed = pass_through(own_house, "lines", 6, during=killer(own_house, lock, 7, (0.5, 1.5)), timeout_s=150)
    assert passed.kills, "nothing was killed"
    assert passed.exact, (passed.kills, passed.said[-2000:], passed)
    assert passed.status == 0, passed.said[-2000:]


def _quota_notices(house: House, job: str) -> list[dict[str, Any]]:
    return [notice for notice in house.json("describe", job)["notices"] if notice["kind"] == "output_quota"]


def _run(house: House, *words: str, script: str) -> tuple[subprocess.CompletedProcess[bytes], dict[str, Any]]:
    done = house.rc("run", "-q", "-d", house.gpu(0), *words, "--", "sh", "-c", script)
    return done, house.newest()


def test_a_quota_is_announced_when_it_is_hit_and_the_job_goes_on(house: House, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"head -c 3000 /dev/zero; head -c 9000 /dev/zero >&2; while [ ! -e {go} ]; do sleep 0.05; done; exit 5"
    running = house.start("run", "-q", "-d", house.gpu(0), "--output-quota", "4k", "--", "sh", "-c", script)
    job = until(lambda: house.json("ps")["jobs"], "it runs")[0]["id"]
    notices = until(lambda: _quota_notices(house, job), "the quota is announced while it runs")
    assert house.json("describe", job)["state"] == "running"
    assert len(notices) == 1
    assert "4 KiB is used up" in notices[0]["words"]
    assert notices[0]["facts"] == {"quota_bytes": 4096}
    go.touch()
    out, err = running.communicate(timeout=30)
    assert running.returncode == 5, "a job is not ended for its output"
    assert out == bytes(3000)
    said = without_notices(err).replace(b"\0", b"").decode().splitlines()
    assert err.count(b"\0") == 4096 - 3000
    assert err.count(b"rc: notice: the output quota of 4 KiB is used up") == 1
    gap = "7904 bytes of stderr are missing here, at byte 4096: the output quota was used up"
    assert sum(gap in line for line in said) == 1
    assert "stderr: 9000 bytes were written and 1096 shown: 7904 were not stored (the output quota" in said[-1]
    assert not any("stdout:" in line for line in said), "stdout agrees"
    for words in (("logs", job), ("logs", job, "-f"), ("attach", "-q", job)):
        told = house.rc(*words).stderr.decode(errors="replace")
        assert gap in told, words
        assert "7904 were not stored" in told, words
    pieces = [json.loads(line) for line in house.rc("logs", job, "-o", "json").stdout.splitlines()]
    gaps = [(one["offset"], one["stream"], one["bytes"], one["cause"]) for one in pieces if one["type"] == "gap"]
    assert gaps == [(4096, "stderr", 7904, "quota")]
    account = json.loads(house.rc("attach", job, "-o", "json").stdout)["output"]
    assert (account["agree"], account["produced"]) == (False, {"stdout": 3000, "stderr": 9000})
    assert (account["stored"], account["held"], account["shown"]) == (4096, 4096, {"stdout": 3000, "stderr": 1096})


def test_a_quota_is_announced_once_whatever_becomes_of_the_agent(own_house: House, tmp_path: Path) -> None:
    house, go = own_house, tmp_path / "go"
    script = f"head -c 9000 /dev/zero; while [ ! -e {go} ]; do sleep 0.05; done"
    running = house.start("run", "-q", "-d", house.gpu(0), "--output-quota", "1k", "--", "sh", "-c", script)
    job = until(lambda: house.json("ps")["jobs"], "it runs")[0]["id"]
    until(lambda: _quota_notices(house, job), "the quota is announced")
    agent = house.pid_of(house.paths.agent_lock)
    assert agent is not None
    assert str(house.home).encode() in environment_of(agent)
    os.kill(agent, signal.SIGKILL)
    until(lambda: house.pid_of(house.paths.agent_lock) not in (None, agent), "another agent came up")
    log = house.paths.agent_log
    until(lambda: f"{job}#1 goes on under its supervisor" in log.read_text(errors="replace"), "it took the job up")
    go.touch()
    _, err = running.communicate(timeout=60)
    assert running.returncode == 0
    assert err.count(b"is used up") == 1
    assert len(_quota_notices(house, job)) == 1
    assert b"7976 were not stored (the output quota was used up)" in err
    assert "1024 bytes, 7976 more were written and not stored" in house.rc("describe", job).stdout.decode()


def test_a_quota_that_is_not_reached_says_nothing(house: House) -> None:
    done, job = _run(house, "--output-quota", "10", script="printf 0123456789")
    assert (done.stdout, without_notices(done.stderr)) == (b"0123456789", b"")
    assert "output_quota" not in {notice["kind"] for notice in job["notices"]}


def test_bytes_lost_to_a_full_disk_are_told_where_they_are_missing(house: House, tmp_path: Path) -> None:
    """The job itself makes its own output's file fail for a while: RLIMIT_FSIZE of its supervisor, set by prlimit."""
    script = """
import os, resource, time
def settle():
    import fcntl, termios
    while fcntl.ioctl(1, termios.FIONREAD, bytes(4)) != bytes(4):
        time.sleep(0.002)
    time.sleep(0.2)
os.write(1, b"before\\n"); settle()
resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (7, resource.RLIM_INFINITY))
os.write(1, b"x" * 5000); settle()
os.write(2, b"y" * 300); settle()
resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
os.write(1, b"after\\n")
"""
    program = tmp_path / "program.py"
    program.write_text(script)
    done = house.rc("run", "-q", "-d", house.gpu(0), "--", sys.executable, "-I", str(program))
    assert done.returncode == 0
    assert done.stdout == b"before\nafter\n"
    said = done.stderr.decode()
    for stream, count in (("stdout", 5000), ("stderr", 300)):
        assert f"{count} bytes of {stream} are missing here, at byte 7: the disk of the job's host refused them" in said
        assert f"{count} were not stored (the disk of its host refused them)" in said
    job = house.newest()["id"]
    pieces = [json.loads(line) for line in house.rc("logs", job, "-o", "json").stdout.splitlines()]
    order = [
        (p["type"], p["offset"], p.get("stream"), p.get("bytes")) for p in pieces if p["type"] in ("output", "gap")
    ]
    assert order == [
        ("output", 0, "stdout", None),
        ("gap", 7, "stdout", 5000),
        ("gap", 7, "stderr", 300),
        ("output", 7, "stdout", None),
    ]
    assert "300 bytes" not in house.rc("logs", job, "--stream", "stdout").stderr.decode()


def test_logs_since_a_time_begin_there(house: House) -> None:
    script = "echo early; echo early >&2; sleep 1.2; date +%s.%N; echo late >&2"
    done, job = _run(house, script=script)
    late = float(done.stdout.split()[1])
    when = subprocess.run(
        ["date", "-u", "-d", f"@{late - 0.5:.3f}", "+%Y-%m-%dT%H:%M:%S.%3N"],
        capture_output=True,
        check=True,
        timeout=10,
    )
    since = when.stdout.decode().strip()
    for more in ((), ("-f",)):
        told = house.rc("logs", job["id"], "--since", since, *more)
        assert told.stdout == b"".join(done.stdout.splitlines(keepends=True)[1:]), more
        assert without_notices(told.stderr) == b"late\n"
    told = house.rc("logs", job["id"], "--since", "1h", "--stream", "stderr")
    assert without_notices(told.stderr) == b"early\nlate\n"
    lines = house.rc("logs", job["id"], "--since", since + "Z", "-o", "json").stdout.splitlines()
    pieces = [json.loads(line) for line in lines]
    assert b"early" not in b"".join(base64.b64decode(p["data"]) for p in pieces if p["type"] == "output")
    assert pieces[-1]["agree"] is None, "a part was shown: nothing was compared"
    wrong = house.rc("logs", job["id"], "--since", "yesterday")
    assert wrong.returncode == 64
    assert b"2026-" in wrong.stderr


def test_on_a_terminal_bars_update_and_no_character_is_torn(house: House, tmp_path: Path) -> None:
    program = tmp_path / "bar.py"
    program.write_text(
        """
import os, time
for step in range(30):
    for byte in f"\\r{step + 1:2d}/30 {'█' * (step + 1)}".encode():
        os.write(2, bytes([byte]))
    if step % 10 == 5:
        for byte in "😀".encode():
            os.write(1, bytes([byte])); time.sleep(0.02)
            os.write(2, b"\\r")
"""
    )

    def run(fd: int) -> None:
        words = [RC, "run", "-d", house.gpu(0), "--", sys.executable, "-I", str(program)]
        env = {**house.env, "TERM": "xterm"}
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, env=env, timeout=60, check=False)
        assert done.returncode == 0
        os.write(fd, b"$")

    shown, raw = on_a_terminal(run)
    assert "\ufffd" not in "".join(shown.lines)
    assert raw.count("😀".encode()) == 3
    assert shown.lines[0] == f"30/30 {'█' * 30}"
    assert "exited 0" in shown.lines[1]
    assert shown.lines[-1] == "$"
