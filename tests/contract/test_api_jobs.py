"""Submission: one job for a key whatever breaks, waiting that ends in time, and refusals that name their reason."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from tests.contract.controller_world import World, connected, offered, registration, running, until

from tenure.controller.app import Timing

PATIENT = Timing(30.0, 30.0, 0.05)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path, PATIENT) as world:
        yield world


async def _cut_off(world: World, body: Mapping[str, object]) -> None:
    """Submits and is gone before the answer comes."""
    data = json.dumps(body).encode()
    _, writer = await asyncio.open_unix_connection(world.path)
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    writer.transport.abort()


async def test_a_key_and_a_body_are_one_job_however_often_they_are_sent(tmp_path: Path) -> None:
    body = {"argv": ["train"], "key": "k1", "env": {"A": "1", "B": "2"}}
    async with running(tmp_path, PATIENT) as world, connected(world):
        await _cut_off(world, body)
        await until(lambda: world.service.state.version > 4)
        first = await world.submit(**body)
        assert len((await world.get("/v1/jobs"))["jobs"]) == 1
        many = await asyncio.gather(*(world.submit(**body) for _ in range(20)))
        assert {job["id"] for job in many} == {first["id"]}
        same = await world.submit(argv=["train"], key="k1", env={"B": "2", "A": "1"})  # the order of names is nothing
        assert same["id"] == first["id"]
        other = await world.post("/v1/jobs", {**body, "priority": 1}, 409)
        assert other["error"]["code"] == "key_reused"
        assert first["id"] in other["error"]["message"]
    async with running(tmp_path, PATIENT) as world, connected(world):
        assert (await world.submit(**body))["id"] == first["id"]
        again = await world.post("/v1/jobs", {**body, "argv": ["eval"]}, 409)
        assert again["error"]["facts"]["job"] == first["id"]
        fresh = await world.submit(argv=["eval"], key="k2")
        assert fresh["id"] != first["id"]
        assert len((await world.get("/v1/jobs"))["jobs"]) == 2


async def test_following_with_a_known_key_goes_on_with_that_job(world: World) -> None:
    async with connected(world) as agent:
        first = await world.submit(key="k")
        start = await agent.start_of(first["id"])
        await agent.ended(start)
        lines = await world.whole_stream("/v1/jobs?follow=true", "POST", json={"argv": ["true"], "key": "k"})
        assert lines[-1]["job"]["id"] == first["id"]
        assert lines[-1]["type"] == "ended"


async def test_waiting_ends_when_the_time_allowed_is_over(world: World) -> None:
    async with connected(world) as agent:
        start = await agent.start_of((await world.submit())["id"])
        began = time.monotonic()
        lines = await world.whole_stream("/v1/jobs?follow=true", "POST", json={"argv": ["x"], "queue_timeout_s": 0.3})
        assert 0.3 <= time.monotonic() - began < 5.0
        assert lines[0]["job"]["reason"]
        ended = lines[-1]["job"]
        assert (ended["state"], ended["exit_status"], ended["outcome"]["ending"]) == ("ended", 124, "timed_out")
        at_once = await world.submit(queue_timeout_s=0)
        await until(lambda: at_once["id"] not in world.service.state.jobs)
        patient = await world.submit(queue_timeout_s=0.4)
        await agent.ended(start)
        await asyncio.sleep(0.6)
        assert (await world.job(patient["id"]))["state"] == "starting", "it has its device: nothing runs out"


async def test_a_restart_gives_the_whole_time_again(tmp_path: Path) -> None:
    async with running(tmp_path, PATIENT) as world, connected(world):
        await world.submit()
        waiting = await world.submit(queue_timeout_s=0.5)
        await asyncio.sleep(0.3)
    began = time.monotonic()
    async with running(tmp_path, PATIENT) as world:
        found = await world.job(waiting["id"])
        assert found["state"] == "queued"
        while (found := await world.job(waiting["id"]))["state"] != "ended":
            assert time.monotonic() - began < 5.0
            await asyncio.sleep(0.01)
    assert time.monotonic() - began >= 0.5, "time without a controller, and before it, counts against nobody"
    assert found["outcome"]["ending"] == "timed_out"


async def test_the_wall_clock_ends_no_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(world):
        await world.submit()
        waiting = await world.submit(queue_timeout_s=30)
        ahead = time.time() + 86_400
        monkeypatch.setattr(world.service.writer, "_clock", lambda: ahead)
        await world.submit()
        await asyncio.sleep(0.2)
        assert (await world.job(waiting["id"]))["state"] == "queued"


async def test_who_will_not_wait_is_told_what_is_taken(world: World) -> None:
    async with connected(world) as agent:
        first = await world.submit(wait=False)
        refused = await world.post("/v1/jobs", {"argv": ["x"], "wait": False}, 409)
        assert refused["error"]["code"] == "busy"
        assert "h:gpu0 is busy" in refused["error"]["message"]
        await agent.ended(await agent.start_of(first["id"]))
        await world.submit(wait=False)
    assert len((await world.get("/v1/jobs"))["jobs"]) == 2


async def test_what_no_device_can_satisfy_is_refused_with_a_line_for_each(world: World) -> None:
    async with connected(world, registration("a-h", offered(), offered("h:gpu1"))):
        refused = await world.post("/v1/jobs", {"argv": ["x"], "select": "vram>=1T"}, 422)
        assert refused["error"]["code"] == "no_matching_device"
        assert set(refused["error"]["facts"]["devices"]) == {"h:gpu0", "h:gpu1"}
        unknown = await world.post("/v1/jobs", {"argv": ["x"], "device": "h:gpu7"}, 404)
        assert "h:gpu0" in unknown["error"]["do"]
        told = await world.post("/v1/explain", {"device": "h:gpu0"})
        assert told["devices"]["h:gpu0"]["reason"] == "matches"
        assert (await world.get("/v1/jobs"))["jobs"] == []


async def test_jobs_are_found_by_a_beginning_of_their_id_and_by_page(world: World) -> None:
    async with connected(world) as agent:
        jobs = [await world.submit(label=f"n{n}") for n in range(5)]
        newest = (await world.get("/v1/jobs?limit=2"))["jobs"]
        assert [job["label"] for job in newest] == ["n4", "n3"]
        older = (await world.get(f"/v1/jobs?limit=2&before={newest[-1]['submitted_at']!r}"))["jobs"]
        assert [job["label"] for job in older] == ["n2", "n1"]
        await agent.ended(await agent.start_of(jobs[0]["id"]))
        assert {job["id"] for job in (await world.get("/v1/jobs?state=ended"))["jobs"]} == {jobs[0]["id"]}
        assert (await world.job(jobs[0]["id"][:8]))["id"] == jobs[0]["id"]
        many = await world.get("/v1/jobs/j", 409)
        assert many["error"]["code"] == "ambiguous_job"
        assert (await world.get("/v1/jobs/%00%ff", 404))["error"]["code"] == "unknown_job"


async def test_stopping_a_job_that_waits_and_one_that_is_over(world: World) -> None:
    async with connected(world) as agent:
        first = await world.submit()
        waiting = await world.submit()
        stopped = await world.post(f"/v1/jobs/{waiting['id']}/stop", {"reason": "not needed"}, 202)
        assert (stopped["state"], stopped["exit_status"]) == ("ended", 130)
        again = await world.post(f"/v1/jobs/{waiting['id']}/stop", {}, 409)
        assert again["error"]["code"] == "conflict"
        start = await agent.start_of(first["id"])
        stopping = await world.post(f"/v1/jobs/{first['id']}/stop", {}, 202)
        assert stopping["state"] == "stopping"
        await agent.stop_of(first["id"])
        await agent.ended(start, code=None, signal=15, ending="signaled")
        assert (await world.job(first["id"]))["exit_status"] == 143


async def test_bytes_that_are_no_text_pass_in_a_command(world: World) -> None:
    async with connected(world) as agent:
        body = b'{"argv": ["cat", "\\udcff.txt"]}'
        answer = await world.http.post("/v1/jobs", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 201
        job = json.loads(answer.content)["job"]
        assert job["argv"] == ["cat", "\udcff.txt"]
        assert json.loads((await world.http.get("/v1/jobs")).content)["jobs"][0]["argv"] == ["cat", "\udcff.txt"]
        assert (await agent.start_of(job["id"])).spec.argv == ("cat", "\udcff.txt")
