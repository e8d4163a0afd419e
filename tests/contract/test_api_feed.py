"""The event feed: the version first, then every event once and in order, from any point, for any number of clients."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.contract.controller_world import World, connected, running, until

from tenure.controller.app import Timing
from tenure.controller.routes import events as feed

PATIENT = Timing(30.0, 30.0, 0.05)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path, PATIENT) as world:
        yield world


async def _events(world: World, target: str = "/v1/events", **headers: str) -> AsyncIterator[dict[str, Any]]:
    async with world.http.stream("GET", target, headers=headers, timeout=None) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        event: dict[str, Any] = {}
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if line.startswith(":"):
                yield {"event": "beat"}
            elif line:
                event[name] = value
            elif event:
                yield {**event, "data": json.loads(event["data"])}
                event = {}


async def _take(world: World, count: int, target: str = "/v1/events", **headers: str) -> list[dict[str, Any]]:
    async with asyncio.timeout(30), aclosing(_events(world, target, **headers)) as stream:  # type: ignore[type-var]
        return [await anext(stream) for _ in range(count)]


async def test_the_version_comes_first_then_what_happens(world: World) -> None:
    before = (await world.get("/v1/status"))["ledger_version"]
    taking = asyncio.create_task(_take(world, 4))
    # The loop of timeouts watches too.
    await until(lambda: len(world.service.feed._watchers.get("events", ())) == 2)
    async with connected(world):
        first, *others = await taking
    assert first["event"] == "version"
    assert first["data"] == {"version": before, "after": before}
    assert [event["event"] for event in others] == ["device_registered", "device_observed", "agent_registered"]
    assert [int(event["id"]) for event in others] == [before + 1, before + 2, before + 3]
    for event in others:
        assert event["data"]["seq"] == int(event["id"])
        assert event["data"]["kind"] == event["event"]
        assert event["data"]["actor"] == "agent:a-h"
        assert event["data"]["at"] > 0
    assert others[0]["data"]["device"] == "h:gpu0"


async def test_every_event_once_and_in_order_while_much_happens_and_across_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, PATIENT) as world, connected(world):
        seen: list[int] = []

        async def watch() -> None:
            async with aclosing(_events(world, "/v1/events?after=0")) as stream:  # type: ignore[type-var]
                async for event in stream:
                    if event["event"] not in ("version", "beat"):
                        seen.append(int(event["id"]))

        watching = asyncio.create_task(watch())
        for _ in range(10):
            await asyncio.gather(*(world.submit() for _ in range(20)))
        version = world.service.state.version
        await until(lambda: seen and seen[-1] == version)
        world.service.stop.set()
        await watching  # ends by itself
    assert seen == list(range(1, version + 1))
    async with running(tmp_path, PATIENT) as world:
        header = await _take(world, 3, **{"Last-Event-ID": str(version - 1)})
        assert [event.get("id") for event in header] == [None, str(version), str(version + 1)]
        assert header[2]["event"] == "controller_started"
        query = await _take(world, 2, f"/v1/events?after={version - 1}")
        assert query[1] == header[1]
        both = await _take(world, 2, "/v1/events?after=1", **{"Last-Event-ID": str(version)})
        assert both[1]["event"] == "controller_started", "where a reconnecting client had got to comes first"


async def test_a_client_far_behind_pages_through(world: World) -> None:
    async with connected(world):
        await asyncio.gather(*(world.submit() for _ in range(2 * feed.PAGE + 30)))
    version = world.service.state.version
    assert version > 2 * feed.PAGE
    events = await _take(world, version + 1, "/v1/events?after=0")
    assert [int(event["id"]) for event in events[1:]] == list(range(1, version + 1))


async def test_a_quiet_feed_beats(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "BEAT_S", 0.05)
    assert [event["event"] for event in await _take(world, 3)] == ["version", "beat", "beat"]


@pytest.mark.parametrize("bad", ["x", "-1", "1.5", str(1 << 70)])
async def test_a_place_that_is_none_is_refused(world: World, bad: str) -> None:
    answer = await world.http.get("/v1/events", headers={"Last-Event-ID": bad})
    assert answer.status_code == 422
    assert "last-event-id" in answer.json()["error"]["message"]


async def test_many_clients_that_do_not_read_hold_up_nobody(world: World) -> None:
    lazy = []
    for _ in range(60):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(world.path)
        connection.sendall(b"GET /v1/events?after=0 HTTP/1.1\r\nHost: x\r\n\r\n")
        lazy.append(connection)
    await until(lambda: len(world.service.feed._watchers.get("events", ())) >= 60)
    async with connected(world), asyncio.timeout(30):
        await asyncio.gather(*(world.submit(env={"A": "x" * 2000}) for _ in range(200)))
        version = world.service.state.version
        events = await _take(world, 2, f"/v1/events?after={version - 1}")
    assert events[1]["id"] == str(version)
    for connection in lazy:
        connection.close()
    await until(lambda: len(world.service.feed._watchers.get("events", ())) <= 1)
