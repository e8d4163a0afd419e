"""Proof of use as a person sees it: the program, the controller, the agent, the jobs and NVML's C library, all real.

The windows are shortened, which every verdict here says; what a library answers comes from its scenario file.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import House, _house, until
from tests.e2e.watching import (
    GPU_PROGRAM,
    WINDOW,
    becomes,
    cpu_of_tree,
    device,
    events,
    label,
    own_claims,
    pid_of,
    scenario,
    start,
    start_ticks,
    verify,
    why,
)

from tenure.domain.use import PROCEDURE

#: Four workers at a plan's word: they say which card each got and never touch one. The go file lets them open contexts.
WORKERS = """
import os, signal, subprocess, sys, time
from pathlib import Path
here = Path(sys.argv[1])
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
    signal.signal(number, lambda got, frame: (here / f"signal-{got}").touch())
print("alloc=0,1,2,3", flush=True)
burn = "import time\\nend = time.monotonic() + 300\\nwhile time.monotonic() < end: sum(range(20000)); time.sleep(0.001)"
workers = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(4)]
while not (here / "go").exists():
    time.sleep(0.05)
uuids = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
program = [sys.executable, "-m", "tenure.testing.gpu_program", "--seconds", "120", "--device"]
workers += [subprocess.Popen([*program, uuid]) for uuid in uuids]
while not (here / "end").exists():
    time.sleep(0.05)
for worker in workers:
    worker.kill()
    worker.wait()
"""


@pytest.fixture(scope="module")
def four(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A house with four cards whose memory reads exactly 0 at rest."""
    for made in _house(library):
        own_claims(made, tmp_path_factory.mktemp("use") / "claims")
        made.up("4xH100")
        for card in range(4):
            scenario(made).set(card, "memory_used_mb", 0)
        yield made


# -- the warning -----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_four_idle_cards_are_warned_of_once_and_nothing_is_done_to_the_job(four: House, tmp_path: Path) -> None:
    house = four
    (tmp_path / "workers.py").write_text(WORKERS)
    words = ("--window", WINDOW, "--select", "simulated=true", "--count", "4", "--")
    run = house.start("run", *words, sys.executable, str(tmp_path / "workers.py"), str(tmp_path))
    assert run.stdout is not None
    assert run.stdout.readline() == b"alloc=0,1,2,3\n"
    job = house.newest()["id"]
    pid = pid_of(house, job)
    ticks, began, burnt = start_ticks(pid), time.monotonic(), cpu_of_tree(pid)
    use = becomes(house, job, "no_context")
    cores = (cpu_of_tree(pid) - burnt) / (time.monotonic() - began)

    # Conclusive, with the window it rests on and the CPU beside it.
    told = verify(house, job)
    assert told["exit"] == 1
    (warning,) = use["announcements"]
    assert (warning["kind"], warning["conclusive"], warning["label"]) == ("warning", True, "no_context")
    assert re.search(r"no context on any of 4 .* at any of (at least )?\d+ instants over [\d.]+ s", warning["words"])
    assert "largest gap" in warning["words"]
    assert "at no time" not in warning["words"]
    assert "shortened window" in warning["words"]
    assert use["cpu"]["cpu_s"] / use["cpu"]["span_s"] == pytest.approx(cores, rel=0.5), "counted from outside"
    assert all(one["zero"] is not None for one in use["devices"])
    text = house.rc("verify", job).stdout.decode()
    assert text.count(PROCEDURE) == 1
    assert "defaults: 8, 56 s, 120 s" in text

    # Once: in the feed, on the record, to whoever follows; whatever dies and comes back.
    until(lambda: len(events(house, "use_warned", job)) == 1, "the warning is in the feed")
    agent = house.pid_of(house.paths.agent_lock)
    assert agent is not None
    os.kill(agent, signal.SIGKILL)
    until(lambda: house.pid_of(house.paths.agent_lock) not in (None, agent), "another agent came up")
    controller = house.json("status")["pid"]
    os.kill(controller, signal.SIGKILL)
    until(lambda: house.rc("status").returncode == 0, "another controller came up")
    follower = house.start("attach", job, "-q")
    looks = device(house, job)["life"]["instants"]
    until(lambda: _samples(house, job) > looks + 8, "it is sampled on", 60)
    assert label(house, job) == "no_context"
    assert len(events(house, "use_warned", job)) == 1
    described = house.rc("describe", job).stdout.decode()
    assert described.count(PROCEDURE) == 1
    assert "s after the start: GPU leased and not used" in described

    # Nothing was done to it: the same process, and no signal reached it.
    assert start_ticks(pid) == ticks
    assert not list(tmp_path.glob("signal-*"))
    assert house.json("describe", job)["state"] == "running"

    # A context after the warning: used, and the record keeps both.
    (tmp_path / "go").touch()
    used = becomes(house, job, "used")
    labels = [change["label"] for change in used["changes"]]
    assert (labels[0], labels[-1]) == ("no_context", "used")
    assert used["announcements"][0]["kind"] == "warning"
    (tmp_path / "end").touch()
    out, said = run.communicate(timeout=60)
    assert run.returncode == 0, said
    assert said.decode().count("rc: warning (simulated): GPU leased and not used") == 1
    assert said.decode().count(PROCEDURE) == len(used["announcements"])
    assert out.count(b"context on") == 4
    _, late = follower.communicate(timeout=60)
    assert "GPU leased and not used" not in late.decode()
    assert f"read it with: rc verify {job}" in late.decode()
    assert len([e for e in events(house, "use_warned", job) if e["warning"]["kind"] == "warning"]) == 1
    changes = [(e["before"], e["after"]) for e in events(house, "use_judged", job) if e["before"] != e["after"]]
    assert changes[0] == ("unknown", "no_context")
    assert changes[-1][1] == "used"
    assert house.rc("verify", job).returncode == 0


