"""A controller and agents on other hosts: jobs, kills, deaths, revoked tokens, long absences and pulled cables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import RC, until
from tests.e2e.far import Far, Fleet

COUNT = "i=0; while [ $i -lt {n} ]; do echo $i; i=$((i+1)); sleep {pause}; done; exit 7"


@pytest.fixture
def fleet(library: Path) -> Iterator[Fleet]:
    made = Fleet(Path(tempfile.mkdtemp(prefix="tenure-far-", dir="/tmp")), library)
    try:
        yield made
    finally:
        made.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def running(fleet: Fleet, device: str, script: str) -> tuple[str, int]:
    """Submits a job to a device and waits until it runs; its id, and its pid there."""
    served = fleet.served
    done = served.rc("run", "--detach", "-d", device, "-o", "json", "--", "sh", "-c", script)
    assert done.returncode == 0, done
    job = str(json.loads(done.stdout.splitlines()[-1])["id"])
    found = until(lambda: (j := served.job(job))["pid"] and j, "the job runs")
    return job, int(found["pid"])


def counted(fleet: Fleet, job: str, n: int) -> None:
    """The job's output is every number once, in order, and it ended as it does when nobody disturbs it."""
    waited = fleet.served.rc("wait", job, timeout=90)
    assert waited.returncode == 7, waited
    told = fleet.served.rc("logs", job)
    assert told.stdout.split() == [str(i) for i in range(n)]


