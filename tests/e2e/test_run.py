"""``rc run`` as a person types it: exit status, bytes, environment, the two lines, and every refusal."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import House, until

# What a program wrote, made by the program itself, so that no test passes bytes through an argument list.
NOISE = bytes(range(256)) * 40 + b"\x00\x00\xff\xfe\xc3 cut \xe2\x82" + b"no newline" * 30_000


def test_the_exit_status_is_the_commands_own(house: House) -> None:
    for code in (0, 1, 7, 126, 255):
        assert house.rc("run", "-q", "-d", house.gpu(0), "--", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_shows_as_128_and_its_number(house: House, number: int) -> None:
    done = house.rc("run", "-d", house.gpu(0), "--", "sh", "-c", f"kill -{int(number)} $$")
    assert done.returncode == 128 + number
    assert f"ended by signal {int(number)}" in done.stderr.decode()


def test_a_command_that_is_not_there_shows_as_in_a_shell(house: House) -> None:
    done = house.rc("run", "-d", house.gpu(0), "--", "no-such-program-anywhere")
    assert done.returncode == 127
    assert b"could not be started" in done.stderr


def test_both_streams_arrive_byte_for_byte(house: House, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(NOISE)
    words = ("run", "-q", "-d", house.gpu(0), "--cwd", str(tmp_path), "--")
    done = house.rc(*words, "sh", "-c", "cat noise; head -c 1000 noise >&2; printf 'end\\0'")
    assert done.returncode == 0
    assert done.stdout == NOISE + b"end\0"
    assert done.stderr == NOISE[:1000]
    job = house.newest()["id"]
    assert house.rc("logs", job, "--stream", "stdout").stdout == NOISE + b"end\0"
    logged = house.rc("logs", job)
    assert (logged.stdout, logged.stderr) == (done.stdout, done.stderr)
    pieces = [json.loads(line) for line in house.rc("logs", job, "-o", "json").stdout.splitlines()]
    assert {piece["type"] for piece in pieces} == {"job", "output", "end", "account"}


def test_two_lines_at_the_end_say_how_it_ended_and_what_it_did(house: House) -> None:
    done = house.rc("run", "-d", house.gpu(0), "--as", "evil\x1b[31m\nname", "--", "true")
    first, second = done.stderr.decode().splitlines()
    assert "exited 0" in first
    assert "evil\\x1b[31m\\nname" in first
    assert "(simulated)" in first
    assert second.startswith("rc: GPU use (simulated): unknown")
    assert done.stdout == b""
    assert house.rc("run", "-q", "-d", house.gpu(0), "--", "true").stderr == b""


def test_what_outlives_a_natural_exit_is_ended_and_noted(house: House, tmp_path: Path) -> None:
    script = "setsid sleep 300 & echo $! > straggler; exit 3"
    done = house.rc("run", "-d", house.gpu(0), "--cwd", str(tmp_path), "--", "sh", "-c", script)
    assert done.returncode == 3
    assert "stragglers: 1" in done.stderr.decode()
    assert not Path(f"/proc/{(tmp_path / 'straggler').read_text().strip()}").exists()


def test_the_environment_is_a_list_and_the_devices_are_the_leases(house: House) -> None:
    name = house.gpu(1)
    words = ("run", "-q", "-d", name, "--env", "GIVEN=a b", "--env", "MINE", "--", "env", "-0")
    done = house.rc(*words, CUDA_VISIBLE_DEVICES="7", SECRET="s", MINE="m", LC_TEST="x", TENURE_NVML_LIBRARY_DIR="")
    seen = dict(entry.split("=", 1) for entry in done.stdout.decode().rstrip("\0").split("\0"))
    uuid = next(d["uuid"] for d in house.json("devices")["devices"] if d["name"] == name)
    assert seen["CUDA_VISIBLE_DEVICES"] == uuid
    assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert seen["RC_DEVICE"] == name
    assert (seen["GIVEN"], seen["MINE"], seen["LC_TEST"]) == ("a b", "m", "x")
    assert seen["PATH"] == house.env["PATH"]
    assert "SECRET" not in seen
    assert "TENURE_HOME" not in seen
    assert not [key for key in seen if key.startswith("TENURE_") and key != "TENURE_SIM_SCENARIO"]


def test_the_directory_is_a_scratch_of_its_own_unless_given(house: House, tmp_path: Path) -> None:
    run = ("run", "-q", "-d", house.gpu(0))
    scratch = house.rc(*run, "--", "sh", "-c", 'pwd; test "$PWD" = "$RC_SCRATCH" && ls -A').stdout.decode().split()
    assert len(scratch) == 1
    assert str(house.home) in scratch[0]
    assert house.rc(*run, "--cwd", str(tmp_path), "--", "pwd").stdout.decode().strip() == str(tmp_path)


def test_several_devices_of_one_host_are_leased_together(house: House) -> None:
    done = house.rc("run", "-q", "--select", "simulated=true", "--count", "2", "--", "sh", "-c", "echo $RC_DEVICE")
    assert len(set(done.stdout.decode().strip().split(","))) == 2


def test_busy_timeout_and_the_queue(house: House, tmp_path: Path) -> None:
    name, go = house.gpu(2), tmp_path / "go"
    holder = house.start(
        "run", "-q", "-d", name, "--", "sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done; echo held"
    )
    until(lambda: house.json("describe", name)["state"] == "busy", "the device is held")
    refused = house.rc("run", "-d", name, "--no-wait", "--", "true")
    assert refused.returncode == 75
    assert name in refused.stderr.decode()
    late = house.rc("run", "-d", name, "--timeout", "0.3s", "--", "true")
    assert late.returncode == 124
    assert b"no device was leased" in late.stderr
    queued = house.start("run", "-q", "-d", name, "--", "echo", "next")
    waiting = until(lambda: [j for j in house.json("ps")["jobs"] if j["state"] == "queued"], "one job waits")[0]
    assert waiting["position"] == 1
    assert name in waiting["reason"]
    assert waiting["id"] in house.rc("ps").stdout.decode()
    go.touch()
    assert holder.communicate(timeout=30)[0] == b"held\n"
    assert queued.communicate(timeout=30)[0] == b"next\n"


def test_ctrl_c_cancels_what_waits_and_lets_go_of_what_runs(house: House, tmp_path: Path) -> None:
    name, go = house.gpu(2), tmp_path / "go"
    script = f"echo before; while [ ! -e {go} ]; do sleep 0.05; done; echo after; exit 5"
    running = house.start("run", "-d", name, "--", "sh", "-c", script)
    assert running.stdout is not None
    assert running.stdout.read(7) == b"before\n"
    waiting = house.start("run", "-d", name, "--", "true")
    queued = until(lambda: [j for j in house.json("ps")["jobs"] if j["state"] == "queued"], "one job waits")[0]["id"]
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=20)
    assert waiting.returncode == 130
    assert f"cancelled job {queued}" in said.decode()
    assert house.json("describe", queued)["outcome"]["ending"] == "cancelled"
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=20)
    assert running.returncode == 130
    job = next(j["id"] for j in house.json("ps")["jobs"])
    assert f"rc attach {job} --offset 7" in said.decode()
    attached = house.start("attach", job, "--offset", "7")
    go.touch()
    out, said = attached.communicate(timeout=30)
    assert (out, attached.returncode) == (b"after\n", 5)
    assert "exited 5" in said.decode()
    assert house.rc("attach", job, "-q").stdout == b"before\nafter\n"
    assert house.rc("wait", job, "-q").returncode == 5


def test_kill_ends_the_tree_and_says_by_whom(house: House) -> None:
    name = house.gpu(0)
    job = house.rc("run", "-d", name, "--detach", "--grace", "0.2", "--", "sh", "-c", "trap '' TERM; sleep 300").stdout
    job_id = job.decode().strip()
    until(lambda: house.json("describe", job_id)["state"] == "running", "it runs")
    assert house.rc("wait", job_id, "--timeout", "0.2").returncode == 124
    done = house.rc("kill", job_id, "--reason", "no longer needed", "--wait")
    assert done.returncode == 0
    assert house.rc("wait", job_id, "-q").returncode == 128 + signal.SIGKILL
    told = house.json("describe", job_id)
    assert "no longer needed" in (told["stop"] or "") + told["words"]
    control = told["outcome"]["stats"]["control"]
    assert re.search(rf"^control +{control}$", house.rc("describe", job_id).stdout.decode(), re.MULTILINE)
    again = house.rc("kill", job_id)
    assert again.returncode == 65
    assert "over already" in again.stderr.decode()


def test_refusals_have_codes_and_words_of_their_own(house: House) -> None:
    for words, code, said in (
        (("run", "-d", "no:where", "--", "true"), 68, "no:where"),
        (("run", "--select", "vram>=4000G", "--", "true"), 67, "vram"),
        (("run", "--select", "vram>>1", "--", "true"), 64, "rc: "),
        (("run", "--select", "simulated=true", "--count", "9", "--", "true"), 67, "9 devices"),
        (("run",), 64, "no command"),
        (("run", "--no-such-option", "--", "true"), 64, "--no-such-option"),
        (("run", "--priority", "99", "--", "true"), 64, "priority"),
        (("describe", "nothing"), 68, "nothing"),
        (("logs", "jnothing"), 68, "jnothing"),
        (("runn",), 64, "rc run"),
    ):
        done = house.rc(*words)
        assert done.returncode == code, (words, done)
        assert said in done.stderr.decode(), (words, done)
        assert b"Traceback" not in done.stderr
        error = json.loads(house.rc(words[0], "-o", "json", *words[1:]).stderr)["error"] if len(words) > 1 else None
        assert error is None or error["exit"] == code


def test_a_device_may_be_named_without_its_host(house: House) -> None:
    done = house.rc("run", "-q", "-d", house.gpu(1).rpartition(":")[2], "--", "sh", "-c", "echo $RC_DEVICE")
    assert done.stdout.decode().strip() == house.gpu(1)


def test_explain_shows_the_table_and_runs_nothing(house: House) -> None:
    before = len(house.json("jobs")["jobs"])
    done = house.rc("run", "--select", "vram>=70G", "--explain", "--", "true")
    assert done.returncode == 0
    assert done.stdout.decode().count(" yes ") == 3
    none = house.rc("explain", "vram>=70T")
    assert none.returncode == 67
    assert "vram" in none.stdout.decode()
    assert len(house.json("jobs")["jobs"]) == before


def test_the_same_key_is_the_same_job(house: House) -> None:
    run = ("run", "--detach", "-d", house.gpu(0), "--key", "one-of-a-kind", "--")
    first, second = house.rc(*run, "true"), house.rc(*run, "true")
    assert first.stdout == second.stdout != b""
    assert house.rc(*run, "false").returncode == 65


def test_the_verdict_is_told_and_verified(house: House) -> None:
    program = (sys.executable, "-m", "tenure.testing.gpu_program", "--seconds", "3")
    window = "grace=0,span=1,samples=2,period=0.5"
    ask = ("run", "--select", "simulated=true", "--count", "2", "--window", window, "--")
    for words, label, code in ((program, "partial 1/2", 1), (("sleep", "3"), "no context", 1)):
        done = house.rc(*ask, *words)
        assert done.returncode == 0
        assert label in done.stderr.decode()
        verdict = house.rc("verify", house.newest()["id"])
        assert verdict.returncode == code
        assert verdict.stdout.decode().startswith(f"verdict: {label}\nsimulated: ")
    short = house.rc("run", "-d", house.gpu(0), "--", "true")
    assert short.returncode == 0
    assert house.rc("verify", house.newest()["id"]).returncode == 2


def test_json_everywhere(house: House) -> None:
    done = house.rc("run", "-d", house.gpu(0), "-o", "json", "--", "sh", "-c", "echo out; exit 4")
    assert done.returncode == 4
    assert done.stderr == b"out\n"
    record = json.loads(done.stdout)
    job = record["id"]
    assert (record["exit_status"], record["state"]) == (4, "ended")
    for words in (
        ("status",),
        ("devices",),
        ("ps",),
        ("jobs",),
        ("describe", house.gpu(0)),
        ("describe", job),
        ("describe", "--environment"),
        ("explain", "simulated=true"),
        ("version",),
        ("up",),
    ):
        assert isinstance(house.json(*words), dict), words
    assert json.loads(house.rc("wait", job, "-o", "json").stdout)["id"] == job
    assert json.loads(house.rc("verify", job, "-o", "json").stdout)["exit"] == 2
    assert json.loads(house.rc("attach", job, "-o", "json").stdout)["id"] == job


def test_tables_stay_whole_whatever_jobs_are_called(house: House) -> None:
    evil = "x\x1b]0;t\x07\nJOB  \u202egnp\x9b31m"
    house.rc("run", "-q", "-d", house.gpu(0), "--as", evil, "--", "sh", "-c", f": '{evil}'")
    page = house.rc("jobs").stdout.decode()
    for line in page.splitlines():
        assert line.isprintable(), line
    assert "\\x1b]0;t\\x07\\nJOB  \\u202egnp\\x9b31m" in page
    assert len(page.splitlines()) == 1 + len(house.json("jobs")["jobs"])
