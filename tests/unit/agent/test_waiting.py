"""A wait that is woken and cancelled at once is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from tenure.agent.waiting import until_set


async def test_it_tells_an_event_from_the_end_of_patience() -> None:
    event = asyncio.Event()
    assert not await until_set(event, 0.01)
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await until_set(event, 5.0)


async def test_a_cancel_that_comes_as_the_event_is_set_is_not_swallowed() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(until_set(event, 5.0))
    for turns in range(4):
        await asyncio.sleep(0)
        if turns == 2:
            event.set()  # its future is done, and it has not run yet
            waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_one_that_polls_for_ever_ends_when_it_is_told_to() -> None:
    event = asyncio.Event()

    async def poll() -> None:
        while True:
            event.clear()
            await until_set(event, 0.001)

    for _ in range(200):
        polling = asyncio.create_task(poll())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        event.set()
        polling.cancel()
        done, _pending = await asyncio.wait([polling], timeout=5.0)
        assert done
        assert polling.cancelled()