def _samples(house: House, job: str) -> int:
    log = house.paths.attempt(job, 1) / "samples.log"
    return log.read_bytes().count(b'"samples"')


@pytest.mark.timeout(180)
def test_verdict_changes_and_what_stands_beside_them(four: House, tmp_path: Path) -> None:
    house, go = four, tmp_path / "go"
    program = " ".join(GPU_PROGRAM)
    script = f"until [ -e {go} ]; do sleep 0.05; done; {program} --seconds 2; until [ -e {go}2 ]; do sleep 0.05; done"
    job = start(house, "-d", house.gpu(0), "--", "sh", "-c", script)
    becomes(house, job, "no_context")
    go.touch()
    becomes(house, job, "used")
    until(lambda: device(house, job)["idle_since"] is not None, "it idles again, and that is told", 60)
    seen = device(house, job)
    assert seen["started_at"] < seen["first_context_at"] <= seen["last_context_at"] < seen["idle_since"]
    assert "idle since" in house.rc("verify", job).stdout.decode()
    Path(f"{go}2").touch()
    assert house.rc("wait", "-q", job).returncode == 0
    use = verify(house, job)["use"]
    assert [change["label"] for change in use["changes"]] == ["no_context", "used"]
    told = [(e["before"], e["after"]) for e in events(house, "use_judged", job) if e["before"] != e["after"]]
    assert told == [("unknown", "no_context"), ("no_context", "used")]
    text = house.rc("verify", "-v", job).stdout.decode()
    for part in ("verdict changes: no context at", "context: at", "cores beside it", "CPU-seconds over", "idle since"):
        assert part in text, text


@pytest.mark.timeout(120)
def test_memory_at_zero_without_the_other_instruments_is_warned_of_as_not_conclusive(four: House) -> None:
    house, name = four, four.gpu(1)
    scenario(house).fault(1, "nvmlDeviceGetComputeRunningProcesses*", "NO_PERMISSION")
    try:
        run = house.start("run", "-d", name, "--window", WINDOW, "--", "sleep", "300")
        job = until(lambda: [j["id"] for j in house.json("ps")["jobs"] if j["state"] == "running"], "it runs")[0]
        until(lambda: (verify(house, job)["use"] or {}).get("announcements"), "it is warned of", 60)
        told = verify(house, job)
        assert (told["exit"], told["use"]["label"]) == (2, "unknown")
        (warning,) = told["use"]["announcements"]
        assert (warning["kind"], warning["conclusive"]) == ("warning", False)
        assert warning["words"].startswith("not conclusive: memory read exactly 0 throughout")
        assert "no_permission: process list" in warning["words"]
        house.rc("kill", job)
        _, said = run.communicate(timeout=60)
        assert said.decode().count("rc: warning (simulated): not conclusive") == 1
    finally:
        scenario(house).clear_faults(1)


@pytest.mark.timeout(120)
def test_one_of_two_cards_unused_is_an_advisory(four: House) -> None:
    house = four
    words = ("run", "--select", "simulated=true", "--count", "2", "--window", WINDOW, "--", *GPU_PROGRAM)
    done = house.rc(*words, "--seconds", "8")
    assert done.returncode == 0, done
    said = done.stderr.decode()
    assert said.count("rc: advisory (simulated): some leased GPUs are not used") == 1, said
    assert "rc: warning" not in said
    job = house.newest()["id"]
    assert label(house, job) == "partial 1/2"
    assert [e["warning"]["kind"] for e in events(house, "use_warned", job)] == ["advisory"]
    assert house.rc("logs", "-f", job).stderr.decode().count("on record of this job") == 1


