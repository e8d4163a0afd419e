"""Who is at the other end of the local socket, as the kernel says (K2).

uvicorn fills ``scope["client"]`` from the network address, which a Unix socket does not have. Two small protocol
classes put the peer's credentials there instead, once per connection: ``("uid:1000", pid)``.
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
    return None if found is None else (f"uid:{found[0]}", found[1])


class PeerHttpProtocol(HttpToolsProtocol):
    """HTTP whose client is the peer's uid and pid, and whose every error has the API's one shape."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.client = _peer(transport)

    def send_400_response(self, msg: str) -> None:
        said = TenureError("usage", f"this is no HTTP request: {msg}", do="see /openapi.json for what there is")
        body = encode({"error": said.to_dict()}).encode("ascii")
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode("ascii") + b"connection: close\r\n\r\n" + body)
        self.transport.close()


class PeerWebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSocket whose client is the peer's uid and pid."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self.client = _peer(transport)
