"""The agents' side of the API: one WebSocket each, dialled by the agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import structlog
from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from tenure.controller.auth import Caller, Principal
from tenure.controller.links import Link
from tenure.controller.routes import Service
from tenure.controller.service import Controller
from tenure.domain import commands as cmd
from tenure.domain.instructions import on_register
from tenure.errors import TenureError
from tenure.wire import frames

router = APIRouter(tags=["agents"])
log = structlog.get_logger("tenure.controller.agent")

HELLO_S = 10.0
#: Reports of one agent that may be under decision at once; past it the connection is read no further.
MAX_PENDING = 512


@router.websocket("/v1/agent")
async def agent(socket: WebSocket, caller: Caller, service: Service) -> None:
    """Takes in an agent: who it is, then its reports and output; sends it instructions and acknowledgements."""
    await socket.accept()
    try:
        link = await _welcome(socket, caller, service)
    except TenureError as error:
        await socket.send_text(frames.dumps({"type": "refused", "error": error.to_dict()}))
        await socket.close(1008, error.code)
        return
    except (TimeoutError, WebSocketDisconnect):
        return
    sender = asyncio.create_task(_send(socket, link))
    try:
        await _receive(socket, link, service)
    except WebSocketDisconnect:
        pass
    finally:
        service.links.remove(link)
        await asyncio.wait([sender], timeout=2.0)
        sender.cancel()


async def _welcome(socket: WebSocket, caller: Principal, service: Controller) -> Link:
    async with asyncio.timeout(HELLO_S):
        frame = frames.loads(await socket.receive_text())
    if frame["type"] != "hello":
        raise TenureError("invalid_request", f"an agent says hello first, not {frame['type']!r}")
    wire = frames.check_wire(frame.get("wire"))
    body = frame.get("register")
    register = frames.read(cmd.Register, {**body, "user": caller.name} if isinstance(body, dict) else body)
    await service.execute(register)
    link = Link(register.agent, caller.pid)
    link.send(frames.dumps({"type": "welcome", "wire": wire, "controller": service.user}))
    service.links.add(link)
    await service.writer.settled()
    for told in on_register(service.state, register.agent, register.known):
        link.send(frames.instruction(told))
    return link


async def _send(socket: WebSocket, link: Link) -> None:
    while not link.closed or not link.waiting.empty():
        frame = await link.waiting.get()
        if frame is None:
            break
        await socket.send_text(frame)
    await socket.close()


async def _receive(socket: WebSocket, link: Link, service: Controller) -> None:
    room = asyncio.Semaphore(MAX_PENDING)
    pending: set[asyncio.Task[None]] = set()
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        link.heard_at = time.monotonic()
        data = message.get("bytes")
        if data is not None:
            _take_output(service, link, data)
            continue
        frame = frames.loads(message.get("text") or "")
        if frame["type"] == "report":
            await room.acquire()
            # Tasks start in the order they are made and queue their command before they first wait: order is kept.
            task = asyncio.create_task(_report(service, link, frame, room.release))
            pending.add(task)
            task.add_done_callback(pending.discard)
        elif frame["type"] != "beat":
            log.warning("unknown_frame", agent=link.agent, type=frame["type"])


async def _report(service: Controller, link: Link, frame: dict[str, Any], done: Callable[[], None]) -> None:
    """Decides one report; acknowledges it after the commit, also where it was out of date (the answer is final)."""
    seq = frame.get("seq")
    try:
        command = frames.read_report(frame, link.agent)
        outcomes = await service.execute(command)
        if outcomes.ignored:
            log.info("report_ignored", agent=link.agent, kind=frame.get("kind"), why=outcomes.ignored)
        if seq:
            link.send(frames.dumps({"type": "ack", "seq": seq}))
    except TenureError as error:
        # Not acknowledged: the agent keeps it and sends it again when it reconnects.
        log.error("report_failed", agent=link.agent, kind=frame.get("kind"), **error.to_dict())
        if error.code == "invalid_request":
            link.close()
    finally:
        done()


def _take_output(service: Controller, link: Link, data: bytes) -> None:
    chunk = frames.OutputChunk.from_bytes(data)

    def acknowledge(offset: int) -> None:
        body = {"type": "output_ack", "job": chunk.job, "attempt": chunk.attempt, "offset": offset}
        link.send(frames.dumps(body))

    try:
        service.outputs.take(chunk, acknowledge)
    except TenureError as error:
        log.error("output_not_stored", agent=link.agent, **error.to_dict())