# -- what the words may say ------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_a_context_between_two_instants_is_never_denied(four: House) -> None:
    """300 ms between instants four seconds apart: not seen by the lists. Where accounting is on, it is known of."""
    house = four
    scenario(house).set(3, "accounting", 1)
    window = "grace=0,span=4,samples=2,period=4"
    script = f"sleep 1.5; exec {' '.join(GPU_PROGRAM)} --open-for-ms 300 --seconds 14"
    try:
        plain, counted = (
            start(house, "-d", house.gpu(card), "--", "sh", "-c", script, window=window) for card in (2, 3)
        )
        for job in (plain, counted):
            assert house.rc("wait", "-q", job).returncode == 0
    finally:
        scenario(house).set(3, "accounting", 0)
    unseen = device(house, plain)
    words = str(unseen["words"])
    assert re.search(r"of \d+ instants over [\d.]+ s \(largest gap [\d.]+ s\)", words), words
    for job in (plain, counted):
        page = house.rc("verify", "-v", job).stdout.decode() + json.dumps(verify(house, job))
        assert "at no time" not in page
        assert "never" not in page
    if unseen["context_instants"] == 0:
        assert unseen["verdict"] == "no_context"
        assert words.startswith("no context at any of ")
        assert unseen["window"]["largest_gap"] > 0.3
    else:  # a busy machine may start the program late enough for an instant to meet it: then it was seen
        assert unseen["verdict"] in ("used", "unknown")
    known = device(house, counted)
    assert known["context_instants"] >= 1
    assert known["verdict"] == "used", known["words"]


@pytest.mark.timeout(120)
def test_pids_of_another_namespace_leave_it_unknown(four: House) -> None:
    house = four
    job = start(house, "-d", house.gpu(0), "--", "sleep", "300")
    until(lambda: house.json("describe", job)["state"] == "running", "it runs")
    stranger = 4_194_303  # above any number that this kernel gives out here
    scenario(house).add_process(0, stranger, 500, 40, foreign=True)
    try:
        until(lambda: why(house, job) == "foreign_namespace", "it says why", 60)
        looks = _samples(house, job)
        until(lambda: _samples(house, job) > looks + 10, "more than a window passes")
        told = verify(house, job)
        assert (told["exit"], told["use"]["label"]) == (2, "unknown")
    finally:
        scenario(house).remove_process(0, stranger)
        house.rc("kill", job, "--wait")
    assert "announcements" not in verify(house, job)["use"]


@pytest.mark.timeout(180)
@pytest.mark.root(reason="a process of another user whose open files the agent may not read is no proof of absence")
def test_a_tree_that_may_not_be_read_is_unknown_and_not_unused(empty_house: House) -> None:
    """An agent without the right to look into other users' processes, and a job that has one."""
    house = empty_house
    house.prefix = ("setpriv", "--bounding-set=-sys_ptrace")
    house.up("1xH100")
    scenario(house).set(0, "memory_used_mb", 0)
    other = "setpriv --reuid=65534 --regid=65534 --clear-groups sleep 300"
    job = start(house, "-d", house.gpu(0), "--", "sh", "-c", f"{other}; true")
    until(lambda: why(house, job) == "no_permission", "it says why", 60)
    until(lambda: (verify(house, job)["use"] or {}).get("announcements"), "it is warned of", 60)
    use = verify(house, job)["use"]
    assert use["label"] == "unknown"
    assert not any(change["label"] == "no_context" for change in use["changes"])
    assert [one["conclusive"] for one in use["announcements"]] == [False]
    house.rc("kill", job, "--wait")
    assert label(house, job) == "unknown"


# -- by exit status --------------------------------------------------------------------------------------------------


@pytest.mark.timeout(180)
def test_strict_turns_only_a_zero_into_the_verdicts(four: House) -> None:
    house = four
    run = ("run", "--strict", "--window", WINDOW, "--select", "simulated=true")
    used = house.rc(*run, "--", *GPU_PROGRAM, "--seconds", "1.5")
    assert (used.returncode, b"strict" in used.stderr) == (0, False)
    unused = house.rc(*run, "--", "sleep", "5")
    assert unused.returncode == 1, unused
    assert "strict: exit status 1 in place of the command's 0, because the verdict is no context" in _said(unused)
    job = house.newest()["id"]
    assert house.rc("wait", job).returncode == 0
    for words in (("wait", "--strict", "-q"), ("attach", "--strict", "-q")):
        again = house.rc(*words, job)
        assert (again.returncode, "strict: exit status 1" in _said(again)) == (1, True)
    record = json.loads(house.rc("wait", "--strict", "-o", "json", job).stdout)
    assert (record["exit_status"], record["strict"]["exit"]) == (0, 1)
    short = house.rc(*run, "--", "true")
    assert (short.returncode, "because the verdict is unknown" in _said(short)) == (2, True)
    part = house.rc(*run, "--count", "2", "--", *GPU_PROGRAM, "--seconds", "1.5")
    assert (part.returncode, "because the verdict is partial 1/2" in _said(part)) == (1, True)
    for code in (1, 7, 143):
        own = house.rc(*run, "--", "sh", "-c", f"exit {code}")
        assert (own.returncode, "strict" in _said(own)) == (code, False)
    cpu = next(d["name"] for d in house.json("devices")["devices"] if d["kind"] == "cpu")
    plain = house.rc("run", "--strict", "-d", cpu, "--", "true")
    assert (plain.returncode, "strict: no GPU was leased" in _said(plain)) == (0, True)
    assert house.rc("run", "--strict", "-d", cpu, "--", "sh", "-c", "exit 3").returncode == 3
    refused = house.rc(*run, "--detach", "--", "true")
    assert (refused.returncode, "rc wait --strict" in _said(refused)) == (64, True)


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stderr.decode()
