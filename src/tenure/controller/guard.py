"""What stands before every route: who calls, and how much and how slowly it may send.

A request is refused before any of its body is read where its caller is not let in, and is handed on only when all of
its body is here: so no route, and nothing of the framework, ever waits for a slow client or holds more of a request
than ``MAX_BODY``. The routes ask for their caller once more (``auth.Caller``): two walls, and a test for each.
"""

from __future__ import annotations

import asyncio

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenure.controller.auth import authenticated
from tenure.controller.replies import refusal
from tenure.errors import TenureError

#: Bytes of a request's body. A process cannot be given more than 6 MiB of arguments and environment by Linux.
MAX_BODY = 16 << 20
#: Seconds in which all of a request's body has to arrive.
BODY_S = 20.0


class Guard:
    """Wraps the application. ``max_body`` is bytes, ``body_s`` seconds."""

    def __init__(self, app: ASGIApp, *, max_body: int = MAX_BODY, body_s: float = BODY_S) -> None:
        self._app = app
        self._max_body = max_body
        self._body_s = body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        try:
            authenticated(HTTPConnection(scope))
            if kind == "http" and scope["method"] not in ("GET", "HEAD"):
                receive = _replay(await self._body(scope, receive), receive)
        except TenureError as error:
            if kind == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008, "reason": error.code})
                return
            slow = error.code == "timed_out"  # the rest of the body may still come, and is no request
            status = 413 if error.facts.get("limit_bytes") else None
            await refusal(error, status, {"connection": "close"} if slow else None)(scope, receive, send)
            return
        except ConnectionError:
            return
        await self._app(scope, receive, send)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """All of the body; raises ``ConnectionError`` where the client went away before its end."""
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > self._max_body:
                raise self._too_large()
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ConnectionError
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._max_body:
                        raise self._too_large()
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise TenureError(
                "timed_out",
                f"the body of the request was not here after {self._body_s:g} s; {size} bytes of it were",
                do="send the request whole",
                facts={"received_bytes": size, "within_s": self._body_s},
            ) from None

    def _too_large(self) -> TenureError:
        return TenureError(
            "invalid_request",
            f"the body of the request is larger than {self._max_body} bytes",
            do="pass large data in files",
            facts={"limit_bytes": self._max_body},
        )


def _replay(body: bytes, receive: Receive) -> Receive:
    waiting = [body]

    async def again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again
