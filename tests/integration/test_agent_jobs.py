"""One agent and its jobs: they run, report, stop and end, and their devices come back proved empty."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent_kit import FakeController, Host, Job, until


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host.make(tmp_path)
    yield made
    made.close()


@pytest.fixture
async def controller(host: Host) -> AsyncIterator[FakeController]:
    async with FakeController(host.layout.ctl_sock).serving() as serving:
        host.start()
        yield serving


async def ended(controller: FakeController, job: str = "j1") -> dict[str, Any]:
    return await controller.wait("ended", job)


async def test_a_job_runs_and_one_report_tells_its_end(controller: FakeController) -> None:
    register = await controller.connected()
    assert [device["name"] for device in register["devices"]] == ["h:cpu0"]
    assert register["devices"][0]["condition"]["outcome"] == "clear"
    job = Job(register, "cpu0")
    await controller.tell(job.shell("echo out; echo err >&2; exit 7"))
    started = await controller.wait("started")
    body = await ended(controller)
    assert started["pid"] > 0
    assert started["tokens"] == {"h:cpu0": 1}
    assert body["outcome"]["ending"] == "exited"
    assert body["outcome"]["code"] == 7
    assert body["output_bytes"] == 8
    assert body["proofs"]["h:cpu0"]["outcome"] == "clear"
    await until(lambda: len(controller.output.get(("j1", 1), b"")) == 8)
    assert sorted(bytes(controller.output[("j1", 1)]).splitlines()) == [b"err", b"out"]
    assert {stream for stream, _ in controller.runs[("j1", 1)]} == {1, 2}


async def test_the_environment_is_a_whitelist(host: Host, controller: FakeController) -> None:
    register = await controller.connected()
    job = Job(register, "cpu0", token=5)
    given = {"PATH": os.environ["PATH"], "GIVEN": "1", "CUDA_VISIBLE_DEVICES": "0,1", "RC_FENCE": "999"}
    await controller.tell(job.start("/usr/bin/env", "-0", env=given))
    await ended(controller)
    await until(lambda: controller.output.get(("j1", 1)))
    size = (await ended(controller))["output_bytes"]
    await until(lambda: len(controller.output[("j1", 1)]) == size)
    env = dict(line.split("=", 1) for line in bytes(controller.output[("j1", 1)]).decode().split("\0") if line)
    assert env["GIVEN"] == "1"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["RC_FENCE"] == "5"
    assert env["RC_JOB_ID"] == "j1"
    assert env["RC_DEVICE"] == "h:cpu0"
    assert env["PYTHONUNBUFFERED"] == "1"
    assert env["RC_SCRATCH"].startswith(str(host.layout.attempts))
    assert "TENURE_HOME" not in env


async def test_a_stop_ends_the_whole_tree_and_says_who_asked(controller: FakeController) -> None:
    job = Job(await controller.connected(), "cpu0")
    await controller.tell(
        job.shell("trap '' TERM; setsid sleep 300 & echo ready; while :; do sleep 1; done", grace_s=0.2)
    )
    await until(lambda: b"ready" in controller.output.get(("j1", 1), b""))
    await controller.tell(job.stop("ann asked"))
    body = await ended(controller)
    assert body["outcome"]["cause"] == "ann asked"
    assert body["outcome"]["signal"] == 9
    assert body["proofs"]["h:cpu0"]["outcome"] == "clear"


async def test_a_token_is_accepted_once(controller: FakeController) -> None:
    register = await controller.connected()
    await controller.tell(Job(register, "cpu0", job="j1", token=3).shell("true"))
    await ended(controller, "j1")
    await controller.tell(Job(register, "cpu0", job="j2", token=2).shell("true"))
    refused = await controller.wait("refused", "j2")
    assert "token 2 is not above 3" in refused["reason"]
    await controller.tell(Job(register, "cpu0", job="j3", token=4).shell("true"))
    assert (await ended(controller, "j3"))["outcome"]["code"] == 0
    # The highest itself belongs to a grant that was accepted: whoever bears it again may have run before.
    await controller.tell(Job(register, "cpu0", job="j4", token=4).shell("true"))
    assert (await ended(controller, "j4"))["outcome"]["ending"] == "lost"


async def test_what_was_forgotten_in_an_earlier_boot_is_lost_and_its_device_proved(controller: FakeController) -> None:
    """A host whose record a reboot emptied: the controller says in which boot it was granted."""
    controller.floors = {"CPU": 7}
    register = await controller.connected()
    job = Job(register, "cpu0", token=7)
    await controller.tell(dataclasses.replace(job.stop("over"), boot_id="an-earlier-boot"))
    body = await ended(controller)
    assert (body["outcome"]["ending"], body["outcome"]["cause"]) == ("lost", "host_rebooted")
    assert "the host has booted since" in (await controller.proved())["detail"]
    await controller.tell(Job(register, "cpu0", job="j2", token=8).shell("true"))
    assert (await ended(controller, "j2"))["outcome"]["code"] == 0


async def test_a_folder_that_cannot_be_made_holds_no_device(host: Host, controller: FakeController) -> None:
    """Nobody was asked to begin it, and the agent that says so is the one that accepted it: that is proof enough."""
    register = await controller.connected()
    aside = host.layout.attempts.with_name("aside")
    host.layout.attempts.rename(aside)
    host.layout.attempts.write_bytes(b"no folder")
    await controller.tell(Job(register, "cpu0", token=3).shell("true"))
    refused = await controller.wait("refused", "j1")
    assert "its folder cannot be made" in refused["reason"]
    assert (await controller.proved())["detail"] == "nothing of it was started here"
    host.layout.attempts.unlink()
    aside.rename(host.layout.attempts)
    await controller.tell(Job(register, "cpu0", job="j2", token=4).shell("true"))
    assert (await ended(controller, "j2"))["outcome"]["code"] == 0


async def test_a_command_that_is_not_there_is_the_jobs_own_end(controller: FakeController) -> None:
    await controller.tell(Job(await controller.connected(), "cpu0").start("no-such-command"))
    body = await ended(controller)
    assert body["outcome"]["ending"] == "spawn_failed"
    assert body["outcome"]["code"] == 127
    assert body["proofs"]["h:cpu0"]["outcome"] == "clear"


async def test_what_the_controller_has_is_forgotten_and_deleted(host: Host, controller: FakeController) -> None:
    await controller.tell(Job(await controller.connected(), "cpu0").shell("echo x"))
    await ended(controller)
    await until(lambda: not host.layout.attempt("j1", 1).exists(), what="the folder to go")
    controller.links[-1].transport.abort()
    await until(lambda: len(controller.registers) == 2)
    assert controller.registers[-1]["known"] == []


async def test_nothing_is_deleted_that_was_not_acknowledged(host: Host, controller: FakeController) -> None:
    controller.acknowledge_output = False
    await controller.tell(Job(await controller.connected(), "cpu0").shell("echo x"))
    await ended(controller)
    controller.links[-1].transport.abort()
    await until(lambda: len(controller.registers) == 2)
    assert [known["job"] for known in controller.registers[-1]["known"]] == ["j1"]
    assert (host.layout.attempt("j1", 1) / "output.bin").read_bytes() == b"x\n"


async def test_heartbeats(controller: FakeController) -> None:
    await controller.connected()
    await until(lambda: controller.beats >= 3)


async def test_a_large_output_arrives_whole(controller: FakeController) -> None:
    size = 20_000_000
    await controller.tell(Job(await controller.connected(), "cpu0").shell(f"head -c {size} /dev/zero"))
    body = await controller.wait("ended", timeout_s=30)
    assert body["output_bytes"] == size
    await until(lambda: len(controller.output[("j1", 1)]) == size, 30)
    assert not controller.gaps
