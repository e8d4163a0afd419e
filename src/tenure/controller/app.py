"""Puts the controller together: routes, errors, loops, and the server on its local socket."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
import threading
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.telemetry import TelemetryConfig
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from tenure import __version__
from tenure.controller.guard import Guard
from tenure.controller.logs import Log
from tenure.controller.loops.address import keep_address
from tenure.controller.loops.contact import watch_contact
from tenure.controller.loops.keeper import keep_agent, stop_agent
from tenure.controller.loops.retention import keep_retention
from tenure.controller.loops.timeouts import watch_timeouts
from tenure.controller.loops.tokens import watch_tokens
from tenure.controller.peer import PeerHttpProtocol, PeerWebSocketProtocol
from tenure.controller.replies import refusal
from tenure.controller.routes import agent, devices, events, jobs, leftovers, openapi, scratch, stages, status, tokens
from tenure.controller.service import Controller
from tenure.domain.contact import CLOSED_S, PERIOD_S, SILENT_S
from tenure.errors import TenureError

log = Log("tenure.controller")


_NO_TELEMETRY: TelemetryConfig = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the controller waits before it says that contact is lost, in seconds, and how often it looks."""

    silent_s: float = SILENT_S
    closed_s: float = CLOSED_S
    period_s: float = PERIOD_S


def build_app(service: Controller) -> FastAPI:
    """The routes over one controller, without the guard before them. The OpenAPI page is at ``/openapi.json``."""
    app = FastAPI(
        title="Tenure",
        version=__version__,
        description="Leases shared GPUs and proves what each job did.",
        openapi_url=None,  # the framework's own page would ask nobody who they are
        docs_url=None,
        redoc_url=None,
        # Off, whatever the environment says: what runs here is nobody's to export.
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    app.state.controller = service
    for part in (status, devices, leftovers, jobs, stages, scratch, events, agent, tokens, openapi):
        # Taken in as they are: a router that is included is matched one level further down at every request.
        app.router.routes.extend(part.router.routes)
    app.add_exception_handler(TenureError, _tenure_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _defect)
    return app


async def _tenure_error(connection: Request | WebSocket, error: Exception) -> Any:
    assert isinstance(error, TenureError)
    if isinstance(connection, WebSocket):
        await connection.close(1008, error.code)
        return None
    return refusal(error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path", "header"))
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        message, where = f"the body is no JSON: {reason} at byte {where}", ""
    elif first["type"] == "extra_forbidden":
        message = "there is no such field"
    elif not where:
        message = f"{message} (as application/json)"
    said = f"{where}: {message}" if where else message
    return refusal(TenureError("invalid_request", said, do="see /openapi.json for the fields", facts={"field": where}))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = f"{request.method} {request.url.path}: {error.detail}"
    facts = {"method": request.method, "path": request.url.path}
    headers = dict(error.headers or {})
    return refusal(
        TenureError("usage", said, do="see /openapi.json for what there is", facts=facts), error.status_code, headers
    )


async def _defect(request: Request, error: Exception) -> Response:
    # The server logs the traceback; this line says which request it was.
    log.error("defect", method=request.method, path=request.url.path, kind=type(error).__name__)
    kind = type(error).__name__
    return refusal(TenureError("internal", f"a defect of the controller: {kind}", do="see controller.log"))


class Server(uvicorn.Server):
    """The server, told to end by ``leave`` alone.

    Its own signal handling would end the process before anything is put away, and its own waiting wakes ten times a
    second to see whether it may go.
    """

    def __init__(self, config: uvicorn.Config, secured: Sequence[tuple[socket.socket, ssl.SSLContext]] = ()) -> None:
        super().__init__(config)
        self._leaving = asyncio.Event()
        self._secured = secured

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        for listening, tls in self._secured:
            await self.listen_too(listening, tls)
        await self._leaving.wait()

    async def listen_too(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serves on one more socket, which is closed with the others."""
        before = self.servers
        self.config.ssl = tls
        try:
            await self.startup(sockets=[listening])  # makes the list of servers anew
        finally:
            self.config.ssl = None
        self.servers += before

    def leave(self) -> None:
        """Lets ``serve`` return once every connection has had its answer."""
        self.should_exit = True
        self._leaving.set()


def server_for(app: ASGIApp, secured: Sequence[tuple[socket.socket, ssl.SSLContext]] = ()) -> Server:
    """A server of HTTP and WebSocket over the local socket, whose connections carry the kernel's word on the peer, and
    over TLS on the sockets that come with a certificate."""
    config = uvicorn.Config(
        app,
        http=PeerHttpProtocol,
        ws=PeerWebSocketProtocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,  # a header may never say who the peer is, whatever FORWARDED_ALLOW_IPS says
        server_header=False,
        date_header=False,
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=3,
    )
    return Server(config, secured)


async def serve(service: Controller, listening: socket.socket, *, embedded: bool, timing: Timing | None = None) -> None:
    """Serves until told to stop (``service.stop``, SIGTERM or SIGINT: jobs stay), then closes everything in order.

    Raises what the controller could not go on without.
    """
    timing = timing or Timing()
    with _signals(service):
        try:
            await service.start()
            served = service.served
            secured = [(each, served.certificate.context) for each in served.sockets] if served is not None else []
            guard = Guard(build_app(service), tokens=service.tokens, names=service.names)
            server = server_for(guard, secured)
            loops: list[Coroutine[Any, Any, None]] = [
                watch_contact(service, timing.silent_s, timing.closed_s, timing.period_s),
                watch_timeouts(service),
                watch_tokens(service),
                keep_address(service, server.listen_too),
                keep_retention(service),
                _stop_when_told(service, server, embedded),
            ]
            if embedded:
                loops.append(keep_agent(service))
            tasks = [asyncio.create_task(_guarded(service, loop)) for loop in loops]
            try:
                await server.serve(sockets=[listening])
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            listening.close()
            await service.close()
    if service.fatal is not None:
        raise service.fatal


@contextlib.contextmanager
def _signals(service: Controller) -> Iterator[None]:
    """SIGTERM and SIGINT mean what ``rc down --leave`` means. Only a process's main thread may ask for them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _guarded(service: Controller, loop: Coroutine[Any, Any, None]) -> None:
    """A loop that fails is a defect: it is logged whole, and the controller goes down rather than on without it."""
    name = getattr(loop, "__qualname__", "loop")
    try:
        await loop
    except Exception as error:
        log.error("loop_failed", error=error, loop=name)
        service.fail(TenureError("internal", f"the loop {name} failed: {error!r}", do="see controller.log"))


async def _stop_when_told(service: Controller, server: Server, embedded: bool) -> None:
    await service.stop.wait()
    # After a failure the agent stays: it keeps its jobs, and starts a controller again where one is owed something.
    if embedded and service.fatal is None:
        await stop_agent(service)
    service.feed.close()
    server.leave()
