"""What a controller lets go of, and when: by a clock that the test moves, over real files and a real ledger."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.controller_world import World, connected, offered, registration, running
from tests.contract.test_api_stages import put, tree_of

from tenure.controller.app import Timing
from tenure.controller.loops.retention import one_round
from tenure.domain.retention import Retention

DAY = 86_400.0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path, Timing(30.0, 30.0, 0.05)) as world:
        yield world


def keeps(world: World, **kinds: float | None) -> None:
    world.service.settings = dataclasses.replace(world.service.settings, retention=Retention.of(kinds))


async def ended_job(world: World, agent: Any, data: bytes = b"output", told: int | None = None, **spec: Any) -> str:
    job = await world.submit(**spec)
    start = await agent.start_of(job["id"])
    await agent.started(start)
    await agent.output(start, 0, data)
    await agent.output_acked(len(data))  # on the disk: what is still on its way there is not let go of
    await agent.ended(start, len(data) if told is None else told)
    return str(job["id"])


async def test_output_goes_at_its_time_and_what_is_missing_says_why(world: World) -> None:
    keeps(world, output_s=10 * DAY)
    async with connected(world, registration("a-h", offered())) as agent:
        job = await ended_job(world, agent)
        whole = await ended_job(world, agent, b"not all of it", told=99)
        assert (await one_round(world.service, lambda: time.time() + 9.9 * DAY))["output"] == 0
        assert (await one_round(world.service, lambda: time.time() + 10.1 * DAY))["output"] == 1
        assert not world.service.layout.output_bin(job, 1).exists()
        assert not world.service.layout.output_idx(job, 1).exists()
        assert world.service.layout.output_bin(whole, 1).exists()  # the rest of it may still come
    keeps(world, output_s=0)
    lines = await world.whole_stream(f"/v1/jobs/{job}/output")
    gaps = [line for line in lines if line["type"] == "gap"]
    assert [(gap["offset"], gap["bytes"], gap["cause"]) for gap in gaps] == [(0, 6, "let_go")]
    began = time.monotonic()
    lines = await world.whole_stream(f"/v1/jobs/{job}/follow")
    assert [line["cause"] for line in lines if line["type"] == "gap"] == ["let_go"]
    assert time.monotonic() - began < 5, "nothing is waited for that is known not to come"
    assert (await world.job(job))["outcome"]["code"] == 0


async def test_an_open_job_loses_nothing_however_old(world: World) -> None:
    keeps(world, output_s=0, staged_s=0, history_s=0)
    stream, digest = tree_of()
    await put(world, "upload01", 0, stream)
    await world.post("/v1/uploads/upload01/finish", {"hash": digest})
    async with connected(world, registration("a-h", offered())) as agent:
        job = await world.submit(stage={"hash": digest})
        start = await agent.start_of(job["id"])
        await agent.started(start)
        await agent.output(start, 0, b"so far")
        await agent.output_acked(6)
        gone = await one_round(world.service, lambda: time.time() + 999 * DAY)
        assert gone == {"staged": 0, "output": 0, "history": 0}
        assert world.service.layout.output_bin(job["id"], 1).exists()
        assert (await world.get(f"/v1/stages/{digest}"))["bytes"] == len(stream)
        await agent.ended(start, 6)
        world.service.stages._clock = lambda: time.time() + 999 * DAY
        gone = await one_round(world.service, lambda: time.time() + 999 * DAY)
        assert gone == {"staged": 1, "output": 1, "history": 1}


async def test_a_tree_stays_as_long_as_somebody_asks_for_it(world: World) -> None:
    keeps(world, staged_s=10 * DAY)
    stages, begin = world.service.stages, time.time()
    stream, digest = tree_of()
    await put(world, "upload01", 0, stream)
    await world.post("/v1/uploads/upload01/finish", {"hash": digest})
    await put(world, "upload02", 0, b"never finished")
    stages._clock = lambda: begin + 9 * DAY
    assert (await world.get(f"/v1/stages/{digest}"))["bytes"] == len(stream)  # asked for on the ninth day
    assert [path.suffix for path in stages.folder.iterdir() if path.suffix == ".part"] == [".part"]
    stages._clock = lambda: begin + 18 * DAY
    assert (await one_round(world.service))["staged"] == 1  # the upload that stood still
    assert [path.suffix for path in stages.folder.iterdir()] == [".tree"]
    stages._clock = lambda: begin + 19.1 * DAY
    assert (await one_round(world.service))["staged"] == 1
    assert list(stages.folder.iterdir()) == []


async def test_history_goes_oldest_first_in_bounded_rounds_and_leaves_the_rest_whole(world: World) -> None:
    keeps(world, history_s=10 * DAY)
    async with connected(world, registration("a-h", offered())) as agent:
        jobs = [await ended_job(world, agent, key=f"k{number}") for number in range(5)]
        left = await world.submit()
        start = await agent.start_of(left["id"])
        await agent.started(start)
        assert (await one_round(world.service))["history"] == 0
        later = time.time() + 11 * DAY
        assert (await one_round(world.service, lambda: later, most=2))["history"] == 2
        await world.get(f"/v1/jobs/{jobs[0]}", 404)
        await world.get(f"/v1/jobs/{jobs[1]}", 404)
        assert (await world.job(jobs[2]))["outcome"]["code"] == 0
        assert (await one_round(world.service, lambda: later))["history"] == 3
        assert [job["id"] for job in (await world.get("/v1/jobs"))["jobs"]] == [left["id"]]
        assert world.service.ledger.events_of_job(jobs[0]) == []
        assert list(world.service.layout.output.glob(f"{jobs[0]}.*")) == []
        assert world.service.ledger.events_of_job(left["id"]) != []
        await agent.ended(start, 0)  # and the fleet goes on as before
        again = await world.submit(key="k0")
        assert again["id"] not in jobs
        assert (await world.device())["job"] == again["id"]


async def test_how_long_things_are_kept_is_announced(world: World) -> None:
    told = (await world.get("/v1/status"))["retention"]
    assert told == Retention().to_dict()
    assert told["history_s"] is None
