"""What the tests of the API share: a real controller on a real socket and ledger, a client, and a scripted agent."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed

from tenure.controller.app import Timing, serve
from tenure.controller.service import Controller
from tenure.domain import commands as cmd
from tenure.domain.device import CLEAR, Condition
from tenure.domain.instructions import StartJob, StopJob
from tenure.ledger import Ledger
from tenure.paths import Layout, bind_unix
from tenure.wire import frames

QUICK = Timing(silent_s=0.6, closed_s=0.2, period_s=0.05)
EXITED = {"ending": "exited", "code": 0, "signal": None, "cause": "", "detail": "", "stats": {"cpu_s": 0.5}}
AT = 1_750_000_000.5


async def until(holds: Callable[[], Any], seconds: float = 10.0) -> None:
    """Returns once something holds; fails where it does not within the time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        await asyncio.sleep(0.005)


class World:
    """A controller that answers on a socket: its service, and a client of its HTTP side."""

    def __init__(self, service: Controller, client: httpx.AsyncClient) -> None:
        self.service = service
        self.http = client
        self.path = str(service.layout.ctl_sock)

    async def get(self, target: str, status: int = 200, **options: Any) -> Any:
        answer = await self.http.get(target, **options)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def post(self, target: str, body: Any, status: int = 200) -> Any:
        answer = await self.http.post(target, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def submit(self, **fields: Any) -> dict[str, Any]:
        body = {"argv": ["true"], **fields}
        job: dict[str, Any] = (await self.post("/v1/jobs", body, 201))["job"]
        return job

    async def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = await self.get(f"/v1/jobs/{name}")
        return found

    async def device(self, name: str = "h:gpu0") -> dict[str, Any]:
        found: dict[str, Any] = await self.get(f"/v1/devices/{name}")
        return found

    async def shows(self, device: str, state: str, seconds: float = 10.0) -> dict[str, Any]:
        """Waits until a device is shown in a state."""
        end = time.monotonic() + seconds
        while (found := await self.device(device))["state"] != state:
            assert time.monotonic() < end, f"{device} stayed {found['words']}"
            await asyncio.sleep(0.01)
        return found

    @asynccontextmanager
    async def lines(self, target: str, method: str = "GET", **options: Any) -> AsyncIterator[AsyncIterator[Any]]:
        """The JSON lines of a stream."""
        async with self.http.stream(method, target, timeout=None, **options) as answer:
            assert answer.status_code in (200, 201), await answer.aread()

            async def each() -> AsyncIterator[Any]:
                async for line in answer.aiter_lines():
                    yield json.loads(line)

            yield each()

    async def whole_stream(self, target: str, method: str = "GET", **options: Any) -> list[dict[str, Any]]:
        async with asyncio.timeout(60), self.lines(target, method, **options) as lines:
            return [line async for line in lines]


@asynccontextmanager
async def running(
    home: Path, timing: Timing = QUICK, mode: str = "serve", prepare: Callable[[Controller], object] | None = None
) -> AsyncIterator[World]:
    """A controller over this home, until the block ends. ``prepare`` may change it before it begins."""
    layout = Layout(home, "m")
    layout.create()
    service = Controller(layout, Ledger.open(layout.ledger_db), mode)
    if prepare is not None:
        prepare(service)
    listening = bind_unix(layout.ctl_sock)
    listening.listen(128)
    task = asyncio.create_task(serve(service, listening, embedded=False, timing=timing))
    transport = httpx.AsyncHTTPTransport(uds=str(layout.ctl_sock))
    client = httpx.AsyncClient(transport=transport, base_url="http://tenure", timeout=30)
    try:
        yield World(service, client)
    finally:
        await client.aclose()
        service.stop.set()
        await task


def output_of(lines: list[dict[str, Any]], stream: str = "both") -> bytes:
    """The bytes in a stream's lines, checked for gaps and repeats."""
    data, position = b"", None
    for line in lines:
        if line["type"] != "output":
            continue
        piece = base64.b64decode(line["data"])
        assert position is None or stream != "both" or line["offset"] == position, "a gap or a repeat"
        position = line["offset"] + len(piece)
        if stream in ("both", line["stream"]):
            data += piece
    return data


def offered(name: str = "h:gpu0", condition: Condition = CLEAR, **fields: Any) -> cmd.OfferedDevice:
    given = {"uuid": f"GPU-{name}", "kind": "nvidia", "simulated": False, "high_water": 0, **fields}
    return cmd.OfferedDevice(name=name, condition=condition, **given)


class Agent:
    """A scripted agent: says what it is told to say, and keeps what it hears."""

    def __init__(self, link: ClientConnection) -> None:
        self.link = link
        self.heard: list[dict[str, Any]] = []
        self.seq = 0
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for message in self.link:
                self.heard.append(json.loads(message))
        except ConnectionClosed:
            pass

    @property
    def closed(self) -> bool:
        return self._reader.done()

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [frame for frame in self.heard if frame["type"] == kind]

    async def hears(self, kind: str, count: int = 1, seconds: float = 10.0) -> dict[str, Any]:
        """The last of so many frames of a kind."""
        await until(lambda: len(self.told(kind)) >= count, seconds)
        return self.told(kind)[count - 1]

    async def start_of(self, job: str) -> StartJob:
        def found() -> list[StartJob]:
            told = [frames.read_instruction(frame) for frame in self.told("start")]
            return [start for start in told if isinstance(start, StartJob) and start.job == job]

        await until(found)
        return found()[-1]

    async def stop_of(self, job: str) -> StopJob:
        def found() -> list[StopJob]:
            told = [frames.read_instruction(frame) for frame in self.told("stop")]
            return [stop for stop in told if isinstance(stop, StopJob) and stop.job == job]

        await until(found)
        return found()[-1]

    async def report(self, kind: str, body: Mapping[str, Any], *, seq: int | None = None) -> int:
        if seq is None:
            self.seq = seq = self.seq + 1
        await self.link.send(frames.report(seq, kind, body))
        return seq

    async def acked(self, seq: int) -> None:
        await until(lambda: any(frame["seq"] == seq for frame in self.told("ack")))

    async def started(self, start: StartJob) -> None:
        body = {**attempt(start), "pid": 4711, "evidence": "cgroup2"}
        await self.acked(await self.report("started", body))

    async def ended(self, start: StartJob, output_bytes: int = 0, proved: bool = True, **outcome: Any) -> int:
        proofs = {grant.device: {"outcome": "clear"} for grant in start.grants} if proved else {}
        body = {**attempt(start), "outcome": {**EXITED, **outcome}, "output_bytes": output_bytes, "proofs": proofs}
        seq = await self.report("ended", body)
        await self.acked(seq)
        return seq

    async def output(self, start: StartJob, offset: int, data: bytes, stream: int = 1) -> None:
        chunk = frames.OutputChunk(start.job, start.attempt, offset, ((stream, len(data), AT + offset),), data)
        await self.link.send(chunk.to_bytes())

    async def output_acked(self, offset: int) -> None:
        await until(lambda: any(frame["offset"] == offset for frame in self.told("output_ack")))


def attempt(start: StartJob) -> dict[str, Any]:
    return {
        "job": start.job,
        "attempt": start.attempt,
        "tokens": {grant.device: grant.token for grant in start.grants},
    }


def registration(name: str = "a-h", *devices: cmd.OfferedDevice, **fields: Any) -> cmd.Register:
    given = {"host": "h", "boot_id": "b1", "namespace": "ns", "instance": "i1", "user": "forged", **fields}
    return cmd.Register(agent=name, devices=devices or (offered(),), **given)


@asynccontextmanager
async def connected(world: World, register: cmd.Register | None = None) -> AsyncIterator[Agent]:
    """An agent that has been welcomed, until the block ends; its link may end before."""
    async with dialled(world) as agent:
        await agent.link.send(frames.hello(register or registration()))
        await agent.hears("welcome")
        yield agent


@asynccontextmanager
async def dialled(world: World) -> AsyncIterator[Agent]:
    """A connection on which nothing was said yet."""
    async with unix_connect(
        world.path, "ws://localhost/v1/agent", compression=None, close_timeout=1, max_size=16 << 20, ping_interval=None
    ) as link:
        yield Agent(link)
