"""The agents' link: what is told when, what is acknowledged when, and what the controller makes of silence."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.controller_world import (
    AT,
    QUICK,
    Agent,
    World,
    attempt,
    connected,
    dialled,
    offered,
    output_of,
    registration,
    running,
    until,
)

from tenure.controller.app import Timing
from tenure.domain import commands as cmd
from tenure.errors import TenureError
from tenure.ledger import Ledger, LedgerError
from tenure.wire import frames

PATIENT = Timing(silent_s=30.0, closed_s=30.0, period_s=0.05)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path, PATIENT) as world:
        yield world


def _events(world: World) -> list[str]:
    return [stored.kind for stored in world.service.ledger.events_after(0, 10_000)]


# -- reports and instructions ------------------------------------------------------------------------------------------


async def test_a_job_from_grant_to_release(world: World) -> None:
    async with connected(world) as agent:
        job = await world.submit(argv=["python", "x.py"])
        start = await agent.start_of(job["id"])
        assert start.spec.argv == ("python", "x.py")
        assert (await world.device())["state"] == "busy"
        await agent.started(start)
        assert (await world.job(job["id"]))["pid"] == 4711
        await agent.output(start, 0, b"hello\n")
        await agent.output_acked(6)
        await agent.ended(start, 6, code=3)
        ended = await world.job(job["id"])
        assert (ended["state"], ended["exit_status"], ended["output_bytes"]) == ("ended", 3, 6)
        assert (await world.device())["state"] == "ready"
        assert output_of(await world.whole_stream(f"/v1/jobs/{job['id']}/output")) == b"hello\n"


async def test_a_report_is_acknowledged_only_after_its_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(world) as agent:
        start = await agent.start_of((await world.submit())["id"])
        order: list[str] = []
        original = Ledger.write

        def slow(self: Ledger, *args: Any) -> None:
            time.sleep(0.1)
            assert not agent.told("ack")
            original(self, *args)
            order.append("committed")

        monkeypatch.setattr(Ledger, "write", slow)
        await agent.started(start)
        assert order == ["committed"]


async def test_reports_are_acknowledged_in_the_order_they_came(world: World) -> None:
    devices = [offered(f"h:gpu{n}") for n in range(20)]
    async with connected(world, registration("a-h", *devices)) as agent:
        jobs = [await world.submit() for _ in devices]
        starts = [await agent.start_of(job["id"]) for job in jobs]
        for start in starts:
            await agent.report("started", {**attempt(start), "pid": 1})
        await until(lambda: len(agent.told("ack")) == 20)
        assert [frame["seq"] for frame in agent.told("ack")] == list(range(1, 21))


async def test_a_report_out_of_date_is_acknowledged_and_changes_nothing(world: World) -> None:
    async with connected(world) as agent:
        first = await agent.start_of((await world.submit())["id"])
        await agent.ended(first)
        second = await agent.start_of((await world.submit())["id"])
        await agent.started(second)
        version = world.service.state.version
        await agent.ended(first, code=9)  # again, late, and with another story
        stale = {**attempt(second), "tokens": {"h:gpu0": first.grants[0].token}}
        await agent.acked(await agent.report("ended", {**stale, "outcome": {"ending": "exited", "code": 1}}))
        assert world.service.state.version == version
        assert (await world.job(first.job))["exit_status"] == 0
        assert (await world.device())["job"] == second.job
        assert (await world.get("/v1/status"))["ignored_reports"] == 2


async def test_an_agent_speaks_for_itself_only(world: World) -> None:
    async with connected(world) as mine, connected(world, registration("a-g", offered("g:gpu0"), host="g")) as other:
        start = await mine.start_of((await world.submit(device="h:gpu0"))["id"])
        body = {**attempt(start), "agent": "a-h", "pid": 1}  # the name in the frame is not believed
        await other.acked(await other.report("started", body))
        assert (await world.job(start.job))["state"] == "starting"


@pytest.mark.parametrize("code", ["disk_full", "io_error"])
async def test_nothing_is_told_of_what_could_not_be_committed(
    world: World, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    async with connected(world) as agent:

        def refuse(*_: Any) -> None:
            raise LedgerError(code, "nothing can be written now")

        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "write", refuse)
            answer = await world.http.post("/v1/jobs", json={"argv": ["x"]})
            assert answer.json()["error"]["code"] == code
        assert (await world.get("/v1/jobs"))["jobs"] == []
        job = await world.submit()
        start = await agent.start_of(job["id"])
        assert [frames.read_instruction(frame) for frame in agent.told("start")] == [start], "one start, of one job"


async def test_a_report_that_could_not_be_committed_ends_the_link_and_is_not_acknowledged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(world) as agent:
        start = await agent.start_of((await world.submit())["id"])
        calls = 0
        original = Ledger.write

        def once(self: Ledger, *args: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise LedgerError("disk_full", "no room")
            original(self, *args)

        monkeypatch.setattr(Ledger, "write", once)
        await agent.report("started", {**attempt(start), "pid": 1})
        await until(lambda: agent.closed)
        assert not agent.told("ack")
    known = (cmd.KnownAttempt(start.job, start.attempt, attempt(start)["tokens"]),)
    async with connected(world, registration(known=known)) as agent:
        await agent.started(start)
        assert (await world.job(start.job))["state"] == "running"
        assert not agent.told("start"), "it knows of that attempt already"


async def test_what_an_agent_missed_is_told_when_it_registers(world: World) -> None:
    async with connected(world):
        pass
    await until(lambda: not world.service.links.links)
    job = await world.submit()  # granted: contact is not declared lost yet
    assert job["state"] == "starting"
    async with connected(world) as agent:
        start = await agent.start_of(job["id"])
        await world.post(f"/v1/jobs/{job['id']}/stop", {}, 202)
        await agent.stop_of(job["id"])
    async with connected(world) as agent:
        await agent.stop_of(job["id"])
        assert not agent.told("start")
        await agent.ended(start)
        assert (await world.device())["state"] == "ready"


async def test_an_attempt_without_a_lease_is_stopped(world: World) -> None:
    known = (cmd.KnownAttempt("jelsewhere", 4, {"h:gpu0": 3}),)
    async with connected(world, registration(known=known)) as agent:
        stop = await agent.stop_of("jelsewhere")
        assert stop.attempt == 4


# -- garbage -----------------------------------------------------------------------------------------------------------

CHUNK = frames.OutputChunk("j1", 1, 0, ((1, 1, 1.0),), b"x").to_bytes()
GARBAGE: list[str | bytes] = [
    "no json",
    "[]",
    "{}",
    "[" * 200_000,
    '{"type": 7}',
    '{"type": "report", "seq": 1}',
    '{"type": "report", "seq": "one", "kind": "started", "body": {}}',
    '{"type": "report", "seq": true, "kind": "started", "body": {}}',
    '{"type": "report", "seq": 1, "kind": "dance", "body": {}}',
    '{"type": "report", "seq": 1, "kind": "started", "body": {"job": 7}}',
    '{"type": "report", "seq": 1, "kind": "use", "body": {"job": "j", "attempt": 1, "tokens": {}, "use": NaN}}',
    b"",
    b"\xff\xfe\n",
    b"[]\nx",
    CHUNK + b"more",
    CHUNK.replace(b'"j1"', b'"../x"'),
    CHUNK.replace(b"[1,1,1.0]", b"[1,-1,1.0],[1,2,1.0]"),
    CHUNK.replace(b"[1,1,1.0]", b"[3,1,1.0]"),
    CHUNK.replace(b"[1,1,1.0]", b"[1,Infinity,1.0]"),
    CHUNK.replace(b"[1,1,1.0]", b"[1,1e999,1.0]"),
    CHUNK.replace(b'"offset":0', b'"offset":-5'),
    CHUNK.replace(b'"attempt":1', b'"attempt":0'),
    b"[" * 200_000 + b"\nx",
]


async def test_garbage_ends_the_link_it_came_on_and_no_other(world: World) -> None:
    async with connected(world, registration("a-g", offered("g:gpu0"), host="g")) as other:
        for garbage in GARBAGE:
            async with connected(world) as agent:
                await agent.link.send(garbage)
                await until(lambda agent=agent: agent.closed)  # type: ignore[misc]
                assert agent.link.close_code in (1000, 1008), garbage[:60]
                for frame in agent.told("refused"):
                    assert frame["error"]["code"] == "invalid_request"
        assert not other.closed
        start = await other.start_of((await world.submit(device="g:gpu0"))["id"])
        await other.started(start)
    assert not list(world.service.layout.output.parent.glob("x*"))


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        ({"type": "beat"}, "invalid_request"),
        ({"type": "hello"}, "wire_version"),
        ({"type": "hello", "wire": frames.WIRE + 2, "register": {}}, "wire_version"),
        ({"type": "hello", "wire": frames.OLDEST_WIRE - 1, "register": {}}, "wire_version"),
        ({"type": "hello", "wire": "1", "register": {}}, "wire_version"),
        ({"type": "hello", "wire": frames.WIRE}, "invalid_request"),
        ({"type": "hello", "wire": frames.WIRE, "register": {"agent": "a"}}, "invalid_request"),
    ],
)
async def test_a_hello_that_cannot_be_used_is_refused_in_words(world: World, hello: Any, code: str) -> None:
    async with dialled(world) as agent:
        await agent.link.send(json.dumps(hello))
        refused = await agent.hears("refused")
        assert refused["error"]["code"] == code
        await until(lambda: agent.closed)
    assert not world.service.links.links


async def test_an_agent_one_version_ahead_is_taken_in_and_its_new_reports_are_passed_over(world: World) -> None:
    async with dialled(world) as agent:
        hello = json.loads(frames.hello(registration()))
        await agent.link.send(json.dumps({**hello, "wire": frames.WIRE + 1, "also": "new"}))
        assert (await agent.hears("welcome"))["wire"] == frames.WIRE
        await agent.acked(await agent.report("of_next_year", {"x": 1}))
        await agent.link.send('{"type": "of_next_year"}')
        start = await agent.start_of((await world.submit())["id"])
        await agent.started(start)


# -- contact -----------------------------------------------------------------------------------------------------------


async def _beats(agent: Agent, period_s: float = 0.1) -> None:
    while True:
        await agent.link.send('{"type":"beat"}')
        await asyncio.sleep(period_s)


async def test_silence_makes_a_device_unknown_and_never_free(tmp_path: Path) -> None:
    async with running(tmp_path, QUICK) as world, connected(world) as agent:
        beats = asyncio.create_task(_beats(agent))
        job = await world.submit()
        await agent.started(await agent.start_of(job["id"]))
        await asyncio.sleep(1.0)
        assert (await world.device())["state"] == "busy", "it talks"
        beats.cancel()
        silent_since = time.monotonic()
        found = await world.shows("h:gpu0", "unknown", 5.0)
        assert time.monotonic() - silent_since < QUICK.silent_s + 1.5
        assert (found["free"], found["job"]) == (False, job["id"])
        assert found["words"].startswith("unknown (no contact ")
        assert (await world.job(job["id"]))["state"] == "running", "nobody has seen it end"
        status = await world.get("/v1/status")
        [lost] = status["agents"]
        assert lost["registered_at"] < lost["lost_at"] <= status["at"], "the age of what is shown"
        await until(lambda: agent.closed)


async def test_a_closed_connection_is_noticed_sooner_and_a_quick_return_not_at_all(tmp_path: Path) -> None:
    timing = Timing(silent_s=30.0, closed_s=0.5, period_s=0.05)
    async with running(tmp_path, timing) as world:
        async with connected(world):
            await world.shows("h:gpu0", "ready")
        async with connected(world):
            await asyncio.sleep(0.8)
            assert (await world.device())["state"] == "ready"
        assert "contact_lost" not in _events(world)
        await world.shows("h:gpu0", "unknown", 2.0)
        async with connected(world):
            await world.shows("h:gpu0", "ready", 2.0)


async def test_the_newest_connection_wins(world: World) -> None:
    async with connected(world) as older, connected(world) as newer:
        await until(lambda: older.closed)
        assert list(world.service.links.links) == ["a-h"]
        start = await newer.start_of((await world.submit())["id"])
        assert not older.told("start")
        await newer.started(start)
    await until(lambda: not world.service.links.links)


async def test_a_newer_connection_that_is_no_agent_harms_nothing(world: World) -> None:
    async with connected(world) as agent:
        async with dialled(world) as bad:
            await bad.link.send('{"type":"hello","wire":1,"register":{"agent":"a-h"}}')
            await bad.hears("refused")
        start = await agent.start_of((await world.submit())["id"])
        await agent.started(start)


async def test_a_controller_that_was_stopped_itself_blames_nobody(world: World) -> None:
    links = world.service.links
    async with connected(world):
        link = links.links["a-h"]
        links.lost_at["a-x"] = 5.0
        before = link.heard_at
        links.excuse(60.0)
        assert link.heard_at == before + 60.0
        assert links.lost_at.pop("a-x") == 65.0


async def test_being_starved_is_told_from_silence(tmp_path: Path) -> None:
    async with running(tmp_path, QUICK) as world, connected(world) as agent:
        beats = asyncio.create_task(_beats(agent))
        await asyncio.sleep(0.3)
        time.sleep(2.0)  # noqa: ASYNC251 - the whole process stands still, as under SIGSTOP; the beats wait in the socket
        await asyncio.sleep(0.5)
        beats.cancel()
        assert "contact_lost" not in _events(world)


async def test_contact_that_is_not_on_record_is_put_right(tmp_path: Path) -> None:
    async with running(tmp_path, Timing(30.0, 30.0, 0.05)) as world, connected(world) as agent:
        beats = asyncio.create_task(_beats(agent))
        await world.service.execute(cmd.LoseContact("a-h", 1.0))  # by a race that nobody thought of
        await until(lambda: agent.closed)  # so that it registers again
        beats.cancel()


async def test_a_full_disk_does_not_take_the_controller_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, QUICK) as world:
        async with connected(world):
            job = await world.submit(device="h:gpu0")
            second = await world.submit(queue_timeout_s=0.3)

            def refuse(*_: Any) -> None:
                raise LedgerError("disk_full", "no room")

            with monkeypatch.context() as patch:
                patch.setattr(Ledger, "write", refuse)
                await asyncio.sleep(1.2)  # silence and a timeout fall due, and cannot be recorded
                assert (await world.get("/v1/status"))["running"] == 1
        await world.shows("h:gpu0", "unknown", 5.0)
        end = time.monotonic() + 5
        while (await world.job(second["id"]))["state"] != "ended":
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        assert (await world.job(job["id"]))["state"] == "starting"
        assert world.service.fatal is None


async def test_after_a_restart_every_device_is_unknown_until_its_agent_registers(tmp_path: Path) -> None:
    async with running(tmp_path, PATIENT) as world, connected(world) as agent:
        job = await world.submit(device="h:gpu0")
        await agent.started(await agent.start_of(job["id"]))
        waiting = await world.submit(device="h:gpu0")
    async with running(tmp_path, PATIENT) as world:
        found = await world.device()
        assert (found["state"], found["contact"], found["job"]) == ("unknown", False, job["id"])
        assert (await world.job(waiting["id"]))["state"] == "queued"
        known = (cmd.KnownAttempt(job["id"], 1, {"h:gpu0": found["token"]}),)
        async with connected(world, registration(known=known)) as agent:
            await world.shows("h:gpu0", "busy")
            assert not agent.told("start")


# -- output ------------------------------------------------------------------------------------------------------------


async def test_a_disk_that_refuses_output_breaks_no_link(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(world) as agent:
        start = await agent.start_of((await world.submit())["id"])
        world.service.outputs._retry_s = 0.05
        original = os.pwrite

        def full(fd: int, data: Any, offset: int) -> int:
            if ".bin" in str(Path(f"/proc/self/fd/{fd}").readlink()):
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(fd, data, offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            await agent.output(start, 0, b"hello")
            await until(lambda: world.service.outputs.failure)
            assert "No space left" in (await world.get("/v1/status"))["output_failure"]
            assert await agent.hears("output_ack") == {
                "type": "output_ack",
                "job": start.job,
                "attempt": 1,
                "offset": 0,
            }
        await agent.started(start)  # the link and everything else go on
        await agent.output(start, 0, b"hello")
        await agent.output_acked(5)
        assert (await world.get("/v1/status"))["output_failure"] is None


async def test_output_that_skips_is_asked_for_again(world: World) -> None:
    async with connected(world) as agent:
        start = await agent.start_of((await world.submit())["id"])
        await agent.output(start, 3, b"lo")
        await agent.output_acked(0)
        await agent.output(start, 0, b"hel")
        await agent.output(start, 3, b"lo")
        await agent.output_acked(5)
        await agent.ended(start, 5)
        assert output_of(await world.whole_stream(f"/v1/jobs/{start.job}/follow")) == b"hello"


async def test_an_agent_cannot_write_into_the_output_of_another(world: World) -> None:
    async with connected(world) as mine, connected(world, registration("a-g", offered("g:gpu0"), host="g")) as other:
        start = await mine.start_of((await world.submit(device="h:gpu0"))["id"])
        await other.output(start, 0, b"forged")
        await mine.output(start, 0, b"true")
        await mine.output_acked(4)
        await mine.ended(start, 4)
        await other.output(start, 4, b" and more")
        await other.acked(
            await other.report("device", {"device": "x", "high_water": 0, "condition": {"outcome": "clear"}})
        )
        assert not other.told("output_ack")
        assert not other.closed
        assert output_of(await world.whole_stream(f"/v1/jobs/{start.job}/output")) == b"true"
        # What this ledger knows nothing of is kept: nobody else has those bytes.
        unknown = frames.OutputChunk("jolder", 3, 0, ((1, 4, AT),), b"kept")
        await other.link.send(unknown.to_bytes())
        await other.output_acked(4)


def test_the_versions_that_are_spoken() -> None:
    assert frames.check_wire(frames.WIRE) == frames.WIRE
    assert frames.check_wire(frames.WIRE + 1) == frames.WIRE
    for wrong in (frames.WIRE + 2, frames.OLDEST_WIRE - 1, None, True, 1.0):
        with pytest.raises(TenureError, match="wire version"):
            frames.check_wire(wrong)
