"""Waiting for an event, for a time, by a task that can be cancelled at any moment.

Not by ``asyncio.wait_for``: before Python 3.12 it swallows a cancel that comes as the event is set. A link once hung
for ever by that: its tasks were cancelled as one of them was woken, and who waited for its end waited on.
"""

from __future__ import annotations

import asyncio


async def until_set(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether the event was set within a time. A cancel is a cancel, whatever else happens."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
