"""The connections of agents: one live link each, what was last heard on it, and what is waiting to be sent."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from tenure.domain.instructions import Instruction
from tenure.wire import frames

#: Frames that may wait for a slow agent before its connection is given up (it then reconnects and is told again).
MAX_WAITING = 10_000


@dataclass(slots=True)
class Link:
    """One agent's connection. ``heard_at`` is monotonic; ``pid`` is that of the peer, 0 where it is not known."""

    agent: str
    pid: int
    heard_at: float = field(default_factory=time.monotonic)
    waiting: asyncio.Queue[str | None] = field(default_factory=lambda: asyncio.Queue(MAX_WAITING))
    closed: bool = False

    def send(self, frame: str) -> None:
        """Queues a frame; a link that cannot take any more is closed."""
        try:
            self.waiting.put_nowait(frame)
        except asyncio.QueueFull:
            self.close()

    def close(self) -> None:
        """Ends the connection once the sender has seen it."""
        self.closed = True
        try:
            self.waiting.put_nowait(None)
        except asyncio.QueueFull:
            self.waiting.get_nowait()
            self.waiting.put_nowait(None)


class Links:
    """Every agent's link. The newest connection of an agent wins and closes the older."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self.lost_at: dict[str, float] = {}

    def add(self, link: Link) -> None:
        """An agent has registered on this connection."""
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
        if link is not None:
            link.send(frames.instruction(told))
