"""A job's stream: exact bytes, resumable at any, ended last; and nothing held for a client that lags or leaves."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.controller_world import AT, Agent, World, connected, output_of, running, until

from tenure.controller import follow as following
from tenure.controller.app import Timing
from tenure.controller.follow import follow_job
from tenure.domain.instructions import StartJob
from tenure.wire import frames

PATIENT = Timing(30.0, 30.0, 0.05)
MIB = 1 << 20


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path, PATIENT) as world:
        yield world


@contextlib.asynccontextmanager
async def running_job(world: World) -> AsyncIterator[tuple[Agent, StartJob]]:
    async with connected(world) as agent:
        start = await agent.start_of((await world.submit())["id"])
        await agent.started(start)
        yield agent, start


async def test_a_submission_that_follows_tells_all_of_it_in_one_stream(world: World) -> None:
    async with connected(world) as agent:
        lines: list[dict[str, Any]] = []
        async with world.lines("/v1/jobs?follow=true", "POST", json={"argv": ["x"]}) as stream:
            async for line in stream:
                lines.append(line)
                if len(lines) == 1:
                    start = await agent.start_of(line["job"]["id"])
                    await agent.started(start)
                    await agent.output(start, 0, b"out\n", stream=1)
                    await agent.output(start, 4, b"err\n", stream=2)
                elif output_of(lines) == b"out\nerr\n" and line["type"] == "output":
                    await agent.ended(start, 8, code=7)
    kinds = [line["type"] for line in lines]
    assert kinds[0] == "job"
    assert kinds[-1] == "ended"
    assert kinds.count("ended") == 1
    assert [line["job"]["state"] for line in lines if line["type"] == "job"] == ["starting", "running"]
    assert output_of(lines, "stdout") == b"out\n"
    assert output_of(lines, "stderr") == b"err\n"
    assert lines[-1]["job"]["exit_status"] == 7


AWKWARD = b"\0\x00\r\rprogress 1%\r\xff\xfe\xe2\x82" + bytes(range(256)) + b"\n" * 3 + "ü€".encode()


async def test_any_bytes_arrive_exactly_and_from_any_offset(world: World) -> None:
    async with running_job(world) as (agent, start):
        for offset in range(0, len(AWKWARD), 50):
            await agent.output(start, offset, AWKWARD[offset : offset + 50], stream=1 + offset // 50 % 2)
        await agent.output_acked(len(AWKWARD))
        await agent.ended(start, len(AWKWARD))
    target = f"/v1/jobs/{start.job}"
    for offset in (0, 1, 49, 50, 51, len(AWKWARD) - 1, len(AWKWARD), len(AWKWARD) + 1, 1 << 62):
        for kind in ("follow", "output"):
            lines = await world.whole_stream(f"{target}/{kind}?offset={offset}")
            assert output_of(lines) == AWKWARD[offset:], (kind, offset)
            assert (lines[-1]["type"] == "ended") == (kind == "follow")
    whole = await world.whole_stream(f"{target}/follow")
    for name in ("stdout", "stderr"):
        only = await world.whole_stream(f"{target}/output?stream={name}&follow=true")
        assert output_of(only, name) == output_of(whole, name)
        assert {line["stream"] for line in only if line["type"] == "output"} == {name}


async def test_bytes_that_never_arrive_are_told_as_a_gap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_job(world) as (agent, start):
        await agent.output(start, 0, b"some")
        await agent.output_acked(4)
        await agent.ended(start, 10)
    lines = [line async for line in follow_job(world.service, start.job, 0, tail_s=0.2)]
    text = b"".join(lines).decode()
    assert text.count('"type":"gap"') == 1
    assert '"offset":4,"bytes":6' in text
    assert '"type":"ended"' in lines[-1].decode()


async def _lossy(agent: Agent, start: StartJob) -> None:
    """before, 500 bytes of stderr lost, after; then the end, with 30 bytes of stdout dropped after the last byte."""
    await agent.output(start, 0, b"before")
    lost = ((2, 500, "disk", AT + 6),)
    await agent.link.send(frames.OutputChunk(start.job, 1, 6, ((1, 5, AT + 6),), b"after", lost).to_bytes())
    await agent.output_acked(11)


STATS = {"output_gaps": [{"stream": "stdout", "cause": "quota", "bytes": 30, "at_end": 30}]}


async def test_what_was_never_stored_is_told_where_it_is_missing(world: World) -> None:
    async with running_job(world) as (agent, start):
        await _lossy(agent, start)
        await agent.ended(start, 11, stats=STATS)
    for kind in ("follow", "output"):
        target = f"/v1/jobs/{start.job}/{kind}"
        lines = [line for line in await world.whole_stream(target) if line["type"] in ("output", "gap")]
        shown = [(one["type"], one["offset"], one["stream"], one.get("bytes"), one.get("cause")) for one in lines]
        assert shown == [
            ("output", 0, "stdout", None, None),
            ("gap", 6, "stderr", 500, "disk"),
            ("output", 6, "stdout", None, None),
            ("gap", 11, "stdout", 30, "quota"),
        ]
        assert all(line["why"] for line in lines if line["type"] == "gap")
        for offset, gaps in ((6, 2), (7, 1), (11, 1), (12, 0)):
            later = await world.whole_stream(f"{target}?offset={offset}")
            assert len([line for line in later if line["type"] == "gap"]) == gaps, offset
        only = await world.whole_stream(f"{target}?stream=stdout")
        assert [line["cause"] for line in only if line["type"] == "gap"] == ["quota"]
        assert only[-1]["held"] == 11


async def test_a_stream_begins_at_a_time(world: World) -> None:
    async with running_job(world) as (agent, start):
        for offset in range(0, 10, 2):  # read at AT + offset
            await agent.output(start, offset, b"%02d" % offset, stream=1 + offset // 2 % 2)
        await agent.output_acked(10)
        target = f"/v1/jobs/{start.job}"
        now = await world.whole_stream(f"{target}/output?since={AT + 4}")
        assert output_of(now) == b"040608"
        following = asyncio.create_task(world.whole_stream(f"{target}/follow?since={AT + 7}"))
        late = asyncio.create_task(world.whole_stream(f"{target}/follow?since={AT + 11.5}"))
        await until(lambda: len(world.service.feed._watchers.get(start.job, ())) == 2)
        await agent.output(start, 10, b"10")
        await agent.output(start, 12, b"12", stream=2)
        await agent.ended(start, 14)
        assert output_of(await following) == b"081012"
        assert output_of(await late) == b"12", "nothing that was read before, however late it comes"
        for stream, text in (("stdout", b"040810"), ("stderr", b"0612")):
            only = await world.whole_stream(f"{target}/output?since={AT + 4}&stream={stream}&offset=3")
            assert output_of(only, stream) == text
        assert output_of(await world.whole_stream(f"{target}/output?since={AT + 4}&offset=6")) == b"06081012"


async def test_a_tail_that_arrives_late_is_waited_for(world: World) -> None:
    async with running_job(world) as (agent, start):
        await agent.output(start, 0, b"head ")
        await agent.ended(start, 9)
        reading = asyncio.create_task(world.whole_stream(f"/v1/jobs/{start.job}/follow"))
        await asyncio.sleep(0.2)
        assert not reading.done()
        await agent.output(start, 5, b"tail")
        lines = await reading
        assert output_of(lines) == b"head tail"
        assert lines[-1]["type"] == "ended"
        assert "gap" not in {line["type"] for line in lines}


async def test_a_tail_is_waited_for_after_a_long_silence_too(world: World) -> None:
    """What a quiet job writes right before its end may arrive after the report of the end."""
    async with running_job(world) as (agent, start):
        lines: list[bytes] = []

        async def read() -> None:
            async for line in follow_job(world.service, start.job, 0, tail_s=1.5):
                lines.append(line)

        reading = asyncio.create_task(read())
        await asyncio.sleep(2.0)
        await agent.ended(start, 4)
        await asyncio.sleep(0.7)
        assert not reading.done()
        await agent.output(start, 0, b"late")
        await reading
    assert [b'"type":"gap"' in line for line in lines].count(True) == 0
    assert any(b'"type":"output"' in line for line in lines)


async def test_a_quiet_stream_beats(world: World) -> None:
    async with running_job(world) as (_, start):
        stream = follow_job(world.service, start.job, 0, beat_s=0.05)
        kinds = [await anext(stream) for _ in range(3)]
        await stream.aclose()
    assert [b'"beat"' in line for line in kinds] == [False, True, True]


async def test_a_stream_is_cut_and_not_ended_where_the_controller_goes(tmp_path: Path) -> None:
    async with running(tmp_path, PATIENT) as world, running_job(world) as (agent, start):
        await agent.output(start, 0, b"before")
        await agent.output_acked(6)
        reading = asyncio.create_task(world.whole_stream(f"/v1/jobs/{start.job}/follow"))
        await until(lambda: world.service.feed._watchers.get(start.job))
        world.service.stop.set()
        lines = await reading
    assert output_of(lines) == b"before"
    assert lines[-1]["type"] != "ended", "it has not ended"
    async with running(tmp_path, PATIENT) as world, connected(world) as agent:
        await agent.output(start, 6, b" after")
        await agent.output_acked(12)
        await agent.ended(start, 12)
        assert output_of(await world.whole_stream(f"/v1/jobs/{start.job}/follow?offset=6")) == b" after"


async def test_a_client_that_goes_away_leaves_nothing_behind(world: World) -> None:
    async with running_job(world) as (_, start):
        before = len(asyncio.all_tasks())
        readers = []
        for _ in range(20):
            reader, writer = await asyncio.open_unix_connection(world.path)
            writer.write(f"GET /v1/jobs/{start.job}/follow HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            readers.append((reader, writer))
        await until(lambda: len(world.service.feed._watchers.get(start.job, ())) == 20)
        for _, writer in readers:
            writer.close()
        await until(lambda: start.job not in world.service.feed._watchers)
        await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_a_failure_under_way_is_the_last_line(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_job(world) as (_, start):

        async def broken(*_: Any) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(world.service.outputs, "read", broken)
        lines = await world.whole_stream(f"/v1/jobs/{start.job}/follow")
        assert lines[-1]["type"] == "error"
        assert lines[-1]["error"]["code"] == "io_error"


async def _within_window(agent: Agent, sent: int) -> None:
    """Waits as an agent does: no more than 1 MiB is under way."""
    await until(lambda: (agent.told("output_ack") or [{"offset": 0}])[-1]["offset"] >= sent - MIB)


def _rss() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_large_output_passes_through_in_little_memory(world: World) -> None:
    block = os.urandom(MIB // 4)
    count = 256  # 64 MiB
    async with running_job(world) as (agent, start):
        received, grown = 0, 0

        async def read() -> None:
            nonlocal received, grown
            async with world.lines(f"/v1/jobs/{start.job}/follow") as lines:
                before = _rss()
                async for line in lines:
                    if line["type"] == "output":
                        data = base64.b64decode(line["data"])
                        assert line["offset"] == received
                        at = received % len(block)
                        assert data == (block + block)[at : at + len(data)]
                        received += len(data)
                        if received % (4 * MIB) < len(data):
                            grown = max(grown, _rss() - before)
                    elif line["type"] == "ended":
                        return

        reading = asyncio.create_task(read())
        for number in range(count):
            await agent.output(start, number * len(block), block)
            await _within_window(agent, number * len(block))
        await agent.ended(start, count * len(block))
        async with asyncio.timeout(60):
            await reading
    assert received == count * len(block)
    assert grown < 24 * MIB, f"{grown / MIB:.0f} MiB more, client and agent included"


async def test_a_reader_that_does_not_read_costs_a_page(world: World) -> None:
    block = bytes(MIB // 4)
    async with running_job(world) as (agent, start):
        for number in range(128):  # 32 MiB
            await agent.output(start, number * len(block), block)
            await _within_window(agent, number * len(block))
        await agent.output_acked(128 * len(block))
        before = _rss()
        lazy = []
        for _ in range(16):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(world.path)
            connection.sendall(f"GET /v1/jobs/{start.job}/follow HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            lazy.append(connection)
        await until(lambda: len(world.service.feed._watchers.get(start.job, ())) == 16)
        await asyncio.sleep(0.5)
        grown = _rss() - before
        await agent.ended(start, 128 * len(block))  # the others go on as ever
        assert (await world.job(start.job))["state"] == "ended"
        for connection in lazy:
            connection.close()
        await until(lambda: start.job not in world.service.feed._watchers)
    assert grown < 16 * 2 * MIB, f"{grown / MIB:.0f} MiB for 16 readers of 32 MiB each"


async def test_many_short_runs_travel_in_few_lines(world: World) -> None:
    count = 5000
    runs = tuple((1, 1, AT + n * 1e-6) for n in range(count))
    async with running_job(world) as (agent, start):
        await agent.link.send(frames.OutputChunk(start.job, 1, 0, runs, b"x" * count).to_bytes())
        await agent.output_acked(count)
        lines = await world.whole_stream(f"/v1/jobs/{start.job}/output")
    assert output_of(lines) == b"x" * count
    assert len(lines) < 10


def test_a_page_fits_the_clients_limit_of_a_line() -> None:
    assert following.PAGE * 4 // 3 + 1024 < 16 << 20
