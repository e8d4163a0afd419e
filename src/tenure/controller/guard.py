"""What stands before every route: who calls, under which name, and how much and how slowly it may send.

A request is refused before any of its body is read where its caller is not let in, and is handed on only when all of
its body is here: so no route, and nothing of the framework, ever waits for a slow client or holds more of a request
than ``MAX_BODY``. The routes ask for their caller once more (``auth.Caller``): two walls, and a test for each.

What comes from another host has to ask for this controller by one of its names, and may be no web page's doing: so a
browser that was led here under a name of somebody else's (DNS rebinding), or by another site, gets nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenure.controller.auth import authenticated
from tenure.controller.replies import encode, refusal
from tenure.controller.tokens import Tokens
from tenure.errors import TenureError

#: Bytes of a request's body. A process cannot be given more than 6 MiB of arguments and environment by Linux.
MAX_BODY = 16 << 20
#: Seconds in which all of a request's body has to arrive.
BODY_S = 20.0


class Guard:
    """Wraps the application. ``names`` gives the hosts under which it may be asked from elsewhere. ``max_body`` is
    bytes, ``body_s`` seconds."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: Tokens | None = None,
        names: Callable[[], Collection[str]] = tuple,
        max_body: int = MAX_BODY,
        body_s: float = BODY_S,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._names = names
        self._max_body = max_body
        self._body_s = body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        far = bool(scope["client"]) and scope["client"][0].startswith("tls:")
        try:
            if far:
                self._check_names(HTTPConnection(scope))
            authenticated(HTTPConnection(scope), self._tokens)
            if kind == "http" and scope["method"] not in ("GET", "HEAD"):
                receive = _replay(await self._body(scope, receive), receive)
        except TenureError as error:
            if kind == "websocket":
                await receive()
                await _deny(error, scope, send)
                return
            slow = error.code == "timed_out"  # the rest of the body may still come, and is no request
            status = 413 if error.facts.get("limit_bytes") else None
            await refusal(error, status, {"connection": "close"} if slow or far else None)(scope, receive, send)
            return
        except ConnectionError:
            return
        await self._app(scope, receive, send)

    def _check_names(self, connection: HTTPConnection) -> None:
        origin = connection.headers.get("origin")
        if origin is not None:
            raise TenureError(
                "not_permitted",
                f"this controller takes no requests from web pages, and this one comes from {origin[:200]!r}",
                do="use rc or the API",
            )
        host = _without_port(connection.headers.get("host", ""))
        if host not in self._names():
            raise TenureError(
                "not_permitted",
                f"this controller does not go by the name {host[:200]!r}",
                do="ask for it by one of its own, or name that one too: rc serve --address NAME:PORT",
                facts={"host": host[:200]},
            )

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


def _without_port(host: str) -> str:
    name, bracket, _ = host.lower().removeprefix("[").partition("]")
    return name if bracket else host.lower().partition(":")[0]


async def _deny(error: TenureError, scope: Scope, send: Send) -> None:
    """Refuses a WebSocket before there is one, with the words that a request would get."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008, "reason": error.code})
        return
    body = encode({"error": error.to_dict()}).encode("ascii")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode("ascii"))]
    await send({"type": "websocket.http.response.start", "status": error.http_status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


def _replay(body: bytes, receive: Receive) -> Receive:
    waiting = [body]

    async def again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again
