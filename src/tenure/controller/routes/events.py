"""The event feed as server-sent events: every event once, in order, resumable at any version."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import StreamingResponse

from tenure.controller.auth import Caller
from tenure.controller.feed import EVENTS, wait_for
from tenure.controller.routes import Service
from tenure.controller.service import Controller
from tenure.domain.events import to_body

router = APIRouter(prefix="/v1", tags=["events"])

BEAT_S = 15.0
PAGE = 500


@router.get("/events")
async def events(
    caller: Caller,
    service: Service,
    after: Annotated[int | None, Query(ge=0)] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Events after a version (``after``, or the header ``Last-Event-ID``); from now on where neither is given."""
    await service.writer.settled()
    position = service.state.version
    if last_event_id is not None and last_event_id.isdigit():
        position = int(last_event_id)
    elif after is not None:
        position = after
    return StreamingResponse(_stream(service, position), media_type="text/event-stream")


async def _stream(service: Controller, position: int) -> AsyncIterator[bytes]:
    start = json.dumps({"version": service.state.version, "after": position})
    yield f"event: version\ndata: {start}\n\n".encode()
    with service.feed.watch(EVENTS) as changed:
        while not service.feed.closing:
            changed.clear()
            page = await asyncio.to_thread(service.ledger.events_after, position, PAGE)
            for stored in page:
                position = stored.seq
                body = {"seq": stored.seq, "kind": stored.event.kind, **to_body(stored.event)}
                yield f"id: {stored.seq}\nevent: {stored.event.kind}\ndata: {json.dumps(body)}\n\n".encode()
            if len(page) < PAGE and not await wait_for(changed, BEAT_S):
                yield b": beat\n\n"
