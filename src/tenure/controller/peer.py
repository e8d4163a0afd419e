"""Who is at the other end of a connection: on the local socket as the kernel says, else an address over TLS (K2).

uvicorn fills ``scope["client"]`` from the network address, which a Unix socket does not have and which proves nothing.
Two small protocol classes put there, once per connection, ``("uid:1000", pid)`` for the local socket and
``("tls:ADDRESS", port)`` for TLS; a connection that is neither has no client, and nobody lets it in.

Whoever comes over TLS may be anybody, so what may be sent before a request is known is bounded there in size and time.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from tenure.controller.replies import encode
from tenure.errors import TenureError

_UCRED = struct.Struct("3i")
_XUCRED = struct.Struct("=IIh16I")
#: From another host: seconds until the head of a request has to be here whole, and bytes it may have.
HEAD_S = 15.0
HEAD_BYTES = 64 << 10


def credentials(connection: Any) -> tuple[int, int] | None:
    """(uid, pid) of the process that connected a Unix socket; pid 0 where the system does not tell it."""
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    if sys.platform == "darwin":
        raw = connection.getsockopt(0, 1, _XUCRED.size)
        return int(_XUCRED.unpack(raw)[1]), 0
    pid, uid, _gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return uid, pid


def _peer(transport: asyncio.BaseTransport) -> tuple[str, int] | None:
    found = credentials(transport.get_extra_info("socket"))
    if found is not None:
        return f"uid:{found[0]}", found[1]
    if transport.get_extra_info("ssl_object") is None:
        return None
    address = transport.get_extra_info("peername")
    return f"tls:{address[0]}", int(address[1])


class PeerHttpProtocol(HttpToolsProtocol):
    """HTTP whose client is the peer's uid and pid or its address, and whose every error has the API's one shape."""

    _late: asyncio.TimerHandle | None = None
    _far = False
    _head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.client = _peer(transport)
        self._far = self.client is None or self.client[0].startswith("tls:")
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._late is not None:
            self._head += len(data)
        super().data_received(data)
        if self._late is not None and self._head > HEAD_BYTES:
            self._head_is_here()
            self.send_400_response(f"its head is longer than {HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._head_is_here()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        if self._far and self._late is None:
            self._head = 0
            self._late = asyncio.get_running_loop().call_later(HEAD_S, self.transport.abort)

    def _head_is_here(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def send_400_response(self, msg: str) -> None:
        said = TenureError("usage", f"this is no HTTP request: {msg}", do="see /openapi.json for what there is")
        body = encode({"error": said.to_dict()}).encode("ascii")
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode("ascii") + b"connection: close\r\n\r\n" + body)
        self.transport.close()


class PeerWebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket whose client is the peer's uid and pid, or its address."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self.client = _peer(transport)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # uvicorn leaves it unsaid, and logs an answered refusal as a failure
