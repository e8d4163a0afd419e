"""Wakes whoever watches: a job's followers, the event feed, and the loops. Says only that, never what, has changed.

Watchers then read committed state and decide for themselves what is new; so a wake-up that is lost or repeated can
make nobody wrong, only late, and every wait has a time limit besides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

#: Topic of the event feed.
EVENTS = "events"


class Feed:
    """Topics and those who wait on them."""

    def __init__(self) -> None:
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self.closing = False

    @contextmanager
    def watch(self, topic: str) -> Iterator[asyncio.Event]:
        """An event that is set at every change of the topic, for as long as the block lasts."""
        event = asyncio.Event()
        self._watchers.setdefault(topic, set()).add(event)
        try:
            yield event
        finally:
            watchers = self._watchers[topic]
            watchers.discard(event)
            if not watchers:
                del self._watchers[topic]

    def watched(self, topic: str) -> bool:
        """Whether anybody watches a topic now."""
        return topic in self._watchers

    def notify(self, topic: str) -> None:
        """Wakes the topic's watchers."""
        for event in self._watchers.get(topic, ()):
            event.set()

    def close(self) -> None:
        """Wakes everybody for the last time: the controller is going down."""
        self.closing = True
        for topic in list(self._watchers):
            self.notify(topic)


async def wait_for(event: asyncio.Event, timeout_s: float) -> bool:
    """Waits for a wake-up and clears it; ``False`` when the time ran out first."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
