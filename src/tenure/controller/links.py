"""The connections of agents: one live link each, what was last heard on it, and what is waiting to be sent."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from tenure.domain.instructions import Instruction
from tenure.wire import frames

#: Frames that may wait for a slow agent before its connection is given up (it then reconnects and is told again).
MAX_WAITING = 10_000


@dataclass(slots=True, eq=False)
class Link:
    """One agent's connection. ``since`` and ``heard_at`` are monotonic; ``pid`` is the peer's, 0 where it is not known.

    ``wire`` is the version its agent speaks. ``welcomed`` is set once its registration is committed.
    ``outputs`` remembers of which attempts it may send output.
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

    def send(self, frame: str) -> None:
        """Queues a frame; a link that cannot take any more is closed, and one that is closed takes none."""
        if self.closed:
            return
        try:
            self.waiting.put_nowait(frame)
        except asyncio.QueueFull:
            self.close()

    @property
    def closed(self) -> bool:
        """Whether it is given up: nothing that comes on it counts any more."""
        return self.ended.is_set()

    def close(self) -> None:
        """Gives the connection up; what was queued before is still sent if the other side takes it at once."""
        self.ended.set()


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
            link.send(frames.instruction(told))

    def excuse(self, seconds: float) -> None:
        """This controller did not run for so long: nobody could be heard meanwhile, and it counts against nobody."""
        for link in self.links.values():
            link.heard_at += seconds
        for agent in self.lost_at:
            self.lost_at[agent] += seconds
