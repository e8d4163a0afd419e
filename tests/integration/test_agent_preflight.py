"""The preflight of a real agent: nothing is run where a requirement is not met, whoever dies or stops meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent_kit import FakeController, Host, Job, until

from tenure.agent import adopt, folders
from tenure.domain.job import Ending, Outcome


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host.make(tmp_path)
    yield made
    made.close()


@pytest.fixture
async def controller(host: Host) -> AsyncIterator[FakeController]:
    async with FakeController(host.layout.ctl_sock).serving() as serving:
        host.start()
        yield serving


class Tools:
    """Programs that say how often they were asked, and hang while ``hold`` is there. ``env`` puts them on a PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hold = folder / "hold"
        self.goes_on = folder / "goes_on"
        self.asked = folder / "asked"
        self.ran = folder / "ran"
        folder.mkdir()
        path = folder / "slow"
        path.write_text(
            f"#!/bin/sh\necho $$ >> {self.asked}\nwhile test -e {self.hold}; do sleep 0.05; done\necho slow 2.0\n"
        )
        path.chmod(0o755)
        self.env = {"PATH": f"{folder}:/usr/bin:/bin"}

    @property
    def command(self) -> str:
        return f"echo ran >> {self.ran}"

    def times(self, file: Path) -> int:
        return len(file.read_text().splitlines()) if file.exists() else 0

    def alive(self) -> list[int]:
        pids = [int(word) for word in self.asked.read_text().split()] if self.asked.exists() else []
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(tmp_path / "tools")


def rows_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = body["outcome"]["stats"]["requirements"]
    return rows


async def test_one_that_is_not_met_ends_the_job_with_the_whole_list_and_a_free_device(
    host: Host, controller: FakeController, tools: Tools
) -> None:
    job = Job(await controller.connected(), "cpu0")
    needs = ("tool:slow>=1", "tool:nope", "file:/etc/", "compute>=8.0")
    await controller.tell(job.shell(tools.command, env=tools.env, needs=needs))
    body = await controller.wait("ended", "j1")
    outcome = body["outcome"]
    assert outcome["ending"] == "requirement_not_met"
    assert outcome["detail"].startswith("tool:nope absent, compute>=8.0 could not be looked at; ")
    assert outcome["detail"].endswith("nothing was run")
    assert outcome["code"] is None
    assert [(row["text"], row["result"]) for row in rows_of(body)] == [
        ("tool:slow>=1", "present"),
        ("tool:nope", "absent"),
        ("file:/etc/", "present"),
        ("compute>=8.0", "could_not_look"),
    ]
    assert rows_of(body)[0]["version"] == "2.0"
    assert body["proofs"]["h:cpu0"]["outcome"] == "clear"
    assert body["output_bytes"] == 0
    assert not controller.of("started")
    assert not tools.ran.exists()
    # The device takes the next job at once.
    await controller.tell(Job(controller.registers[-1], "cpu0", job="j2", token=2).shell(tools.command))
    assert (await controller.wait("ended", "j2"))["outcome"]["code"] == 0
    assert tools.times(tools.ran) == 1


async def test_all_met_is_told_with_the_end_and_survives_the_agent(
    host: Host, controller: FakeController, tools: Tools
) -> None:
    job = Job(await controller.connected(), "cpu0")
    tools.goes_on.touch()
    needs = ("tool:slow>=1", "disk>=1K")
    await controller.tell(
        job.shell(f"{tools.command}; while test -e {tools.goes_on}; do sleep 0.05; done", env=tools.env, needs=needs)
    )
    await controller.wait("started", "j1")
    host.kill()
    tools.goes_on.unlink()
    host.start()
    body = await controller.wait("ended", "j1")
    assert (body["outcome"]["ending"], body["outcome"]["code"]) == ("exited", 0)
    assert [(row["text"], row["result"]) for row in rows_of(body)] == [(text, "present") for text in needs]
    assert tools.times(tools.ran) == 1


