"""An operator's acts over the API: who, why, and what is on record afterwards, also after a restart."""

from __future__ import annotations

from pathlib import Path

from tests.contract.controller_world import World, connected, offered, registration, running


async def test_an_act_is_done_recorded_and_remembered(tmp_path: Path) -> None:
    async with running(tmp_path) as world, connected(world, registration("a-h", offered("h:gpu0"))) as agent:
        assert (await agent.hears("welcome"))["floors"] == {"GPU-h:gpu0": 0}
        drained = await world.post("/v1/devices/gpu0/operate", {"act": "drain", "reason": "new fans"})
        assert drained["device"]["state"] == "draining"
        assert drained["device"]["draining"].startswith("new fans, by ")
        refused = await world.post("/v1/devices/gpu0/operate", {"act": "clear", "reason": "x"}, 409)
        assert refused["error"]["code"] == "conflict"
    async with running(tmp_path) as world:
        shown = await world.get("/v1/devices/gpu0")
        assert shown["draining"].startswith("new fans, by ")
        gone = await world.post("/v1/devices/gpu0/operate", {"act": "retire", "reason": "sold"})
        assert gone["device"] is None
        await world.get("/v1/devices/gpu0", 404)
    async with running(tmp_path) as world:
        await world.get("/v1/devices/gpu0", 404)


async def test_what_is_malformed_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await _refused(world)


async def _refused(world: World) -> None:
    for body in ({"act": "melt", "reason": "x"}, {"act": "drain", "reason": ""}, {"act": "drain"}, {"reason": "x"}):
        told = await world.post("/v1/devices/h:gpu0/operate", body, 422)
        assert told["error"]["code"] == "invalid_request"
