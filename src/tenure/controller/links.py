"""The connections of agents: one live link each, what was last heard on it, and what is waiting to be sent."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tenure.domain import promises
from tenure.domain.instructions import Instruction, StartJob, StopJob
from tenure.errors import TenureError
from tenure.wire import frames

#: Frames that may wait for a slow agent before its connection is given up (it then reconnects and is told again).
MAX_WAITING = 10_000
_NUMBERS = itertools.count(1)


@dataclass(slots=True, eq=False)
class Link:
    """One agent's connection. ``since`` and ``heard_at`` are monotonic; ``pid`` is the peer's, 0 where it is not known.

    ``wire`` is the version its agent speaks. ``welcomed`` is set once its registration is committed.
    ``outputs`` remembers of which attempts it may send output. ``token`` is the id of the one it came with, empty on
    the local socket; ``refusal`` is why it was ended, where the agent is to be told.
    """

    agent: str
    pid: int
    wire: int = frames.WIRE
    since: float = field(default_factory=time.monotonic)
    heard_at: float = field(default_factory=time.monotonic)
    waiting: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(MAX_WAITING))
    welcomed: bool = False
    outputs: dict[tuple[str, int], bool] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    asked: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    token: str = ""
    refusal: TenureError | None = None

    def send(self, frame: str) -> None:
        """Queues a frame; a link that cannot take any more is closed, and one that is closed takes none."""
        if self.closed:
            return
        try:
            self.waiting.put_nowait(frame)
        except asyncio.QueueFull:
            self.close()

    def tell(self, told: Instruction) -> None:
        """Queues an instruction. A start that this agent could not keep all of (it went back to an older version since
        the grant) becomes a stop: it declines then, proves its devices empty, and the job waits for others."""
        if isinstance(told, StartJob) and promises.wire_of(told.spec) > self.wire:
            why = f"its agent speaks wire version {self.wire}, which has no {', '.join(promises.asked(told.spec))}"
            told = StopJob(told.job, told.attempt, told.grants, why)
        self.send(frames.instruction(told))

    async def ask(self, what: str, body: Mapping[str, Any], within_s: float) -> dict[str, Any]:
        """Asks the agent for something and gives its answer. Raises ``TimeoutError`` where none comes in time or the
        link ends: what was asked for may have been done all the same."""
        number = next(_NUMBERS)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.asked[number] = answer
        over = asyncio.create_task(self.ended.wait())
        try:
            self.send(frames.dumps({"type": "ask", "id": number, "what": what, "body": body}))
            both: set[asyncio.Future[Any]] = {answer, over}
            await asyncio.wait(both, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise TimeoutError
            return answer.result()
        finally:
            over.cancel()
            del self.asked[number]

    def answered(self, number: object, body: object) -> None:
        """The agent's answer; one that nobody waits for any more is dropped."""
        waiting = self.asked.get(number) if isinstance(number, int) else None
        if waiting is not None and not waiting.done() and isinstance(body, dict):
            waiting.set_result(body)

    @property
    def closed(self) -> bool:
        """Whether it is given up: nothing that comes on it counts any more."""
        return self.ended.is_set()

    def close(self) -> None:
        """Gives the connection up; what was queued before is still sent if the other side takes it at once."""
        self.ended.set()

    def refuse(self, error: TenureError) -> None:
        """Ends the connection and tells the agent why."""
        self.refusal = error
        self.close()


class Links:
    """Every agent's link. The newest connection of an agent wins and closes the older.

    ``lost_at`` holds, for each agent whose connection ended and which did not come back, when that was (monotonic).
    """

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self.lost_at: dict[str, float] = {}

    def add(self, link: Link) -> None:
        """An agent has said hello on this connection. From here on it is heard; it is told nothing until welcomed."""
        before = self.links.get(link.agent)
        self.links[link.agent] = link
        self.lost_at.pop(link.agent, None)
        if before is not None and before is not link:
            before.close()

    def remove(self, link: Link) -> None:
        """A connection ended; its agent may come back on another."""
        link.close()
        if self.links.get(link.agent) is link:
            del self.links[link.agent]
            self.lost_at[link.agent] = time.monotonic()

    def tell(self, agent: str, told: Instruction) -> None:
        """Sends an instruction if the agent is connected; if not it is told when it registers."""
        link = self.links.get(agent)
        if link is not None and link.welcomed:
            link.tell(told)

    def excuse(self, seconds: float) -> None:
        """This controller did not run for so long: nobody could be heard meanwhile, and it counts against nobody."""
        for link in self.links.values():
            link.heard_at += seconds
        for agent in self.lost_at:
            self.lost_at[agent] += seconds
