"""Starting, stopping, dying and coming back: what a person at a shell sees of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.e2e.conftest import RC, House, until


def test_up_twice_and_down(empty_house: House) -> None:
    house = empty_house
    unreachable = house.rc("devices")
    assert unreachable.returncode == 69
    assert "rc up" in unreachable.stderr.decode()
    first = house.rc("up", "--sim", "2xH100")
    assert first.returncode == 0
    assert "stop them with rc down" in first.stdout.decode()
    pid = house.json("status")["pid"]
    again = house.rc("up", "--sim", "2xH100")
    assert again.returncode == 0
    assert f"running already with --sim 2xH100 (pid {pid}" in again.stdout.decode()
    other = house.rc("up", "--sim", "4xA100")
    assert other.returncode == 73
    assert f"pid {pid}" in other.stderr.decode()
    table = house.rc("devices").stdout.decode()
    assert table.count(" simulated ") == 2
    agent = house.pid_of(house.paths.agent_lock)
    assert house.rc("down").stdout == b"stopped\n"
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
    assert not Path(f"/proc/{agent}").exists() or "Z" in Path(f"/proc/{agent}/stat").read_text()
    assert house.rc("down").stdout == b"nothing was running\n"
    names = [(d["name"], d["uuid"]) for d in _again(house, "2xH100")]
    assert len(names) == 3


def _again(house: House, sim: str) -> list[dict[str, str]]:
    house.up(sim)
    devices: list[dict[str, str]] = house.json("devices")["devices"]
    return devices


def test_two_first_runs_at_once_start_one_controller(empty_house: House) -> None:
    house = empty_house
    house.paths.create()
    assert house.rc("up", "--sim", "2xH100").returncode == 0
    assert house.rc("down").returncode == 0
    runs = [house.start("run", "--select", "simulated=true", "--", "echo", str(n)) for n in range(2)]
    results = [run.communicate(timeout=90) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], results
    assert sorted(out for out, _ in results) == [b"0\n", b"1\n"]
    told = [said for _, said in results if b"started a controller and an agent" in said]
    assert len(told) == 1
    starts = house.paths.agent_log.read_text().count("attempts known")
    assert starts == 2  # one agent for each of the two controllers that ran here


def test_no_byte_is_lost_or_doubled_when_the_controller_is_killed(own_house: House, tmp_path: Path) -> None:
    house, go = own_house, tmp_path / "go"
    pause = f"[ $i = 1500 ] && until [ -e {go} ]; do sleep 0.05; done"
    script = f"i=0; while [ $i -lt 4000 ]; do echo line $i; i=$((i+1)); {pause}; done; exit 6"
    with (tmp_path / "out").open("wb") as out:
        run = subprocess.Popen(
            [RC, "run", "-d", house.gpu(0), "--", "sh", "-c", script],
            env=house.env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
        )
        until(lambda: (tmp_path / "out").stat().st_size > 5000, "output comes")
        killed = house.json("status")["pid"]
        os.kill(killed, signal.SIGKILL)
        go.touch()
        _, said = run.communicate(timeout=90)
    assert run.returncode == 6, said
    assert (tmp_path / "out").read_bytes() == b"".join(b"line %d\n" % i for i in range(4000))
    assert "goes on without it; trying again" in said.decode()
    assert "answers again" in said.decode()
    assert house.json("status")["pid"] != killed
    assert len(house.json("jobs")["jobs"]) == 1


def test_down_refuses_while_a_job_runs_and_the_next_controller_takes_it_up(own_house: House, tmp_path: Path) -> None:
    house, go = own_house, tmp_path / "go"
    script = f"echo begun; until [ -e {go} ]; do sleep 0.05; done; echo ended; exit 9"
    job = house.rc("run", "--detach", "-d", house.gpu(0), "--", "sh", "-c", script).stdout.decode().strip()
    until(lambda: house.rc("logs", job).stdout == b"begun\n", "it has begun")
    refused = house.rc("down")
    assert refused.returncode == 73
    assert job in refused.stderr.decode()
    pid = house.json("describe", job)["pid"]
    left = house.rc("down", "--leave")
    assert left.returncode == 0
    assert job in left.stdout.decode()
    assert Path(f"/proc/{pid}").exists()
    go.touch()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the job ended while nobody was there")
    house.up()
    done = house.rc("wait", job)
    assert done.returncode == 9, done
    assert house.rc("logs", job).stdout == b"begun\nended\n"


def test_settings_and_state_that_cannot_be_used_are_named(empty_house: House) -> None:
    house = empty_house
    house.paths.config.write_text("color = 'pink'\n")
    bad = house.rc("run", "--", "true")
    assert bad.returncode == 78
    assert str(house.paths.config) in bad.stderr.decode()
    assert "color" in bad.stderr.decode()
    house.paths.config.write_text("color = \n")
    assert json.loads(house.rc("run", "-o", "json", "--", "true").stderr)["error"]["code"] == "invalid_configuration"
    house.paths.config.unlink()
    house.paths.create()
    options = house.paths.root / "embedded.json"
    options.write_text("{")
    broken = house.rc("up", "--sim", "1xH100")
    assert broken.returncode == 78
    assert str(options) in broken.stderr.decode()
    options.unlink()
    house.paths.ledger_db.write_bytes(b"this is no database, and long enough to be looked at" * 100)
    damaged = house.rc("up")
    assert damaged.returncode == 74, damaged
    assert str(house.paths.ledger_db) in damaged.stderr.decode()
    assert b"Traceback" not in damaged.stderr


def test_a_simulation_that_does_not_exist_is_refused_by_name(empty_house: House) -> None:
    done = empty_house.rc("up", "--sim", "4xTriangle")
    assert done.returncode == 64
    assert "Triangle" in done.stderr.decode()
    assert empty_house.rc("status").returncode == 69
