"""The host beside a job: sampled from its first instant to its last, kept over agents and reboots, and summed up."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent_kit import FakeController, Host, Job, until
from tests.integration.test_agent_restart import _as_if_accepted_in_another_boot, again, alive

from tenure.durable import read_frames


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


def frames(path: Path) -> list[dict[str, Any]]:
    return [json.loads(frame.payload) for frame in read_frames(path)] if path.exists() else []


def samples(path: Path) -> list[dict[str, Any]]:
    return [frame for frame in frames(path) if "v" in frame]


async def test_a_job_has_its_host_its_tree_and_its_scratch_on_record(host: Host, controller: FakeController) -> None:
    job = Job(await controller.connected(), "cpu0")
    work = "x = b'x' * (60 << 20); open('file', 'wb').write(x[:20 << 20]); import time\nt = time.time() + 3.5\n"
    await controller.tell(job.start(sys.executable, "-I", "-S", "-c", work + "while time.time() < t: pass"))
    stats = (await controller.wait("ended", timeout_s=30))["outcome"]["stats"]
    told = stats["host"]
    assert told["samples"] >= 4
    assert 0.9 < told["largest_gap_s"] < 3
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024  # noqa: ASYNC240 - a file of the kernel
    assert told["memory_total"] == total
    assert 0 < told["lowest"]["memory_available"] < total
    assert told["highest"]["tree_rss"] > 60 << 20
    assert told["highest"]["tree_cores"] > 0.05
    assert told["highest"]["load1"] >= 0
    kernel_tells = Path("/proc/pressure/memory").exists()  # noqa: ASYNC240 - the same
    assert ("psi_memory_full" in told["highest"]) == kernel_tells
    assert ("psi_memory_full" in told["unavailable"]) == (not kernel_tells)
    assert stats["peak_memory"]["lower"]
    assert stats["peak_memory"]["bytes"] >= 60 << 20
    assert 20 << 20 <= stats["peak_disk"]["bytes"] < 40 << 20
    assert "recent" not in told


async def test_a_job_over_in_no_time_has_a_first_and_a_last_sample_and_leaves_no_folder(
    host: Host, controller: FakeController
) -> None:
    register = await controller.connected()
    sampled = 0
    for number in range(8):
        await controller.tell(Job(register, "cpu0", job=f"s{number}", token=number + 1).start("true"))
        body = await controller.wait("ended", f"s{number}")
        # The report of an end waits a moment for the last look and no longer: a busy machine may leave it out.
        told = body["outcome"]["stats"].get("host")
        if told is not None:
            sampled += 1
            assert told["samples"] == 2
            assert told["until"] >= told["since"]
            assert "log" not in told
        assert not (host.layout.attempt(f"s{number}", 1) / "host.log").exists()
        await controller.proved(job=f"s{number}")
    assert sampled
    await until(lambda: not list(host.layout.attempts.iterdir()), what="the folders are gone")


async def test_the_log_goes_on_under_the_next_agent_and_the_gap_is_told(host: Host, controller: FakeController) -> None:
    job = Job(await controller.connected(), "cpu0")
    await controller.tell(job.start("sleep", "300"))
    path = host.layout.attempt("j1", 1) / "host.log"
    await until(lambda: len(samples(path)) >= 4)
    host.kill(signal.SIGKILL)
    before = len(samples(path))
    time.sleep(2.5)  # noqa: ASYNC251 - nobody samples meanwhile
    await again(controller, host)
    await until(lambda: len(samples(path)) >= before + 3)
    await controller.tell(job.stop())
    told = (await controller.wait("ended"))["outcome"]["stats"]["host"]
    assert told["samples"] >= before + 3
    assert told["largest_gap_s"] > 2.4
    assert told["log"] == str(path)
    begins = [frame["begin"] for frame in frames(path) if "begin" in frame]
    assert len(begins) == 2
    assert {begin["boot"] for begin in begins} == {controller.registers[0]["boot_id"]}
    await until(lambda: not (path.parent / "output.bin").exists())
    assert path.exists()


async def test_a_reboot_is_told_with_the_last_sample_before_it(host: Host, controller: FakeController) -> None:
    job = Job(await controller.connected(), "cpu0")
    await controller.tell(job.start("sleep", "300"))
    folder = host.layout.attempt("j1", 1)
    await until(lambda: len(samples(folder / "host.log")) >= 4)
    supervisor = json.loads((folder / "supervisor.json").read_text())["pid"]
    host.kill(signal.SIGKILL)
    os.kill(supervisor, signal.SIGUSR1)
    await until(lambda: not alive(supervisor))
    (folder / "exit.json").unlink()
    last = samples(folder / "host.log")[-1]
    _as_if_accepted_in_another_boot(host)
    await again(controller, host)
    outcome = (await controller.wait("ended"))["outcome"]
    assert outcome["cause"] == "host_rebooted"
    told = outcome["stats"]["reboot"]
    assert told["boot_before"] == "other"
    assert told["boot_now"] == controller.registers[-1]["boot_id"]
    assert told["last_sample"] == last
    assert 0 <= told["last_sample_age_s"] < 60
    assert told["boot_began"]["strength"] == "derived"
    assert told["boot_began"]["no_later_than"] < last["utc"]  # this host did not really reboot
    assert "a sampler cannot see a reboot coming" in outcome["detail"]
    assert "MemAvailable" in outcome["detail"]
    assert "lies before that sample and says nothing" in outcome["detail"]
    assert samples(folder / "host.log")[-1] == last, "nothing was sampled beside a job that is gone"
