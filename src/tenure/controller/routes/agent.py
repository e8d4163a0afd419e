"""The agents' side of the API: one WebSocket each, dialled by the agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Response, WebSocket, WebSocketDisconnect

from tenure.controller import binding
from tenure.controller.auth import AgentCaller, Principal
from tenure.controller.links import Link
from tenure.controller.logs import Log
from tenure.controller.replies import reply
from tenure.controller.routes import Service
from tenure.controller.service import Controller
from tenure.domain import commands as cmd
from tenure.domain.instructions import floors, on_register
from tenure.errors import TenureError
from tenure.wire import frames

router = APIRouter(tags=["agents"])
log = Log("tenure.controller.agent")

HELLO_S = 10.0
#: How long what is queued for an agent may take to be sent once its link is given up.
LAST_S = 1.0
#: Reports of one agent that may be under decision at once; past it the connection is read no further.
MAX_PENDING = 512
#: Attempts whose owner a link remembers; asked for anew past it.
MAX_REMEMBERED = 4096


@router.get("/v1/agent")
async def who(caller: AgentCaller, service: Service) -> Response:
    """Whom the caller's token is for. An agent asks before it keeps a token; it changes nothing."""
    served = service.served
    body = {"controller": served.id if served else "", "user": service.user, "host": caller.host, "token": caller.token}
    return reply({**body, "version": service.version, "wire": frames.WIRE})


@router.websocket("/v1/agent")
async def agent(socket: WebSocket, caller: AgentCaller, service: Service) -> None:
    """Takes in an agent: who it is, then its reports and output; sends it instructions and acknowledgements.

    Whatever goes wrong on a link, with what comes on it or with its decision, ends that link and nothing else: the
    agent dials again and is owed nothing, because what was not acknowledged it still has.
    """
    await socket.accept()
    link: Link | None = None
    code, why = 1000, ""
    try:
        link = await _welcome(socket, caller, service)
        await _until_first_ends(_send(socket, link), _receive(socket, link, service), link.ended.wait())
        if link.refusal is not None:
            raise link.refusal
    except TenureError as error:
        log.warning("agent_refused", agent=link.agent if link else None, pid=caller.pid, **error.to_dict())
        code, why = 1008, error.code
        with suppress(WebSocketDisconnect, RuntimeError):  # it may be gone, and then wants no answer
            async with asyncio.timeout(LAST_S):
                await socket.send_text(frames.dumps({"type": "refused", "error": error.to_dict()}))
    except (TimeoutError, WebSocketDisconnect):
        pass
    except Exception as error:
        log.error("link_failed", error=error, agent=link.agent if link else None)
        code, why = 1011, "internal"
    finally:
        if link is not None:
            service.links.remove(link)
            await _send_last(socket, link)
        with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            async with asyncio.timeout(LAST_S):
                await socket.close(code, why)


async def _welcome(socket: WebSocket, caller: Principal, service: Controller) -> Link:
    async with asyncio.timeout(HELLO_S):
        frame = _frame(await socket.receive())
    if frame["type"] != "hello":
        raise TenureError("invalid_request", f"an agent says hello first, not {frame['type'][:40]!r}")
    wire = frames.check_wire(frame.get("wire"))
    body = frame.get("register")
    register = frames.read(cmd.Register, {**body, "user": caller.name} if isinstance(body, dict) else body)
    register = binding.as_spoken(register, int(frame["wire"]))
    binding.check(service.state, caller, register)
    if caller.token:
        await asyncio.to_thread(service.tokens.bind, caller.token, register.agent)
        binding.require(service.tokens, caller.token, time.time())
    link = Link(register.agent, caller.pid, wire=int(frame["wire"]), token=caller.token)
    # Before the registration is decided: so silence of an earlier connection can only be declared ahead of it.
    service.links.add(link)
    try:
        await service.execute(register)
        await service.writer.settled()
    except BaseException:
        service.links.remove(link)
        raise
    link.heard_at = time.monotonic()
    # Whether its record outlives a reboot is not known of every host; where it is not, it may have forgotten.
    forgetful = register.facts.get("state_survives_reboot") is not True
    state, name, known = service.state, register.agent, register.known
    link.send(frames.welcome(wire, service.user, floors(state, name, known, forgetful=forgetful)))
    link.welcomed = True
    for told in on_register(state, name, known, forgetful=forgetful):
        link.tell(told)
    return link


