"""A controller that other hosts reach, in the test's process: TLS on a free port of the loopback; and its callers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.contract.controller_world import Agent, World, registration, running
from websockets.asyncio.client import connect

from tenure.agent.reach import Reach
from tenure.controller import certificate, listening
from tenure.controller.app import Timing
from tenure.controller.service import Controller
from tenure.domain import commands as cmd
from tenure.wire import frames

PATIENT = Timing(silent_s=30.0, closed_s=0.3, period_s=0.05)


class ServedWorld(World):
    """``address`` is where it listens; ``token`` makes one over the API and gives how an agent reaches it."""

    address = ""

    async def token(self, host: str = "far", **body: Any) -> Reach:
        made = await self.post("/v1/tokens", {"host": host, **body}, 201)
        return reach_of(made["file"])


def reach_of(file: Mapping[str, Any]) -> Reach:
    where = file["controller"]
    return Reach(
        addresses=tuple(where["addresses"]),
        pin=where["pin"],
        ca=where["ca"],
        token=file["token"],
        secret=file["secret"],
        host=file["host"],
        controller=where["id"],
    )


def serve_too(service: Controller, folder: Path) -> None:
    """Lets a controller that is about to start listen on a free port of the loopback."""
    bound = listening.bind("127.0.0.1:0")
    at = (listening.shown(bound),)
    shown = certificate.load(folder / "own.pem", cert=None, key=None, ca=None, names=["127.0.0.1"])
    service.tokens.load()
    service.served = listening.Served("c1", at, at, shown, (bound,))


@asynccontextmanager
async def served(home: Path, timing: Timing = PATIENT) -> AsyncIterator[ServedWorld]:
    """A controller over this home on its socket and on TLS, until the block ends."""
    async with running(home, timing, prepare=lambda service: serve_too(service, home)) as plain:
        world = ServedWorld(plain.service, plain.http)
        assert plain.service.served is not None
        [world.address] = plain.service.served.at
        yield world


@asynccontextmanager
async def far_link(reach: Reach, path: str = "/v1/agent", **headers: str) -> AsyncIterator[Agent]:
    """A WebSocket from elsewhere, on which nothing was said yet."""
    options: dict[str, Any] = {"compression": None, "proxy": None, "close_timeout": 1, "ping_interval": None}
    uri = f"wss://{reach.addresses[0]}{path}"
    async with connect(uri, ssl=reach.context(), additional_headers={**reach.headers(), **headers}, **options) as link:
        yield Agent(link)


@asynccontextmanager
async def far_agent(reach: Reach, register: cmd.Register | None = None) -> AsyncIterator[Agent]:
    """An agent from elsewhere that was welcomed."""
    async with far_link(reach) as agent:
        await agent.link.send(frames.hello(register or far_registration()))
        await agent.hears("welcome")
        yield agent


def far_registration(name: str = "a-far", host: str = "far", **fields: Any) -> cmd.Register:
    from tests.contract.controller_world import offered

    return registration(name, offered(f"{host}:gpu0"), **{"host": host, **fields})


async def refusal_of(reach: Reach, register: cmd.Register) -> Mapping[str, Any]:
    """What an agent is told that says this of itself; fails where it is welcomed."""
    async with far_link(reach) as agent:
        await agent.link.send(frames.hello(register))
        error: Mapping[str, Any] = (await agent.hears("refused"))["error"]
        assert not agent.told("welcome")
        return error


async def over_tls(address: str, sent: bytes, *, wait_s: float = 10.0) -> bytes:
    """All that is answered to some bytes, until the other side closes."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        writer.write(sent)
        async with asyncio.timeout(wait_s):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
