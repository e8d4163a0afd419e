"""Bounds of real jobs under a real agent: what outlives an idle timeout, what does not, and the max runtime."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent_kit import FakeController, Host, Job, until

IDLE_S = 4.0
#: Holds a context on its device and has its CPU do nothing. The words: device, utilisation in per cent.
HOLDS = """
import os, sys, time
from tenure.testing.nvml.scenario import Scenario
Scenario(os.environ["TENURE_SIM_SCENARIO"]).add_process(sys.argv[1], os.getpid(), 500, int(sys.argv[2]))
time.sleep(600)
"""
#: A silent build: compiles a file every second, into a log of its own.
BUILD = "echo 'int main(void) { return 0; }' >a.c; while :; do cc -v -c a.c -o a.o >>build.log 2>&1; sleep 1; done"
BURNS = "import time\nwhile True: sum(range(60000)); time.sleep(0.03)"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host.make(tmp_path, sim="8xH100")
    yield made
    made.close()


@pytest.fixture
async def controller(host: Host) -> AsyncIterator[FakeController]:
    async with FakeController(host.layout.ctl_sock).serving() as serving:
        host.start()
        yield serving


def told(controller: FakeController, job: str) -> list[str]:
    """The kinds of what was told of a job, in order of arrival: started, notice, ended."""
    kinds = ("started", "notice", "ended")
    return [r["kind"] for r in controller.reports if r["kind"] in kinds and r["body"]["job"] == job]


def ended_idle(controller: FakeController, job: str) -> dict[str, Any]:
    """The end of a job that was ended as idle: after a warning, and a real wait from the last one on. On a machine that
    is late with its looks it may have been warned before, and taken back since nobody had looked."""
    kinds = told(controller, job)
    assert (kinds[0], kinds[-2:]) == ("started", ["notice", "ended"])
    outcome, notice = end(controller, job), controller.of("notice", job)[-1]["notice"]
    assert outcome["cause"].startswith(f"idle timeout of {IDLE_S:g} s reached: ")
    assert notice["kind"] == "idle_soon"
    assert notice["facts"]["idle_s"] >= 0.8 * IDLE_S
    assert outcome["stats"]["ended_at"] - notice["utc"] >= 0.2 * IDLE_S - 0.05
    assert outcome["stats"]["wall_s"] >= IDLE_S
    return outcome


def end(controller: FakeController, job: str) -> dict[str, Any]:
    return dict(controller.of("ended", job)[0]["outcome"])


@pytest.mark.timeout(180)
async def test_what_works_in_silence_outlives_an_idle_timeout_and_an_abandoned_shell_does_not(
    host: Host, controller: FakeController
) -> None:
    register = await controller.connected()
    uuids = [device["uuid"] for device in register["devices"] if ":gpu" in device["name"]]
    unreadable = uuids[2]
    for function in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetProcessUtilization"):
        host.scenario.fault(unreadable, function, "NOT_SUPPORTED")
    holds = (sys.executable, "-c", HOLDS)
    jobs = {
        "burns": Job(register, "gpu0", job="burns").start(sys.executable, "-c", BURNS, idle_timeout_s=IDLE_S),
        "gpu": Job(register, "gpu1", job="gpu").start(*holds, uuids[1], "80", idle_timeout_s=IDLE_S),
        "dark": Job(register, "gpu2", job="dark").start(*holds, unreadable, "0", idle_timeout_s=IDLE_S),
        "build": Job(register, "gpu3", job="build").shell(BUILD, idle_timeout_s=IDLE_S),
        # A job's stdin is empty; an abandoned shell waits for a terminal or pipe that nobody writes to, made here.
        "shell": Job(register, "gpu4", job="shell").shell("mkfifo f; cat f; read line <f", idle_timeout_s=IDLE_S),
        "resting": Job(register, "gpu5", job="resting").start(*holds, uuids[5], "0", idle_timeout_s=IDLE_S),
        "quiet": Job(register, "gpu6", job="quiet").start(
            sys.executable, "-c", BURNS, idle_timeout_s=IDLE_S, idle_signal="output"
        ),
        "unbound": Job(register, "gpu7", job="unbound").start("sleep", "600"),
    }
    for start in jobs.values():
        await controller.tell(start)
    for name in ("shell", "resting", "quiet"):
        await controller.wait("ended", name, 90)
    began = time.monotonic()
    await until(lambda: time.monotonic() - began > 2.5 * IDLE_S, 60, "two spans and a half more")

    for name in ("burns", "gpu", "dark", "build", "unbound"):
        assert told(controller, name)[:1] == ["started"], name
        assert "ended" not in told(controller, name), (name, controller.of("notice", name), end(controller, name))
    for name in ("gpu", "dark"):
        assert "notice" not in told(controller, name), controller.of("notice", name)
    for name, words in (
        ("shell", "no output, no CPU work"),
        ("resting", "and no GPU work for"),
        ("quiet", "reached: no output for"),
    ):
        outcome = ended_idle(controller, name)
        assert (outcome["ending"], outcome["signal"]) == ("signaled", 15)
        assert words in outcome["cause"]
        assert outcome["stats"]["bounds"]["idle_timeout_s"] == IDLE_S
    assert "bounds" not in json.loads((host.layout.attempt("unbound", 1) / "spec.json").read_text())
    for name in ("burns", "gpu", "dark", "build", "unbound"):
        await controller.tell(Job(register, job=name).stop())
    dark = (await controller.wait("ended", "dark", 60))["outcome"]["stats"]["bounds"]
    assert "gpu" in dark["unread"], "and the record says why it could not be called idle"


async def test_a_max_runtime_ends_it_on_time_with_its_numbers(host: Host, controller: FakeController) -> None:
    job = Job(await controller.connected(), "cpu0")
    await controller.tell(job.start("sleep", "60", max_runtime_s=1.5))
    outcome = (await controller.wait("ended", timeout_s=60))["outcome"]
    assert (outcome["ending"], outcome["signal"]) == ("signaled", 15)
    assert outcome["cause"].startswith("max runtime of 1.5 s reached: ran 1.")
    assert 1.45 <= outcome["stats"]["wall_s"] < 20
    assert told(controller, "j1") == ["started", "ended"], "a max runtime is asked for, and needs no warning"


async def test_a_bound_that_is_reached_waits_for_no_output_to_be_taken(host: Host, controller: FakeController) -> None:
    controller.acknowledge_output = False
    job = Job(await controller.connected(), "cpu0")
    script = "trap '' PIPE; while :; do head -c 300000 /dev/zero; sleep 0.02; done"
    await controller.tell(job.shell(script, max_runtime_s=1.0, idle_timeout_s=30))
    began = time.monotonic()
    outcome = (await controller.wait("ended", timeout_s=60))["outcome"]
    assert outcome["cause"].startswith("max runtime of 1 s reached")
    assert time.monotonic() - began < 30
    await controller.proved()
    second = Job(controller.registers[-1], "cpu0", token=2, job="j2")
    await controller.tell(second.shell(script, idle_timeout_s=30))
    await controller.wait("started", "j2")
    began = time.monotonic()
    await controller.tell(second.stop())
    assert (await controller.wait("ended", "j2", 60))["outcome"]["cause"] == "ann asked"
    assert time.monotonic() - began < 20


async def test_output_beyond_its_quota_is_still_a_sign_of_life(host: Host, controller: FakeController) -> None:
    job = Job(await controller.connected(), "cpu0")
    script = "while :; do echo alive; sleep 0.2; done"
    bounds = {"idle_timeout_s": 2.5, "idle_signal": "output", "output_quota_bytes": 30}
    await controller.tell(job.shell(script, **bounds))
    await controller.wait("started")
    index = host.layout.attempt("j1", 1) / "output.bin"
    began = time.monotonic()
    await until(lambda: time.monotonic() - began > 8, what="three spans and more")
    assert index.stat().st_size <= 30, "nothing of it is stored any more"
    assert "ended" not in told(controller, "j1")
    await controller.tell(job.stop())
    await controller.wait("ended", timeout_s=60)


@pytest.mark.timeout(180)
async def test_a_fresh_agent_counts_the_runtime_from_the_start_and_the_idle_time_anew(
    host: Host, controller: FakeController
) -> None:
    register = await controller.connected()
    await controller.tell(Job(register, "gpu0", job="long").start("sleep", "60", max_runtime_s=6.0))
    await controller.tell(Job(register, "gpu1", job="idle").start("sleep", "60", idle_timeout_s=IDLE_S))
    await controller.tell(Job(register, "gpu2", job="free").start("sleep", "60"))
    await controller.wait("notice", "idle", 60)
    host.kill(signal.SIGKILL)
    # What the settings say by now is for the jobs that start later.
    body = json.loads((host.layout.root / "embedded.json").read_text())
    body["agent"]["bounds"] = {"default": {"max_runtime": 1, "idle_timeout": 1}}
    (host.layout.root / "embedded.json").write_text(json.dumps(body))
    host.start()
    again = time.monotonic()
    await until(lambda: len(controller.registers) == 2, what="the new agent")
    await controller.wait("ended", "idle", 90)
    assert time.monotonic() - again >= IDLE_S, "what the agent before had seen counts no more"
    assert len(controller.of("notice", "idle")) >= 2, "and it is warned anew"
    ended_idle(controller, "idle")
    long = (await controller.wait("ended", "long", 90))["outcome"]
    ran = re.fullmatch(r"max runtime of 6 s reached: ran ([\d.]+) s", long["cause"])
    assert ran is not None, long
    assert 6.0 <= float(ran[1]) <= long["stats"]["wall_s"] + 0.1, "of the whole life, and not of this agent"
    assert told(controller, "free") == ["started"], "it began without a bound, and keeps none"
    facts = controller.registers[-1]["devices"][0]["facts"]
    assert facts["bounds"] == {"max_runtime": 1.0, "idle_timeout": 1.0}


async def test_a_default_of_the_device_holds_where_a_job_says_nothing_and_not_where_it_does(tmp_path: Path) -> None:
    host = Host.make(tmp_path, sim="2xH100", bounds={"default": {"max_runtime": "1s"}, "gpu1": {"max_runtime": 0}})
    try:
        async with FakeController(host.layout.ctl_sock).serving() as controller:
            host.start()
            register = await controller.connected()
            await controller.tell(Job(register, "cpu0", job="told").start("sleep", "3", max_runtime_s=0.0))
            await controller.tell(Job(register, "gpu1", job="own").start("sleep", "3"))
            await controller.tell(Job(register, "gpu0", job="default").start("sleep", "3"))
            ends = {name: (await controller.wait("ended", name, 60))["outcome"] for name in ("told", "own", "default")}
        assert [ends[name]["ending"] for name in ends] == ["exited", "exited", "signaled"]
        assert ends["default"]["cause"].startswith("max runtime of 1 s reached")
        by_name = {device["name"]: device["facts"].get("bounds") for device in register["devices"]}
        assert by_name["h:gpu0"] == by_name["h:cpu0"] == {"max_runtime": 1.0}
        assert by_name["h:gpu1"] == {"max_runtime": 0.0}
    finally:
        host.close()


async def test_an_agent_that_was_stopped_for_a_while_has_not_seen_the_job_idle(
    host: Host, controller: FakeController
) -> None:
    job = Job(await controller.connected(), "cpu0")
    await controller.tell(job.start("sleep", "60", idle_timeout_s=IDLE_S))
    await controller.wait("started")
    began = time.monotonic()
    await until(lambda: time.monotonic() - began > 1.0, what="its first looks")
    assert host.process is not None
    os.kill(host.process.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    await until(lambda: time.monotonic() - stopped > 5, what="longer than the whole span")
    os.kill(host.process.pid, signal.SIGCONT)
    going = time.monotonic()
    await controller.wait("ended", timeout_s=90)
    assert time.monotonic() - going >= IDLE_S
    assert "looks" in ended_idle(controller, "j1")["stats"]["bounds"]["unread"]
