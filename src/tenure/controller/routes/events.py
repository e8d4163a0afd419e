"""The event feed as server-sent events: every event once, in order, resumable at any version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from tenure.controller.auth import Reader
from tenure.controller.feed import EVENTS, wait_for
from tenure.controller.replies import Stream, encode
from tenure.controller.routes import Service
from tenure.controller.service import Controller
from tenure.errors import TenureError
from tenure.ledger import Stored

router = APIRouter(prefix="/v1", tags=["events"])

BEAT_S = 15.0
PAGE = 200
_HIGHEST = (1 << 63) - 1


@router.get("/events")
async def events(
    caller: Reader,
    service: Service,
    after: Annotated[int | None, Query(ge=0, le=_HIGHEST)] = None,
    last_event_id: Annotated[int | None, Header(ge=0, le=_HIGHEST)] = None,
) -> Response:
    """Events after a version (the header ``Last-Event-ID``, else ``after``); from now on where neither is given."""
    await service.writer.settled()
    version = service.state.version
    asked = last_event_id if last_event_id is not None else after
    if asked is not None and asked > version:
        raise TenureError(
            "conflict",
            f"the feed is at version {version} and knows nothing of {asked}: it belongs to another ledger",
            do="read everything anew, and follow from there",
            facts={"version": version, "after": asked},
        )
    return Stream(_stream(service, version, version if asked is None else asked), "text/event-stream")


async def _stream(service: Controller, version: int, position: int) -> AsyncGenerator[bytes, None]:
    yield f"event: version\ndata: {encode({'version': version, 'after': position})}\n\n".encode()
    with service.feed.watch(EVENTS) as changed:
        while not service.feed.closing:
            changed.clear()
            # Read from the ledger for each watcher by itself: a slow one holds a page of its own and nobody else.
            page = await asyncio.to_thread(service.ledger.events_after, position, PAGE)
            for stored in page:
                position = stored.seq
                yield _event(stored)
            if len(page) < PAGE and not await wait_for(changed, BEAT_S):
                yield b": beat\n\n"


def _event(stored: Stored) -> bytes:
    """One event. Its body is JSON in the ledger already, an object with fields of its own or none."""
    head = encode({"seq": stored.seq, "kind": stored.kind, "at": stored.at, "actor": stored.actor})
    rest = "}" if stored.body == "{}" else "," + stored.body[1:]
    return f"id: {stored.seq}\nevent: {stored.kind}\ndata: {head[:-1]}{rest}\n\n".encode("ascii")
