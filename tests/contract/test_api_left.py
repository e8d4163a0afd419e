"""What a host tells of its leftovers: it is on the job's record and at the host, lives through a restart, and makes no
event and no registration; what is none is refused and harms nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.contract.controller_world import connected, registration, running, until

from tenure.controller import schema
from tenure.controller.left import MAX_BYTES
from tenure.wire import frames


def account(job: str, words: str = "left: nvcc 12.4 (/usr/local/bin/nvcc)", at: float = 1.0) -> dict[str, Any]:
    return {"looked_at": at, "count": 1, "jobs": {job: {"words": words, "count": 1}}, "looked_after": [job, "other"]}


async def test_it_is_on_the_jobs_record_and_at_the_host_and_lives_through_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        async with connected(world, registration("a-h")) as agent:
            start = await agent.start_of((await world.submit())["id"])
            assert (await world.job(start.job))["left"] is None
            await agent.ended(start)
            await until(lambda: start.job not in world.service.state.jobs)
            version = world.service.state.version
            for look in range(5):
                await agent.link.send(frames.left(account(start.job, at=float(look))))
            await until(lambda: (world.service.left.of_agent("a-h") or {}).get("looked_at") == 4.0)
            assert world.service.state.version == version, "no event, however often a host looks"
        record = schema.JobView.model_validate(await world.job(start.job))
        assert record.left is not None
        assert record.left["words"] == "left: nvcc 12.4 (/usr/local/bin/nvcc)"
        told = schema.LeftoversView.model_validate(await world.get("/v1/leftovers/a-h"))
        assert (told.host, told.told) == ("h", account(start.job, at=4.0))
        assert (await world.get("/v1/leftovers/nobody"))["told"] is None
    async with running(tmp_path) as world:
        assert (await world.job(start.job))["left"]["count"] == 1
        assert (await world.get("/v1/leftovers/a-h"))["contact"] is False


async def test_one_that_was_looked_after_left_nothing_and_one_that_was_not_is_not_known(tmp_path: Path) -> None:
    async with running(tmp_path) as world, connected(world, registration("a-h")) as agent:
        first, second = (await world.submit())["id"], (await world.submit())["id"]
        await agent.link.send(frames.left({"looked_at": 1.0, "jobs": {}, "looked_after": [first]}))
        await until(lambda: world.service.left.of_agent("a-h") is not None)
        assert (await world.job(first))["left"]["count"] == 0
        assert (await world.job(second))["left"] is None


@pytest.mark.parametrize("body", [None, [], "x", {}, {"jobs": []}, {"jobs": {}, "pad": "x" * MAX_BYTES}])
async def test_what_is_no_account_is_refused_and_the_link_lives(tmp_path: Path, body: Any) -> None:
    async with running(tmp_path) as world, connected(world, registration("a-h")) as agent:
        await agent.link.send(frames.dumps({"type": "left", "body": body}))
        await agent.link.send(frames.left(account("j")))
        await until(lambda: world.service.left.of_agent("a-h") == account("j"))
        assert not agent.closed


async def test_a_file_that_cannot_be_read_is_told_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as world, connected(world, registration("a-h")) as agent:
        await agent.link.send(frames.left(account("j")))
        folder = world.service.layout.controller / "leftovers"
        await until(lambda: list(folder.glob("*.json")))
    (file,) = folder.glob("*.json")
    file.write_text("{")
    async with running(tmp_path) as world:
        assert world.service.left.of_agent("a-h") is None
        async with connected(world, registration("a-h")) as agent:
            await agent.link.send(frames.left(account("j")))
            await until(lambda: world.service.left.of_agent("a-h") == account("j"))