def test_jobs_run_on_two_other_hosts(fleet: Fleet) -> None:
    served = fleet.served
    served.up()
    hosts = [fleet.joined("box1"), fleet.joined("box2")]
    for host in hosts:
        # Streamed as it comes: the first line is here while the job still waits for the second.
        script = "echo at $RC_DEVICE from $RC_CONTROLLER; sleep 1; echo over >&2; exit 3"
        words = [RC, "run", "-d", f"{host.name}:gpu0", "--", "sh", "-c", script]
        process = subprocess.Popen(words, env=served.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        first = process.stdout.readline()
        assert process.poll() is None, "the output came when all was over"
        assert first == f"at {host.name}:gpu0 from https://{served.at}\n".encode()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 3, err
        assert b"over\n" in err
    job, pid = running(fleet, "box2:gpu0", "sleep 600 & sleep 600")
    assert served.rc("kill", job, "--wait").returncode == 0
    assert not alive(pid)
    served.shows("box2:gpu0", "ready")
    secrets = [json.loads(h.paths.joined.read_bytes())["secret"] for h in hosts]
    for host in hosts:
        assert host.process is not None
        told = Path(f"/proc/{host.process.pid}/cmdline").read_bytes()
        told += Path(f"/proc/{host.process.pid}/environ").read_bytes() + host.paths.agent_log.read_bytes()
        told += served.paths.controller_log.read_bytes()
        assert not any(secret.encode() in told for secret in secrets)
        assert host.paths.joined.stat().st_mode & 0o777 == 0o600
    # What stops the controller lets its agents and their jobs be.
    job, pid = running(fleet, "box1:gpu0", "sleep 600")
    refused = served.rc("down")
    assert refused.returncode == 73, refused
    assert served.rc("down", "--leave").returncode == 0
    assert served.process is not None
    assert served.process.wait(30) == 0
    assert alive(pid)
    assert hosts[0].process is not None
    assert hosts[0].process.poll() is None
    lost = served.rc("run", "--", "true")
    assert lost.returncode == 65, lost
    assert "rc serve" in lost.stderr, "nobody starts a controller beside the one that is served"


def test_a_job_elsewhere_gets_its_tree_and_none_of_the_callers_variables(fleet: Fleet) -> None:
    served = fleet.served
    served.up()
    own = served.own_agent()
    try:
        served.shows("here:cpu0", "ready")
        # The first address is a dead one: the agent goes on to the next, at the join and afterwards.
        host = fleet.joined("box1", addresses=("127.0.0.1:1", served.at))
        served.env["VIRTUAL_ENV"] = "/callers/own"
        script = "echo ${VIRTUAL_ENV-none} ${MINE-none}"
        named = ("--env", "MINE=1", "--env", "VIRTUAL_ENV")
        for more, expected in (((), ["none", "none"]), (named, ["/callers/own", "1"])):
            there = served.rc("run", "-q", "-d", "box1:gpu0", *more, "--", "sh", "-c", script)
            assert there.stdout.split() == expected, there
        here = served.rc("run", "-q", "-d", "here:cpu0", "--", "sh", "-c", script)
        assert here.stdout.split() == ["/callers/own", "none"], here
        tree = fleet.folder / "tree"
        tree.mkdir()
        (tree / "run.sh").write_text("#!/bin/sh\necho staged\n")
        (tree / "run.sh").chmod(0o755)
        staged = served.rc("run", "-q", "-d", "box1:gpu0", "--stage", str(tree), "--", "./run.sh", timeout=90)
        assert (staged.returncode, staged.stdout) == (0, "staged\n"), staged
        assert host.process is not None
        # The same file once more, with nobody there to ask: it is known, and the agent goes to its jobs.
        served.kill(signal.SIGTERM)
        host.kill(signal.SIGTERM)
        [file] = fleet.folder.glob("box1-*.token")
        host.agent("--join", str(file))
        until(lambda: host.log.count("is not reached") > 0, "it dials on")
        assert host.process.poll() is None
        lost = host.rc("status")
        assert (lost.returncode, "controller elsewhere" in lost.stderr) == (69, True), lost
        gone = served.rc("status")
        assert (gone.returncode, "rc serve" in gone.stderr) == (69, True), gone
    finally:
        own.terminate()
        own.wait(30)
    nobody = fleet.host("box2").rc("agent")
    assert (nobody.returncode, "rc agent --join" in nobody.stderr) == (78, True), nobody


def test_an_agent_that_dies_comes_back_to_the_same_job_without_a_gap(fleet: Fleet) -> None:
    fleet.served.up()
    host = fleet.joined("box1")
    job, pid = running(fleet, "box1:gpu0", COUNT.format(n=60, pause=0.1))
    until(lambda: "10" in fleet.served.rc("logs", job).stdout.split(), "some of its output is here")
    host.kill(signal.SIGKILL)
    fleet.served.shows("box1:gpu0", "unknown")
    assert alive(pid)
    host.agent()  # it has joined: it knows the way
    fleet.served.shows("box1:gpu0", "busy")
    assert fleet.served.job(job)["pid"] == pid
    counted(fleet, job, 60)
    fleet.served.shows("box1:gpu0", "ready")


def test_what_happened_while_the_controller_was_gone_is_told_when_it_is_back(fleet: Fleet) -> None:
    served = fleet.served
    served.up()
    host = fleet.joined("box1")
    job, pid = running(fleet, "box1:gpu0", COUNT.format(n=30, pause=0.1))
    served.kill(signal.SIGKILL)
    until(lambda: not alive(pid), "the job ended by itself")
    time.sleep(6)  # longer than the longest pause between two attempts to dial
    host.kill(signal.SIGKILL)  # and what it owes is on its disk
    host.agent()
    served.up()
    counted(fleet, job, 30)
    assert served.job(job)["pid"] == pid
    served.shows("box1:gpu0", "ready")
    assert "is not reached" in host.log


def test_a_revoked_token_cuts_the_link_and_leaves_the_job(fleet: Fleet) -> None:
    served = fleet.served
    served.up()
    host = fleet.joined("box1")
    job, pid = running(fleet, "box1:gpu0", COUNT.format(n=80, pause=0.1))
    [token] = served.json("admin", "token", "list")["tokens"]
    began = time.monotonic()
    done = served.rc("admin", "token", "revoke", token["id"])
    assert done.returncode == 0, done
    assert "cut off" in done.stdout
    found = served.shows("box1:gpu0", "unknown")
    assert time.monotonic() - began < 10
    assert found["job"] == job
    assert alive(pid)
    assert served.job(job)["state"] == "running"
    until(lambda: "was revoked" in host.log, "its agent says why")
    [token] = served.json("admin", "token", "list")["tokens"]
    assert (token["state"], token["connected"]) == ("revoked", False)
    host.kill(signal.SIGTERM)
    host.agent("--join", str(served.token("box1", fleet.folder)))
    served.shows("box1:gpu0", "busy", "ready")
    counted(fleet, job, 80)
    assert served.job(job)["pid"] == pid


def test_a_controller_with_another_certificate_is_told_nothing(fleet: Fleet) -> None:
    served = fleet.served
    served.up()
    host = fleet.joined("box1")
    late = served.token("box2", fleet.folder)
    served.kill(signal.SIGTERM)
    served.paths.certificate.unlink()
    served.up()
    until(lambda: "certificate is another one" in host.log, "the agent says so", 60)
    assert served.device("box1:gpu0")["state"] == "unknown"
    refused = fleet.host("box2").rc("agent", "--join", str(late))
    assert refused.returncode == 77, refused
    assert "rc admin token create" in refused.stderr
    assert "Traceback" not in refused.stderr
    host.kill(signal.SIGTERM)
    host.agent("--join", str(served.token("box1", fleet.folder)))
    served.shows("box1:gpu0", "ready")


def test_an_agent_with_work_of_one_controller_joins_no_other(fleet: Fleet) -> None:
    fleet.served.up()
    host = fleet.joined("box1")
    other = Fleet(fleet.folder / "other", fleet.library)
    other.served.up()
    try:
        file = str(other.served.token("box1", fleet.folder))
        running_here = host.rc("agent", "--join", file)
        assert (running_here.returncode, "running already" in running_here.stderr) == (73, True), running_here
        _, pid = running(fleet, "box1:gpu0", "sleep 600")
        host.kill(signal.SIGTERM)
        refused = host.rc("agent", "--join", file)
        assert refused.returncode == 65, refused
        assert "attempts" in refused.stderr
        assert alive(pid)
        named = other.served.token("elsewhere", fleet.folder)
        wrong = host.rc("agent", "--join", str(named))
        assert (wrong.returncode, "box1" in wrong.stderr) == (65, True), wrong
        beside = host.rc("run", "--", "true")
        assert (beside.returncode, "elsewhere" in beside.stderr) == (65, True), beside
    finally:
        other.close()


class Cable:
    """A network namespace, and a cable from it to this host that can be pulled."""

    def __init__(self, number: int) -> None:
        self.name = f"tenure{os.getpid() % 10000}x{number}"
        self.here, self.there = f"tn{os.getpid() % 10000}a{number}", f"tn{os.getpid() % 10000}b{number}"
        net = f"10.{200 + os.getpid() % 50}.{number}"
        self.host, self.far = f"{net}.1", f"{net}.2"
        for words in (
            f"netns add {self.name}",
            f"link add {self.here} type veth peer name {self.there} netns {self.name}",
            f"address add {self.host}/24 dev {self.here}",
            f"link set {self.here} up",
            f"-n {self.name} address add {self.far}/24 dev {self.there}",
            f"-n {self.name} link set {self.there} up",
            f"-n {self.name} link set lo up",
        ):
            subprocess.run(["ip", *words.split()], check=True, capture_output=True, timeout=20)

    def pull(self) -> None:
        subprocess.run(["ip", "link", "set", self.here, "down"], check=True, timeout=20)

    def plug(self) -> None:
        subprocess.run(["ip", "link", "set", self.here, "up"], check=True, timeout=20)

    def close(self) -> None:
        subprocess.run(["ip", "link", "del", self.here], check=False, capture_output=True, timeout=20)
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True, timeout=20)


@pytest.fixture
def cable() -> Iterator[Cable]:
    made = Cable(1)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.root(reason="a host is a network namespace, and its cable is pulled for longer than silence is allowed")
def test_a_pulled_cable_frees_nothing_and_loses_nothing(fleet: Fleet, cable: Cable) -> None:
    served = fleet.served
    served.at = f"{cable.host}:0"
    served.up()
    inside = ("ip", "netns", "exec", cable.name)
    host: Far = fleet.joined("box1", *inside)
    job, pid = running(fleet, "box1:gpu0", COUNT.format(n=64, pause=0.5))
    cable.pull()
    cut = subprocess.run([*inside, "ping", "-c1", "-W1", cable.host], capture_output=True, timeout=20, check=False)
    assert cut.returncode != 0, "the cut does not cut"
    found = served.shows("box1:gpu0", "unknown")
    assert found["job"] == job
    busy = served.rc("run", "--no-wait", "-d", "box1:gpu0", "--", "true")
    assert busy.returncode == 75, busy
    assert alive(pid)
    cable.plug()
    served.shows("box1:gpu0", "busy", "ready")
    counted(fleet, job, 64)
    assert served.job(job)["pid"] == pid
    assert host.process is not None
    assert host.process.poll() is None
