"""The agent's end of the spawner: asks for supervisors, and replaces a spawner that died.

Asking twice is safe, because an attempt's folder is started at most once (supervisor.json is created exclusively).
So a request whose spawner died unanswered is sent again, to a new one. What cannot be settled within the time allowed
is raised as ``StartUnknown``: then ``adopt.examine`` tells what became of the folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tenure.errors import TenureError

PROGRAM = Path(__file__).with_name("supervisor.py")
_LATE_REPLY_S = 1.0  # supervisors forked by a spawner that died answer for themselves, over its socket


class StartRefused(TenureError):
    """Nothing was run and nothing will be from this request; no exit.json comes."""

    def __init__(self, folder: Path, why: str) -> None:
        super().__init__(
            "start_refused",
            f"The command of {folder} was not started: {why}.",
            do="See the cause named; a new attempt needs a new folder.",
            facts={"dir": str(folder), "why": why},
        )


class StartUnknown(TenureError):
    """Whether the command was started is not known; the folder tells (``adopt.examine``)."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        super().__init__(
            "timed_out",
            f"No answer about {folder} in {timeout_s:g} s; whether its command was started is not known.",
            do="Examine the folder: a supervisor.json there means that it was.",
            facts={"dir": str(folder), "timeout_s": timeout_s},
        )


class _SpawnerDied(Exception):
    """The request may or may not have been taken."""


@dataclass(frozen=True, slots=True)
class Started:
    """A supervisor: its pid, its start time (clock ticks since boot, field 22 of /proc/PID/stat), the command's pid."""

    pid: int
    start_ticks: int
    leader_pid: int | None


@dataclass(eq=False, slots=True)
class _Channel:
    """One spawner process and the socket to it."""

    sock: socket.socket
    process: subprocess.Popen[bytes]
    pidfd: int
    pending: dict[str, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    closed: bool = False


class Spawner:
    """Starts supervisors. Use within one event loop; ``close`` (or death) of the agent leaves them running."""

    def __init__(self, program: Path = PROGRAM, *, timeout_s: float = 10.0) -> None:
        self._program = program
        self._timeout_s = timeout_s
        self._channel: _Channel | None = None

    @property
    def pid(self) -> int | None:
        """The spawner process in use, if one was started."""
        return self._channel.process.pid if self._channel else None

    async def open(self) -> None:
        """Starts the spawner ahead of the first request, which then need not wait for Python to start."""
        if self._channel is None:
            self._channel = self._launch()

    async def start(self, attempt_dir: Path, claim_fds: Sequence[int] = ()) -> Started:
        """Starts the command described by ``attempt_dir/spec.json`` under a supervisor of its own.

        The supervisor keeps copies of ``claim_fds`` until exit.json is durable. A command that cannot be executed is
        not an error here: it has an exit.json of kind ``spawn_failed``. Raises StartRefused, StartUnknown.
        """
        key = str(attempt_dir)
        request = json.dumps({"dir": key}).encode()
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        resent = False
        while True:
            await self.open()
            channel = self._channel
            assert channel is not None
            if key in channel.pending:
                raise StartRefused(attempt_dir, "a request for this folder is under way")
            answered = asyncio.get_running_loop().create_future()
            channel.pending[key] = answered
            try:
                async with asyncio.timeout_at(deadline):
                    await self._send(channel, request, claim_fds)
                    answer = await answered
            except TimeoutError:
                raise StartUnknown(attempt_dir, self._timeout_s) from None
            except _SpawnerDied:
                resent = True
                continue
            finally:
                channel.pending.pop(key, None)
            if answer["ok"]:
                return Started(answer["pid"], answer["start_ticks"], answer["leader_pid"])
            if resent and str(answer["error"]).startswith("FileExistsError"):
                return _started_before(attempt_dir)
            raise StartRefused(attempt_dir, str(answer["error"]))

    async def close(self) -> None:
        """Ends the spawner (by the end of its socket) and waits for it, at most 5 s. Supervisors run on."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        self._drop(channel)
        try:
            await asyncio.to_thread(channel.process.wait, 5.0)
        except subprocess.TimeoutExpired:
            channel.process.kill()
            await asyncio.to_thread(channel.process.wait)
        finally:
            self._reap(channel)

    def _launch(self) -> _Channel:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.setblocking(False)
            try:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(self._program)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env={},  # nothing of the agent's, which a supervisor would show in /proc/PID/environ
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        channel = _Channel(ours, process, os.pidfd_open(process.pid))
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), self._receive, channel)
        loop.add_reader(channel.pidfd, self._ended, channel)
        return channel

    async def _send(self, channel: _Channel, request: bytes, fds: Sequence[int]) -> None:
        loop = asyncio.get_running_loop()
        while not channel.closed:
            try:
                socket.send_fds(channel.sock, [request], list(fds), socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                writable = loop.create_future()
                loop.add_writer(channel.sock.fileno(), settle, writable)
                try:
                    await writable
                finally:
                    loop.remove_writer(channel.sock.fileno())
            except ConnectionError:
                self._forget(channel)
                break
        raise _SpawnerDied

    def _receive(self, channel: _Channel) -> None:
        while not channel.closed:
            try:
                data = channel.sock.recv(65536)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self._forget(channel)
                return
            answer = json.loads(data)
            waiting = channel.pending.get(answer["dir"])
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    def _ended(self, channel: _Channel) -> None:
        """The spawner process is gone. Supervisors that it forked may still answer; a little later nobody will."""
        self._reap(channel)
        if self._channel is channel:
            self._channel = None
        asyncio.get_running_loop().call_later(_LATE_REPLY_S, self._forget, channel)

    def _forget(self, channel: _Channel) -> None:
        if self._channel is channel:
            self._channel = None
        self._drop(channel)
        for waiting in channel.pending.values():
            if not waiting.done():
                waiting.set_exception(_SpawnerDied())

    def _drop(self, channel: _Channel) -> None:
        if not channel.closed:
            channel.closed = True
            asyncio.get_running_loop().remove_reader(channel.sock.fileno())
            channel.sock.close()

    def _reap(self, channel: _Channel) -> None:
        channel.process.poll()
        if channel.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(channel.pidfd)
            os.close(channel.pidfd)
            channel.pidfd = -1


def settle(waiting: asyncio.Future[None]) -> None:
    """Wakes whoever awaits the future; harmless where it was woken or cancelled before."""
    if not waiting.done():
        waiting.set_result(None)


def _started_before(folder: Path) -> Started:
    """The supervisor that the lost request had started after all."""
    try:
        found = json.loads((folder / "supervisor.json").read_bytes())
        return Started(found["pid"], found["start_ticks"], found["leader_pid"])
    except (OSError, ValueError, KeyError) as e:
        raise StartRefused(folder, f"it was started before, but supervisor.json cannot be read ({e})") from e
