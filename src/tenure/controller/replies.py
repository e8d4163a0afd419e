"""Answers as they go over the wire: JSON, errors, and streams that end when either side has had enough.

Routes return these and never plain values: FastAPI would validate and encode those a second time, which costs more
than the rest of a request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tenure.errors import TenureError

# Escapes keep lone surrogates, which argv and file names may hold, out of UTF-8.
encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


def reply(body: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(encode(body), status_code=status, media_type="application/json")


def refusal(error: TenureError, status: int | None = None, headers: dict[str, str] | None = None) -> Response:
    """The one shape of every error: ``{"error": {code, message, do, facts}}``, with the code's HTTP status."""
    text = encode({"error": error.to_dict()})
    return Response(text, status or error.http_status, headers, media_type="application/json")


class Stream(Response):
    """Pieces as they come. A client that goes away ends the generator at once, wherever it waits."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], media_type: str, status_code: int = 200) -> None:
        self._pieces = pieces
        self.status_code = status_code
        self.media_type = media_type
        self.background = None
        self.init_headers({"cache-control": "no-store"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait((pump, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not pump.done():
                pump.cancel()
            await asyncio.wait((pump, gone))
            await self._pieces.aclose()
        if not pump.cancelled():
            pump.result()

    async def _pump(self, send: Send) -> None:
        start: Message = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
