"""The agent's account of its worker over crashes, each at the instant where it could do harm: real core, real looks,
real files, in a root of the test's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenure.agent import core, leftovers_file
from tenure.agent import records as r
from tenure.agent.leftovers import Leftovers
from tenure.agent.options import Options
from tenure.domain.device import CLEAR
from tenure.domain.instructions import Grant, StartJob
from tenure.domain.job import Ending, JobSpec, Outcome
from tenure.paths import Layout


@dataclass
class House:
    """What outlives an agent: its journal's state and its files. ``crash`` makes the next journal record fail."""

    root: Path
    layout: Layout
    options: Options
    state: core.AgentState = field(default_factory=core.AgentState)
    crash: bool = False
    sent: list[str] = field(default_factory=list)
    token: int = 0

    def agent(self) -> Leftovers:
        """A fresh agent, which knows what journal and files say."""
        shell: Any = SimpleNamespace(
            options=self.options,
            layout=self.layout,
            state=self.state,
            tell=self._tell,
            identity=SimpleNamespace(boot_id="boot"),
            connection=SimpleNamespace(send_text=self.sent.append),
        )
        return Leftovers(shell)

    def _tell(self, message: r.Message) -> None:
        if self.crash and isinstance(message, r.WorkerLooked):
            raise KeyboardInterrupt
        events, _ = core.decide(self.state, message)
        for event in events:
            core.evolve(self.state, event)

    def begin(self, job: str) -> None:
        self.token += 1
        self._tell(StartJob(job, 1, "ann", (Grant("g", f"G{job}", self.token, "l"),), JobSpec(("true",))))
        self._tell(r.Started(job, 1, (1, 1), 2))

    def end(self, job: str) -> None:
        self._tell(r.Ended(job, 1, Outcome(Ending.EXITED, 0), 0, {"g": CLEAR}))
        for seq in list(self.state.outbox):
            self._tell(r.Acked(seq))
        assert (job, 1) not in self.state.attempts, "the controller has all of it, and it is forgotten"

    def install(self, name: str) -> str:
        path = self.root / "usr/bin" / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return str(path)


@pytest.fixture
def house(tmp_path: Path) -> House:
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    layout = Layout(tmp_path / "home", "m")
    layout.create()
    options = Options(leftovers_root=str(root), leftovers_home=str(tmp_path / "home"))
    return House(root, layout, options)


def makers(agent: Leftovers) -> dict[str, str]:
    assert agent.kept is not None
    return {Path(each.item).name: each.by.words for each in agent.kept.worker.leftovers.values()}


async def test_a_crash_before_the_file_repeats_the_look_and_asks_the_same_job(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = house.agent()
    await agent.look()
    house.begin("A")
    house.install("left")
    house.end("A")
    with monkeypatch.context() as patch:
        patch.setattr(leftovers_file, "save", lambda *_: (_ for _ in ()).throw(OSError(28, "no space")))
        with pytest.raises(OSError, match="no space"):
            await agent.look()
    again = house.agent()
    await again.look()
    assert makers(again) == {"left": "A"}
    assert not house.state.unlooked


async def test_a_crash_between_the_file_and_the_journal_does_not_ask_a_job_again(house: House) -> None:
    agent = house.agent()
    await agent.look()
    house.begin("A")
    house.install("left")
    house.end("A")
    house.crash = True
    with pytest.raises(KeyboardInterrupt):
        await agent.look()
    house.crash = False
    assert list(house.state.unlooked) == [("A", 1)], "the journal has not heard of the look"
    house.install("by-hand")
    again = house.agent()
    await again.look()
    assert makers(again) == {"left": "A", "by-hand": "outside any job"}


async def test_what_was_told_is_what_a_later_agent_tells(house: House) -> None:
    agent = house.agent()
    await agent.look()
    house.begin("A")
    house.begin("B")
    house.install("both")
    house.end("B")
    await agent.look()
    house.end("A")
    house.install("only")
    await agent.look()
    assert makers(agent) == {"both": "one of A, B", "only": "A"}
    again = house.agent()
    await again.look()
    assert again.kept is not None
    assert agent.kept is not None
    assert again.kept.worker.leftovers == agent.kept.worker.leftovers
    assert (again.told() or {})["leftovers"] == (agent.told() or {})["leftovers"]


async def test_a_job_that_began_while_a_look_went_on_may_have_been_seen_at_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = house.agent()
    await agent.look()
    house.begin("A")
    house.end("A")
    look = agent._probe.look

    async def slow(before: Any) -> Any:
        house.begin("B")
        house.install("whose")
        return await look(before)

    monkeypatch.setattr(agent._probe, "look", slow)
    await agent.look()
    assert makers(agent) == {"whose": "one of A, B"}
    assert list(house.state.unlooked) == [("B", 1)]
    assert agent.at_start(("B", 1))["count"] == 0, "what it may have made itself was not there at its start"
    assert agent.at_start(("C", 1))["count"] == 1


async def test_a_start_before_anybody_looked_says_that_nobody_knows(house: House) -> None:
    agent = house.agent()
    assert agent.at_start(("A", 1)) == {"unknown": "nobody had looked at this worker yet"}
    assert agent.told() is None
    house.begin("A")
    await agent.look()
    assert (agent.told() or {})["image"]["jobs_before"] == ["A"], "what it changed by then reads as image"
    house.end("A")
    assert agent.at_start(("B", 1))["not_looked_after"] == ["A"]


async def test_a_damaged_account_is_set_aside_and_said(house: House) -> None:
    first = house.agent()
    await first.look()
    first.file.write_text('{"v": 1}')
    again = house.agent()
    await again.look()
    assert "could not be read" in (again.told() or {})["problem"]
    assert first.file.with_name("leftovers.before.json").read_text() == '{"v": 1}'
    assert makers(again) == {}


async def test_without_its_versions_no_tool_is_run(house: House, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    tool = house.root / "usr/bin/gcc"
    tool.write_text(f"#!/bin/sh\n: > {asked}\necho 1.2\n")
    tool.chmod(0o755)
    house.options = Options(
        leftovers_root=str(house.root), leftovers_home=str(tmp_path / "home"), leftovers_versions=False
    )
    await house.agent().look()
    assert not asked.exists()
