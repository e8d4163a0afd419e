"""How often a job's devices are asked: at the pace its window gives, each job at its own, idle devices at theirs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent_kit import FakeController, Host, Job, until

from tenure.agent.sampler import limits_from, period_from
from tenure.domain.use import Limits
from tenure.durable import read_frames

FAST, SLOW = {"grace_s": 0, "span_s": 1, "samples": 3, "period_s": 0.2}, {"period_s": 1.5}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    # The agent's own paces are slower than one job's and quicker than the other's.
    made = Host.make(tmp_path, sim="3xH100", sample_every_s=0.8, watch_every_s=0.5)
    yield made
    made.close()


@pytest.fixture
async def controller(host: Host) -> AsyncIterator[FakeController]:
    async with FakeController(host.layout.ctl_sock).serving() as serving:
        host.start()
        yield serving


def instants(path: Path) -> list[float]:
    """The times at which the devices of one job were asked, on the monotonic clock."""
    bodies = [json.loads(frame.payload) for frame in read_frames(path)] if path.exists() else []
    return [body["samples"][0]["at"] for body in bodies if "samples" in body]


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


async def test_each_job_is_sampled_at_the_pace_it_asked_for(host: Host, controller: FakeController) -> None:
    register = await controller.connected()
    jobs: list[tuple[Job, dict[str, Any]]] = [
        (Job(register, "gpu0", job="fast"), FAST),
        (Job(register, "gpu1", job="slow"), SLOW),
        (Job(register, "gpu2", job="usual"), {}),
    ]
    for job, window in jobs:
        await controller.tell(job.start("sleep", "60", window=window))
    logs = {job.job: host.layout.attempt(job.job, 1) / "samples.log" for job, _ in jobs}
    await until(lambda: len(instants(logs["slow"])) >= 5, 30)
    found = {name: gaps(instants(path)) for name, path in logs.items()}
    for name, wanted in (("fast", 0.2), ("usual", 0.8), ("slow", 1.5)):
        middle = sorted(found[name])[len(found[name]) // 2]
        assert wanted * 0.9 <= middle <= wanted * 1.5, (name, found)
    # Neither the quick job nor the waiting ones hurry another: no device is asked before its own time.
    assert min(found["slow"]) > 1.2
    assert min(found["usual"]) > 0.6
    for job, _ in jobs:
        await controller.tell(job.stop())
        await controller.wait("ended", job.job)


async def test_the_pace_outlives_the_agent(host: Host, controller: FakeController) -> None:
    job = Job(await controller.connected(), "gpu0")
    await controller.tell(job.start("sleep", "60", window=FAST))
    log = host.layout.attempt("j1", 1) / "samples.log"
    await until(lambda: len(instants(log)) >= 3)
    host.kill()
    before = len(instants(log))
    host.start()
    await until(lambda: len(instants(log)) >= before + 6)
    later = gaps(instants(log)[before:])
    assert sorted(later)[len(later) // 2] < 0.4, later


def test_a_pace_beyond_what_an_agent_does_is_brought_within_it() -> None:
    assert [period_from({"period_s": asked}, 1.0) for asked in (0, 0.1, 7, 1e9)] == [0.1, 0.1, 7.0, 60.0]
    assert period_from({}, 1.0) == 1.0


def test_instants_asked_for_far_apart_are_no_gap() -> None:
    assert limits_from({"period_s": 1}) == (Limits(), "")
    assert limits_from({"period_s": 30})[0].max_gap_s == 60
    assert "sampled every 60 s, not every 600 s" in limits_from({"period_s": 600})[1]
