"""The one connection to the controller: hello, what is owed, output, heartbeats; and back again whenever it breaks.

The agent dials; the controller never does. On every new connection the whole outbox is sent again in order, and
output goes on from what was acknowledged: a broken connection loses nothing and repeats only what the other side can
tell from news. Reports are kept by the core; here only their numbers wait.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import random
import ssl
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from tenure.agent import reach as reaching
from tenure.agent.reach import Reach
from tenure.agent.shipper import Shipper
from tenure.agent.waiting import until_set
from tenure.domain.commands import Register
from tenure.errors import TenureError
from tenure.paths import connect_unix
from tenure.wire import frames

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

log = logging.getLogger("tenure.agent.connection")

PATH = "/v1/agent"
LONGEST_PAUSE_S = 5.0
#: Between two attempts where the controller answered that it will not have this agent.
REFUSED_PAUSE_S = 30.0
OUTPUT_POLL_S = 0.25
MAX_FRAME = 16 << 20
#: Nothing heard for this long (the controller answers pings even when it has nothing to say): the link is dead.
SILENCE_S = 20.0


class Owner(Protocol):
    """What the connection needs of the shell."""

    def register(self) -> Register:
        """Who this agent is and all it has, as of now."""

    def owed(self) -> list[str]:
        """The frames of everything to be told on a new connection, in order."""

    def report_frame(self, seq: int) -> str | None:
        """The frame of an owed report; None where it is no longer owed."""

    async def received(self, frame: dict[str, Any]) -> None:
        """A frame from the controller."""


class Connection:
    """Keeps a link to the controller. ``send_report`` and ``send_text`` never wait and never fail."""

    def __init__(self, reach: Reach, owner: Owner, shipper: Shipper, *, beat_s: float) -> None:
        self._reach = reach
        self._turn = 0
        self._owner = owner
        self._shipper = shipper
        self._beat_s = beat_s
        self._first: deque[str] = deque()
        self._reports: deque[int] = deque()
        self._texts: deque[str] = deque(maxlen=4096)
        self._wake = asyncio.Event()
        self._output = asyncio.Event()
        self._socket: ClientConnection | None = None
        self.ready = asyncio.Event()
        self.up = False
        self.down_since = time.monotonic()
        self.refusal = ""

    def send_report(self, seq: int) -> None:
        """Sends a report of the outbox on the link there is; without one it goes out after the next hello."""
        if self.up:
            self._reports.append(seq)
            self._wake.set()

    def send_text(self, frame: str) -> None:
        """Sends a frame that nothing is lost with: the next hello says the same and more."""
        if self.up:
            self._texts.append(frame)
            self._wake.set()

    def output_ready(self) -> None:
        """There may be more output to send."""
        self._output.set()

    def hang_up(self) -> None:
        """Ends the link, so that the next hello registers afresh."""
        if self._socket is not None:
            self._socket.transport.abort()

    async def run(self) -> None:
        """Connects, again and again, until cancelled."""
        await asyncio.to_thread(importlib.import_module, "websockets.asyncio.client")  # while the devices are found
        from websockets.exceptions import WebSocketException

        await self.ready.wait()
        pause = 0.05
        while True:
            began, longest = time.monotonic(), LONGEST_PAUSE_S
            try:
                await self._session()
            except (OSError, TimeoutError, EOFError, WebSocketException) as error:
                log.debug("link lost: %s", error)
                self._tell_unreachable(str(error) or type(error).__name__)
            except TenureError as error:
                # Said once and not every few seconds: what an operator has to do about it is still there tomorrow.
                log.log(
                    logging.DEBUG if str(error) == self.refusal else logging.ERROR,
                    "no link: %s; %s",
                    error.message,
                    error.do,
                )
                self.refusal = str(error)
                longest = REFUSED_PAUSE_S if error.code in ("authentication_refused", "not_permitted") else longest
            finally:
                self._down()
            self._turn += 1
            pause = 0.05 if time.monotonic() - began > 10.0 else min(pause * 2, longest)
            await asyncio.sleep(pause * (0.5 + random.random() / 2))

    def _tell_unreachable(self, why: str) -> None:
        """Says, once for each time that it is so, that a controller elsewhere is not there. At home others say it."""
        if not self._reach.local and not self.refusal:
            self.refusal = why
            where = ", ".join(self._reach.addresses)
            log.warning("the controller at %s is not reached (%s): dialling on; jobs and reports are kept", where, why)

    def _down(self) -> None:
        if self.up:
            self.down_since = time.monotonic()
        self.up, self._socket = False, None
        self._first.clear()
        self._reports.clear()
        self._texts.clear()

    async def _dial(self) -> ClientConnection:
        """A fresh link, on which nothing was said yet."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidStatus

        options: dict[str, Any] = {"compression": None, "max_size": MAX_FRAME, "proxy": None, "open_timeout": 10}
        options |= {"ping_interval": 10, "ping_timeout": SILENCE_S, "close_timeout": 1}
        address = ""
        if self._reach.path is not None:
            raw = connect_unix(self._reach.path, timeout=5.0)
            raw.setblocking(False)
            uri, options["sock"] = f"ws://localhost{PATH}", raw
        else:
            address = self._reach.addresses[self._turn % len(self._reach.addresses)]
            uri, options["ssl"] = f"wss://{address}{PATH}", self._reach.context()
        try:
            return await connect(uri, additional_headers=self._reach.headers(), **options)
        except ssl.SSLError as error:
            raise self._reach.refused(error, address) from error
        except InvalidStatus as error:
            raise reaching.said(bytes(error.response.body or b""), error.response.status_code) from error

    async def _session(self) -> None:
        async with await self._dial() as link:
            self._socket = link
            await link.send(frames.hello(self._owner.register()))
            async with asyncio.timeout(30):
                frame = frames.loads(await link.recv())
            if frame["type"] == "refused":
                raise TenureError.from_dict(frame.get("error") or {})
            if frame["type"] != "welcome":
                raise TenureError("invalid_request", f"the controller began with {frame['type']!r}, not welcome")
            frames.check_wire(frame.get("wire"))
            self.refusal = ""
            log.info("connected to the controller of %s", frame.get("controller", "?"))
            self._shipper.connected()
            self.up = True
            self._first.extend(self._owner.owed())
            self._wake.set()
            self._output.set()
            await self._owner.received(frame)
            await self._exchange(link)

    async def _exchange(self, link: ClientConnection) -> None:
        tasks = [
            asyncio.create_task(work)
            for work in (self._read(link), self._write(link), self._ship(link), self._beat(link))
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            if (error := task.exception()) is not None:
                raise error

    async def _read(self, link: ClientConnection) -> None:
        async for message in link:
            await self._owner.received(frames.loads(message))

    async def _write(self, link: ClientConnection) -> None:
        while True:
            while (frame := self._next()) is not None:
                await link.send(frame)
            self._wake.clear()
            if not (self._first or self._reports or self._texts):
                await self._wake.wait()

    def _next(self) -> str | None:
        """The next frame to send: what was owed at the hello, then reports, then what nothing is lost with."""
        if self._first:
            return self._first.popleft()
        while self._reports:
            frame = self._owner.report_frame(self._reports.popleft())
            if frame is not None:
                return frame
        return self._texts.popleft() if self._texts else None

    async def _ship(self, link: ClientConnection) -> None:
        async def send(data: bytes) -> None:
            await link.send(data)

        while True:
            self._output.clear()
            while await self._shipper.pump(send):
                pass
            await until_set(self._output, OUTPUT_POLL_S)  # the poll backs up a nudge that was lost

    async def _beat(self, link: ClientConnection) -> None:
        beat = frames.dumps({"type": "beat"})
        while True:
            await link.send(beat)
            await asyncio.sleep(self._beat_s)
