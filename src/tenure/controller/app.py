"""Puts the controller together: routes, errors, loops, and the server on its local socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Coroutine
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tenure import __version__
from tenure.controller.loops.contact import watch_contact
from tenure.controller.loops.keeper import keep_agent, stop_agent
from tenure.controller.loops.timeouts import watch_timeouts
from tenure.controller.peer import PeerHttpProtocol, PeerWebSocketProtocol
from tenure.controller.routes import agent, devices, events, jobs, status
from tenure.controller.service import Controller
from tenure.errors import TenureError

log = structlog.get_logger("tenure.controller")


def build_app(service: Controller) -> FastAPI:
    """The application over one controller. Its OpenAPI page is at ``/openapi.json``, for people at ``/docs``."""
    app = FastAPI(title="Tenure", version=__version__, description="Leases shared GPUs and proves what each job did.")
    app.state.controller = service
    for part in (status, devices, jobs, events, agent):
        app.include_router(part.router)
    app.add_exception_handler(TenureError, _tenure_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _defect)
    return app


def _answer(error: TenureError, status: int | None = None) -> Response:
    body = json.dumps({"error": error.to_dict()})
    return Response(body, status_code=status or error.http_status, media_type="application/json")


async def _tenure_error(connection: Request | WebSocket, error: Exception) -> Any:
    assert isinstance(error, TenureError)
    if isinstance(connection, WebSocket):
        await connection.close(1008, error.code)
        return None
    return _answer(error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    message = str(first["msg"]).removeprefix("Value error, ")
    return _answer(TenureError("invalid_request", f"{where}: {message}" if where else message, facts={"field": where}))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = TenureError(
        "usage", f"{request.method} {request.url.path}: {error.detail}", do="see /docs for what there is"
    )
    return _answer(said, error.status_code)


async def _defect(request: Request, error: Exception) -> Response:
    log.error("defect", path=request.url.path, exc_info=error)
    said = TenureError("internal", f"a defect of the controller: {type(error).__name__}", do="see controller.log")
    return _answer(said)


async def serve(service: Controller, listening: socket.socket, *, embedded: bool) -> None:
    """Serves until told to stop, then stops the embedded agent and closes everything in order."""
    config = uvicorn.Config(
        build_app(service),
        http=PeerHttpProtocol,
        ws=PeerWebSocketProtocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        date_header=False,
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=3,
    )
    server = uvicorn.Server(config)
    await service.start()
    loops: list[Coroutine[Any, Any, None]] = [watch_contact(service), watch_timeouts(service)]
    if embedded:
        loops.append(keep_agent(service))
    tasks = [asyncio.create_task(_guarded(loop)) for loop in loops]
    tasks.append(asyncio.create_task(_stop_when_told(service, server, embedded)))
    try:
        await server.serve(sockets=[listening])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await service.close()


async def _guarded(loop: Coroutine[Any, Any, None]) -> None:
    """A loop that fails is a defect: it is logged whole, and the controller goes down rather than on without it."""
    try:
        await loop
    except asyncio.CancelledError:
        raise
    except BaseException:
        log.exception("loop_failed", loop=getattr(loop, "__qualname__", "loop"))
        raise SystemExit(70) from None


async def _stop_when_told(service: Controller, server: uvicorn.Server, embedded: bool) -> None:
    await service.stop.wait()
    if embedded:
        await stop_agent(service)
    service.feed.close()
    server.should_exit = True
