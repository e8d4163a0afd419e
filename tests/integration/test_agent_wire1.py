"""Today's agent, a real process, and a controller of wire version 1: what is new is acknowledged, dropped and harms
nothing."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent_kit import FakeController, Host, Job
from tests.upgrade.wire1 import frames as old
from tests.upgrade.wire1 import records as was
from websockets.asyncio.server import ServerConnection, serve

from tenure.agent import records as r
from tenure.agent.core import AgentState
from tenure.agent.journal import Journal
from tenure.paths import bind_unix


@dataclass
class OldController(FakeController):
    """Does with the frozen messages what a controller of version 1 did. ``dropped``: kinds that it did not know."""

    dropped: list[str] | None = None

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[OldController]:
        async with serve(self._link, sock=bind_unix(self.path), compression=None, max_size=None) as server:
            yield self
            for link in self.links:
                link.transport.abort()
            server.close()
        self.path.unlink(missing_ok=True)

    async def _link(self, link: ServerConnection) -> None:
        hello = old.loads(await link.recv())
        assert old.check_wire(hello["wire"]) == 1
        old.read(was.Register, hello["register"])
        await link.send(old.dumps({"type": "welcome", "wire": 1, "controller": "tester"}))
        self.registers.append(hello["register"])
        self.links.append(link)
        try:
            async for message in link:
                await self._take(link, message)
        finally:
            self.links.remove(link)

    async def _take(self, link: ServerConnection, message: str | bytes) -> None:
        if isinstance(message, bytes):
            chunk = old.OutputChunk.from_bytes(message)
            held = self.output.setdefault((chunk.job, chunk.attempt), bytearray())
            held[chunk.offset :] = chunk.data
            told = {"type": "output_ack", "job": chunk.job, "attempt": chunk.attempt, "offset": len(held)}
            await link.send(old.dumps(told))
            return
        frame = old.loads(message)
        if frame["type"] != "report":
            return
        if frame["kind"] in old.REPORTS:
            old.read_report(frame, "a")  # raises for what that controller could not read
            self.reports.append(frame)
        else:
            self.dropped = [*(self.dropped or []), frame["kind"]]
        if frame["seq"]:
            await link.send(old.dumps({"type": "ack", "seq": frame["seq"]}))

    async def tell_old(self, told: was.Instruction) -> None:
        await self.links[-1].send(old.instruction(told))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host.make(tmp_path)
    yield made
    made.close()


def outbox(host: Host) -> dict[int, Any]:
    """What the agent, which must not run, still owes."""
    state = AgentState()
    journal = Journal.open(host.layout.journal, state)
    journal.close()
    return state.outbox


async def test_a_job_runs_and_a_notice_is_dropped_without_harm(host: Host) -> None:
    state = AgentState()
    journal = Journal.open(host.layout.journal, state)
    body = {"job": "j0", "attempt": 1, "tokens": {"h:cpu0": 1}, "notice": {"kind": "x", "words": "y", "utc": 1.0}}
    journal.record([r.ReportQueued(1, "notice", body, ("j0", 1))])
    journal.sync()
    journal.close()
    async with OldController(host.layout.ctl_sock).serving() as controller:
        host.start()
        register = await controller.connected()
        today = Job(register, "cpu0").shell("echo hi; echo there >&2; exit 5")
        grants = tuple(was.Grant(g.device, g.uuid, g.token, g.lease) for g in today.grants)
        spec = was.JobSpec(argv=today.spec.argv)
        await controller.tell_old(was.StartJob("j1", 1, "ann", grants, spec))
        ended = await controller.wait("ended", "j1")
        assert (ended["outcome"]["ending"], ended["outcome"]["code"]) == ("exited", 5)
        assert (await controller.proved("h:cpu0", "j1"))["outcome"] == "clear"
        assert sorted(controller.output[("j1", 1)].split()) == [b"hi", b"there"]
        assert "notice" in (controller.dropped or [])
        assert len(controller.registers) == 1, "the link held"
    assert host.kill(signal.SIGTERM) == 0
    assert not any(report.kind == "notice" for report in outbox(host).values())