async def test_a_job_without_requirements_has_none_on_record(controller: FakeController) -> None:
    await controller.tell(Job(await controller.connected(), "cpu0").shell("true"))
    assert "requirements" not in (await controller.wait("ended", "j1"))["outcome"]["stats"]


@pytest.mark.parametrize("met", [True, False])
async def test_an_agent_that_dies_while_it_looks_is_followed_by_one_that_looks_again(
    host: Host, controller: FakeController, tools: Tools, met: bool
) -> None:
    tools.hold.touch()
    job = Job(await controller.connected(), "cpu0")
    start = job.shell(tools.command, env=tools.env, needs=("tool:slow>=1", "file:/etc/" if met else "tool:nope"))
    await controller.tell(start)
    await until(lambda: tools.times(tools.asked) == 1, what="the first look")
    host.kill()
    # What the dead agent's look had started does not go on without it.
    await until(lambda: not tools.alive(), 10, "the tool that was asked is gone")
    host.start()
    await controller.connected()
    await controller.tell(start)  # a controller that knows nothing of it repeats itself
    await until(lambda: tools.times(tools.asked) == 2, what="the second look")
    tools.hold.unlink()
    body = await controller.wait("ended", "j1")
    assert body["outcome"]["ending"] == ("exited" if met else "requirement_not_met")
    assert [row["result"] for row in rows_of(body)] == ["present", "present" if met else "absent"]
    assert (await controller.proved("h:cpu0", "j1"))["outcome"] == "clear"
    await asyncio.sleep(0.5)
    assert len({json.dumps(body["outcome"]) for body in controller.of("ended", "j1")}) == 1
    assert not controller.of("refused", "j1")
    assert tools.times(tools.ran) == (1 if met else 0)


async def test_whenever_the_agent_dies_a_job_runs_once_or_fails_once(
    host: Host, controller: FakeController, tools: Tools
) -> None:
    register = await controller.connected()
    for number, delay_s in enumerate((0.0, 0.02, 0.06, 0.12, 0.2, 0.35)):
        met = number % 2 == 0
        job = Job(register, "cpu0", job=f"j{number}", token=number + 1)
        needs = ("tool:slow>=1", "tool:sh" if met else "tool:nope")
        start = job.shell(f"echo {number} >> {tools.ran}", env=tools.env, needs=needs)
        controller.on_hello = lambda start=start: [start]  # type: ignore[misc]
        await controller.tell(start)
        await asyncio.sleep(delay_s)
        host.kill()
        host.start()
        body = await controller.wait("ended", job.job, timeout_s=30)
        assert body["outcome"]["ending"] == ("exited" if met else "requirement_not_met"), delay_s
        await controller.proved("h:cpu0", job.job)
        told = {json.dumps(body["outcome"], sort_keys=True) for body in controller.of("ended", job.job)}
        assert len(told) == 1, delay_s
        ran = tools.ran.read_text().split() if tools.ran.exists() else []
        assert ran.count(str(number)) == (1 if met else 0), delay_s


async def test_an_agent_that_dies_between_its_verdict_and_telling_it_leaves_the_verdict(
    host: Host, controller: FakeController, tools: Tools
) -> None:
    tools.hold.touch()
    job = Job(await controller.connected(), "cpu0")
    await controller.tell(job.shell(tools.command, env=tools.env, needs=("tool:slow>=1",)))
    await until(lambda: tools.times(tools.asked) == 1, what="the look")
    host.kill()
    # What it does next, up to the instant before its journal has the end.
    folder = host.layout.attempt("j1", 1)
    assert isinstance(adopt.examine(folder), adopt.Lost)
    rows = [{"kind": "tool", "text": "tool:slow>=1", "result": "absent", "words": "it is not there"}]
    unmet = Outcome(Ending.REQUIREMENT_NOT_MET, detail="tool:slow>=1 absent", stats={"requirements": rows})
    folders.write_not_begun(folder, unmet)
    tools.hold.unlink()
    host.start()
    body = await controller.wait("ended", "j1")
    assert body["outcome"]["ending"] == "requirement_not_met"
    assert body["outcome"]["detail"] == "tool:slow>=1 absent"
    assert rows_of(body) == rows
    await controller.proved("h:cpu0", "j1")
    assert tools.times(tools.asked) == 1
    assert not tools.ran.exists()


