"""A child process that answers questions in JSON lines and can be abandoned at any instant.

Probes can hang inside the kernel, where no signal and no thread helps: only a process of its own can be left behind.
So whatever may block is asked of such a child, over a socket pair. A child that misses its deadline is sent SIGKILL
and never waited for: one in uninterruptible sleep dies when it can, and is reaped by a look in passing. Nothing here
blocks the event loop, and no thread is used (asyncio's own subprocess support starts a waiting thread per child on
Python 3.11, which such a child would hold for good).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

MAX_LINE = 16 << 20
PROGRESS_BYTES = 200


class ChildGone(Exception):
    """The child ended, or sent something that is not its protocol. The text says what, for a reading's detail."""


class Child:
    """One running child. ``ask`` writes a request; ``next_line`` reads one reply object before a deadline."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self._progress = _scratch_file()
        self._log = _scratch_file()
        try:
            self._process = subprocess.Popen(
                [*argv, str(self._progress), str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._log,
                env=dict(env),
                cwd="/",
                pass_fds=(self._progress,),
                start_new_session=True,  # Ctrl-C at a terminal is meant for its user's command, not for probes
            )
        except BaseException:
            ours.close()
            os.close(self._progress)
            os.close(self._log)
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self._buffer = bytearray()
        self._closed = False

    @property
    def pid(self) -> int:
        """The child's process id."""
        return int(self._process.pid)

    async def ask(self, request: Mapping[str, Any]) -> None:
        """Sends one request. Raises ChildGone where the child is not there any more."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, json.dumps(request).encode() + b"\n")
        except OSError as problem:
            raise ChildGone(f"{self._last_words()} ({problem.strerror})") from problem

    async def next_line(self, deadline: float) -> dict[str, Any]:
        """The next reply object. Raises TimeoutError at ``deadline`` (of the event loop's clock), or ChildGone."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(deadline):
            while (end := self._buffer.find(b"\n")) < 0:
                if len(self._buffer) > MAX_LINE:
                    raise ChildGone(f"sent over {MAX_LINE} bytes without an end of line")
                try:
                    chunk = await loop.sock_recv(self._socket, 1 << 16)
                except OSError as problem:
                    raise ChildGone(f"{self._last_words()} ({problem.strerror})") from problem
                if not chunk:
                    raise ChildGone(self._last_words())
                self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            reply = json.loads(line)
        except ValueError:
            raise ChildGone(f"sent a line that is not JSON: {line[:80]!r}") from None
        if not isinstance(reply, dict):
            raise ChildGone(f"sent a line that is not an object: {line[:80]!r}")
        return reply

    def progress(self) -> str:
        """What the child said it was about to do when it was last heard of; empty where it said nothing."""
        if self._closed:
            return ""
        return os.pread(self._progress, PROGRESS_BYTES, 0).split(b"\0")[0].decode(errors="replace")

    def abandon(self) -> None:
        """Sends SIGKILL and closes our ends, without waiting: the child may be where no signal reaches it."""
        if self._closed:
            return
        self._closed = True
        with suppress(ProcessLookupError, PermissionError):
            self._process.kill()
        self._socket.close()
        os.close(self._progress)
        os.close(self._log)

    def reaped(self) -> bool:
        """Whether the child is dead and its entry collected. Never waits."""
        return self._process.poll() is not None

    def _last_words(self) -> str:
        """How the child ended, as far as that is to be seen now, and the end of its stderr as evidence."""
        code = self._process.poll()
        how = "closed its end"
        if code is not None:
            how = f"was ended by signal {-code}" if code < 0 else f"exited {code}"
        where = self.progress()
        size = os.fstat(self._log).st_size
        tail = os.pread(self._log, 300, max(0, size - 300)).decode(errors="replace").strip().splitlines()
        return f"the probe's child {how}" + (f" in {where}" if where else "") + (f": {tail[-1]}" if tail else "")


def python_argv(script: str, *arguments: str) -> list[str]:
    """The command line of a child written in Python: isolated, and without the cost of ``site``."""
    return [sys.executable, "-I", "-S", script, *arguments]


def _scratch_file() -> int:
    """An unnamed file shared with a child: what it wrote there stays readable when it hangs. A write costs 1 us."""
    if hasattr(os, "memfd_create"):
        return int(os.memfd_create("tenure-probe"))
    fd, name = tempfile.mkstemp(prefix="tenure-probe")
    os.unlink(name)  # noqa: PTH108 - on a path that mkstemp just gave as text
    return fd
