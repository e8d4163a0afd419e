"""An agent of wire version 1 and today's controller: it is served as before, and asked nothing that it cannot keep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.contract.controller_world import (
    Agent,
    World,
    attempt,
    connected,
    dialled,
    output_of,
    registration,
    running,
    until,
)
from tests.upgrade.wire1 import frames as old
from tests.upgrade.wire1 import records as was

from tenure.controller.app import Timing
from tenure.domain import commands as cmd
from tenure.domain.device import CLEAR

PATIENT = Timing(silent_s=30.0, closed_s=30.0, period_s=0.05)
ASKED = {"max_runtime_s": 60.0}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path, PATIENT) as world:
        yield world


class OldAgent:
    """Reads and writes with the frozen messages alone."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def start(self, job: str) -> was.StartJob:
        def found() -> list[Any]:
            told = [old.read_instruction(frame) for frame in self.agent.told("start")]
            return [start for start in told if start.job == job]

        await until(found)
        start: was.StartJob = found()[0]
        return start

    async def report(self, kind: str, record: Any) -> None:
        self.agent.seq += 1
        body = {name: value for name, value in old.plain(record).items() if name != "agent"}
        await self.agent.link.send(old.report(self.agent.seq, kind, body))
        await self.agent.acked(self.agent.seq)


@asynccontextmanager
async def old_agent(world: World, name: str = "a-old", device: str = "old:gpu0") -> AsyncIterator[OldAgent]:
    offered = was.OfferedDevice(device, f"GPU-{device}", "nvidia", False, 0, was.Condition("clear"))
    async with dialled(world) as agent:
        await agent.link.send(old.hello(was.Register(name, "old", "b1", "ns", "i1", "x", (offered,))))
        welcome = await agent.hears("welcome")
        assert old.check_wire(welcome["wire"]) == 1
        yield OldAgent(agent)


async def test_a_job_of_its_time_runs_from_start_to_end(world: World) -> None:
    async with old_agent(world) as agent:
        job = await world.submit(argv=["python", "x.py"], env={"A": "1"}, max_runtime_s=0)
        start = await agent.start(job["id"])
        assert (start.spec.argv, start.spec.env) == (("python", "x.py"), {"A": "1"})
        tokens = {grant.device: grant.token for grant in start.grants}
        await agent.report("started", was.ReportStarted("a-old", start.job, start.attempt, tokens, 4711, "cgroup2"))
        chunk = old.OutputChunk(start.job, start.attempt, 0, ((1, 3, 1.5),), b"hi\n")
        await agent.agent.link.send(chunk.to_bytes())
        await agent.agent.output_acked(3)
        outcome = was.Outcome(was.Ending.EXITED, 3)
        proofs = {"old:gpu0": was.Condition("clear")}
        ended = was.ReportEnded("a-old", start.job, start.attempt, tokens, outcome, 3, proofs)
        await agent.report("ended", ended)
        found = await world.job(job["id"])
        assert (found["state"], found["exit_status"], found["pid"]) == ("ended", 3, 4711)
        assert (await world.device("old:gpu0"))["state"] == "ready"
        assert output_of(await world.whole_stream(f"/v1/jobs/{job['id']}/output")) == b"hi\n"


@pytest.mark.parametrize("asked", [ASKED, {"idle_timeout_s": 9.0}, {"keep": True}])
async def test_what_it_cannot_keep_is_refused_in_words(world: World, asked: dict[str, Any]) -> None:
    async with old_agent(world):
        for where in ({}, {"device": "old:gpu0"}):
            answer = await world.http.post("/v1/jobs", json={"argv": ["true"], **where, **asked})
            error = answer.json()["error"]
            assert error["code"] == "no_matching_device", error
            assert "speaks wire version 1" in error["message"]
            assert "upgrade the agent" in error["message"]


async def test_what_it_cannot_keep_goes_to_one_that_can(world: World) -> None:
    async with old_agent(world), connected(world) as new:
        job = await world.submit(**ASKED)
        start = await new.start_of(job["id"])
        assert [grant.device for grant in start.grants] == ["h:gpu0"]
        waiting = await world.submit(**ASKED)  # rather than on the free device of the old one
        assert (await world.job(waiting["id"]))["state"] == "queued"
        assert (await world.device("old:gpu0"))["state"] == "ready"
        await new.ended(start)
        await new.start_of(waiting["id"])


async def test_an_upgrade_lets_it_keep_all(world: World) -> None:
    async with old_agent(world, "a-h", "h:gpu0"):
        assert (await world.device())["facts"]["wire"] == 1
    lies = cmd.OfferedDevice("h:gpu0", "GPU-h:gpu0", "nvidia", False, 0, CLEAR, facts={"wire": 99})
    async with connected(world, registration("a-h", lies)) as new:
        assert "wire" not in (await world.device())["facts"], "only the controller says which version an agent speaks"
        await new.start_of((await world.submit(**ASKED))["id"])


async def test_a_start_granted_before_a_downgrade_is_not_sent(world: World) -> None:
    async with connected(world) as new:
        job = await world.submit(**ASKED)
        await new.start_of(job["id"])  # and nothing came of it: the agent was replaced before it was written down
    async with old_agent(world, "a-h", "h:gpu0") as agent:
        frame = await agent.agent.hears("stop")
        stop = old.read_instruction(frame)
        assert "--max-runtime" in frame["body"]["reason"]
        await asyncio.sleep(0.1)
        assert not agent.agent.told("start")
        tokens = {grant.device: grant.token for grant in stop.grants}
        refused = was.ReportRefused("a-h", stop.job, stop.attempt, tokens, "x", {"h:gpu0": was.Condition("clear")})
        await agent.report("refused", refused)
        assert (await world.job(job["id"]))["state"] == "queued"
        assert (await world.device())["state"] == "ready", "it waits for an agent that can"
    async with connected(world) as new:
        start = await new.start_of(job["id"])
        assert attempt(start)["attempt"] == 2