async def test_a_stop_while_it_looks_ends_it_at_once(controller: FakeController, tools: Tools) -> None:
    tools.hold.touch()
    job = Job(await controller.connected(), "cpu0")
    await controller.tell(job.shell(tools.command, env=tools.env, needs=("tool:slow>=1",)))
    await until(lambda: tools.times(tools.asked) == 1, what="the look")
    began = time.monotonic()
    await controller.tell(job.stop("ann asked"))
    body = await controller.wait("refused", "j1")
    assert time.monotonic() - began < 3.0  # the tool would have had 5 s
    assert body["reason"] == "ann asked"
    await until(lambda: not tools.alive(), 5, "the tool that was asked is gone")
    await controller.proved("h:cpu0", "j1")
    assert not tools.ran.exists()
    assert not controller.of("ended", "j1")


async def test_a_tool_that_hangs_could_not_be_looked_at(controller: FakeController, tools: Tools) -> None:
    tools.hold.touch()
    job = Job(await controller.connected(), "cpu0")
    await controller.tell(job.shell(tools.command, env=tools.env, needs=("tool:slow>=1", "tool:slow")))
    body = await controller.wait("ended", "j1", timeout_s=30)
    slow, there = rows_of(body)
    assert (slow["result"], slow["reason"], there["result"]) == ("could_not_look", "timeout", "present")
    assert "slow --version did not end within 5 s" in slow["words"]
    await until(lambda: not tools.alive(), 5, "the tool that was asked is gone")
    assert not tools.ran.exists()


async def test_a_requirement_of_a_newer_controller_is_not_taken_for_met(
    controller: FakeController, tools: Tools
) -> None:
    job = Job(await controller.connected(), "cpu0")
    await controller.tell(job.shell(tools.command, env=tools.env, needs=("tool:sh", "quantum:foam")))
    sh, foam = rows_of(await controller.wait("ended", "j1"))
    assert sh["result"] == "present"
    assert (foam["text"], foam["result"]) == ("quantum:foam", "could_not_look")
    assert not tools.ran.exists()


async def test_the_driver_and_capability_of_simulated_devices(tmp_path: Path, tools: Tools) -> None:
    made = Host.make(tmp_path, sim="2xH100")
    try:
        async with FakeController(made.layout.ctl_sock).serving() as controller:
            made.start()
            register = await controller.connected()
            await controller.tell(
                Job(register, "gpu0", "gpu1").shell(tools.command, needs=("driver>=1.0", "compute>=9.0"))
            )
            body = await controller.wait("ended", "j1", timeout_s=30)
            assert [row["result"] for row in rows_of(body)] == ["present", "present"]
            assert "h:gpu0, h:gpu1" in rows_of(body)[1]["words"]
            await controller.proved("h:gpu0", "j1")
            await controller.proved("h:gpu1", "j1")
            again = Job(register, "gpu0", "gpu1", job="j2", token=2)
            await controller.tell(again.shell(tools.command, needs=("driver>=99999", "compute>=9.1")))
            body = await controller.wait("ended", "j2", timeout_s=30)
            assert [row["result"] for row in rows_of(body)] == ["absent", "absent"]
            assert "h:gpu1" in rows_of(body)[1]["words"]
            # Nothing was run, and both are proved empty and free with the same report.
            assert {proof["outcome"] for proof in body["proofs"].values()} == {"clear"}
            assert set(body["proofs"]) == {"h:gpu0", "h:gpu1"}
    finally:
        made.close()