async def _until_first_ends(*works: Coroutine[Any, Any, Any]) -> None:
    """Runs all of them until one ends, then cancels the others; raises what that one raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _send(socket: WebSocket, link: Link) -> None:
    while True:
        await socket.send_text(await link.waiting.get())


async def _send_last(socket: WebSocket, link: Link) -> None:
    with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
        async with asyncio.timeout(LAST_S):
            while not link.waiting.empty():
                await socket.send_text(link.waiting.get_nowait())


def _frame(message: Any) -> dict[str, Any]:
    """The text frame in a message of the server; raises ``WebSocketDisconnect`` where it says that the peer left."""
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    text = message.get("text")
    if text is None:
        raise TenureError("invalid_request", "an agent's first frame is text")
    return frames.loads(text)


async def _receive(socket: WebSocket, link: Link, service: Controller) -> None:
    room = asyncio.Semaphore(MAX_PENDING)
    pending: set[asyncio.Task[None]] = set()
    while True:
        message = await socket.receive()
        if link.closed:
            return
        link.heard_at = time.monotonic()
        data = message.get("bytes")
        if data is not None:
            _take_output(service, link, data)
            continue
        frame = _frame(message)
        if frame["type"] == "report":
            await room.acquire()
            # Tasks start in the order they are made and queue their command before they first wait: order is kept.
            task = asyncio.create_task(_report(service, link, frame, room.release))
            pending.add(task)
            task.add_done_callback(pending.discard)
        elif frame["type"] == "left":
            service.left.take(link.agent, frame.get("body"))
        elif frame["type"] == "answer":
            link.answered(frame.get("id"), frame.get("body"))
        elif frame["type"] != "beat":
            log.warning("unknown_frame", agent=link.agent, type=frame["type"][:40])


async def _report(service: Controller, link: Link, frame: dict[str, Any], done: Callable[[], None]) -> None:
    """Decides one report; acknowledges it after the commit, also where it was out of date (the answer is final).

    One that could not be committed ends the link, so that none after it is acknowledged: the agent sends all of them
    again, in order, when it is back.
    """
    seq = frame.get("seq")
    kind = str(frame.get("kind"))[:40]
    try:
        if isinstance(seq, bool) or not isinstance(seq, int):
            raise TenureError("invalid_request", "a report's seq is a whole number")
        if kind not in frames.REPORTS and link.wire > frames.WIRE:
            log.warning("report_of_a_newer_version", agent=link.agent, kind=kind)
        else:
            outcomes = await service.execute(frames.read_report(frame, link.agent))
            if outcomes.ignored:
                log.info("report_ignored", agent=link.agent, kind=kind, why=outcomes.ignored)
        if seq:
            link.send(frames.dumps({"type": "ack", "seq": seq}))
    except TenureError as error:
        log.error("report_failed", agent=link.agent, kind=kind, seq=seq, **error.to_dict())
        link.close()
    except Exception as error:
        log.error("report_failed", error=error, agent=link.agent, kind=kind, seq=seq)
        link.close()
    finally:
        done()


def _take_output(service: Controller, link: Link, data: bytes) -> None:
    chunk = frames.OutputChunk.from_bytes(data)
    job, attempt = chunk.job, chunk.attempt
    if not _is_its_own(service, link, (job, attempt)):
        return

    def acknowledge(offset: int) -> None:  # is kept, so it must not keep the chunk
        body = {"type": "output_ack", "job": job, "attempt": attempt, "offset": offset}
        link.send(frames.dumps(body))

    try:
        service.outputs.take(chunk, acknowledge)
    except ValueError as error:
        raise TenureError("invalid_request", f"output of something that is no job: {error}") from error


def _is_its_own(service: Controller, link: Link, key: tuple[str, int]) -> bool:
    """Whether an attempt is not known to be another agent's. One that this ledger knows nothing of is kept too: it may
    be a copy that is older than the attempt, and bytes that were written once are not given up for that."""
    known = link.outputs.get(key)
    if known is None:
        if len(link.outputs) >= MAX_REMEMBERED:
            link.outputs.clear()
        leases = service.state.live_leases(*key) or service.ledger.leases_of(*key)
        known = link.outputs[key] = not leases or any(lease.agent == link.agent for lease in leases)
        if not known:
            log.warning("output_of_another_agent", agent=link.agent, job=key[0], attempt=key[1])
    return known
