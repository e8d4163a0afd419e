"""The OpenAPI page describes every route, and real answers are exactly what it says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from tests.contract.controller_world import World, connected, offered, registration, running

from tenure.controller import schema
from tenure.controller.app import Timing, build_app
from tenure.domain import commands as cmd
from tenure.domain.device import Condition
from tenure.errors import CODES


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path, Timing(30.0, 30.0, 0.05)) as world:
        yield world


def _references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(_references(value) for value in node.values()))
    return set().union(*(_references(value) for value in node)) if isinstance(node, list) else set()


async def test_the_page_describes_every_route(world: World) -> None:
    page = await world.get("/openapi.json")
    assert page["openapi"].startswith("3.1")
    assert page["info"]["title"] == "Tenure"
    routes = {
        (method.lower(), route.path)
        for route in build_app(world.service).routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods or ()
    }
    described = {(method, path) for path, operations in page["paths"].items() for method in operations}
    assert described == routes == set(schema.ANSWERS)
    for reference in _references(page):
        assert reference.removeprefix("#/components/schemas/") in page["components"]["schemas"], reference
    for path, operations in page["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation["description"], where
            answers = operation["responses"]
            assert {"401", "422", "500"} <= set(answers), where
            done = [code for code in answers if code.startswith("2")]
            assert len(done) == 1, where
            assert answers[done[0]]["content"], where
            for code, answer in answers.items():
                assert answer["description"], where
                if not code.startswith("2"):
                    assert answer["content"]["application/json"]["schema"]["$ref"].endswith("/Error"), where
            if method == "post":
                assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"], where
    for name in ("SubmitBody", "StopBody", "ExplainBody", "ShutdownBody"):
        assert page["components"]["schemas"][name]["additionalProperties"] is False, name


def test_every_status_of_a_refusal_has_words() -> None:
    assert {code.http for code in CODES.values()} - set(schema._WORDS) <= {503}


async def test_real_answers_are_what_the_page_says(world: World) -> None:
    devices = [offered(), offered("h:gpu1", Condition("occupied", "somebody", ("pid 7 (root)",)))]
    async with connected(world, registration("a-h", *devices)) as agent:
        running_one = await world.submit(device="h:gpu0", env={"A": "1"}, window={"samples": 3}, key="k", umask=0o22)
        start = await agent.start_of(running_one["id"])
        await agent.started(start)
        waiting = await world.submit(device="h:gpu0", queue_timeout_s=60)
        assert waiting["position"] == 1
        schema.Submitted.model_validate({"job": waiting})
        schema.StatusView.model_validate(await world.get("/v1/status"))
        schema.DeviceList.model_validate(await world.get("/v1/devices"))
        schema.DeviceView.model_validate(await world.get("/v1/devices/gpu1"))
        schema.JobView.model_validate(await world.job(running_one["id"]))
        schema.ExplainView.model_validate(await world.post("/v1/explain", {"select": "vram>=1G"}))
        schema.JobView.model_validate(await world.post(f"/v1/jobs/{waiting['id']}/stop", {"reason": "x"}, 202))
        await agent.output(start, 0, b"x")
        await agent.ended(start, 1)
        ended = schema.JobView.model_validate(await world.job(running_one["id"]))
        assert ended.outcome is not None
        assert ended.leases[0].state == "released"
        schema.JobList.model_validate(await world.get("/v1/jobs"))
        for line in await world.whole_stream(f"/v1/jobs/{running_one['id']}/follow"):
            schema.Line.model_validate(line, extra="forbid")
        schema.Error.model_validate((await world.http.get("/nowhere")).json())
        await world.service.execute(cmd.LoseContact("a-h", 1.0))
        schema.DeviceList.model_validate(await world.get("/v1/devices"))
    schema.Going.model_validate(await world.post("/v1/shutdown", {"leave": True}, 202))


async def test_a_view_of_a_device_is_never_an_old_one(world: World) -> None:
    async with connected(world) as agent:
        seen = []
        for _ in range(3):
            start = await agent.start_of((await world.submit())["id"])
            busy = await world.device()
            assert (busy["state"], busy["job"], busy["token"]) == ("busy", start.job, start.grants[0].token)
            await agent.acked(
                await agent.report(
                    "device",
                    {
                        "device": "h:gpu0",
                        "high_water": busy["token"],
                        "condition": {"outcome": "occupied", "by": ["x"]},
                    },
                )
            )
            assert (await world.device())["contended"] == {"detail": "", "by": ["x"]}
            await agent.ended(start)
            free = await world.device()
            assert (free["state"], free["job"], free["holder"], free["free"]) == ("ready", None, None, True)
            seen += [busy["version"], free["version"]]
        assert seen == sorted(set(seen))
