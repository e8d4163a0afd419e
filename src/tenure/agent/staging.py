"""Gets a job's staged tree into its scratch: fetched from the controller, unpacked, and held against its hash.

The tree is unpacked as it arrives, into a folder that only gets its name once everything in it was read back from the
disk and is what was packed. So whatever ends this midway, the next agent begins again with nothing half done, and a
file system that drops an exec bit or a link is found out here, not by the job.

Time is bounded by stalls, never in all: a large tree over a slow line is no error. While the controller is away nobody
is to blame, and the tree waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING

from tenure.agent import records as r
from tenure.agent import scratch, trees
from tenure.agent.reach import Reach
from tenure.domain.job import Ending, Outcome
from tenure.domain.stage import TREE
from tenure.domain.tree import TreeError, read_tree, shown
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.agent.shell import Shell

log = logging.getLogger("tenure.agent.staging")

#: Seconds without a byte, while the controller is there, after which a tree is given up.
STALL_S = 60.0
_AGAIN_S = 0.5
#: Connections that may break under way, one after the other, before a tree is given up.
_TRIES = 50
#: Seconds that one connection may be quiet.
_QUIET_S = 20.0
_PARTIAL = ".tree.partial"


class Cancelled(Exception):
    """The attempt is to end: nothing more is fetched or unpacked."""


class Unanswered(Exception):
    """The connection broke or went quiet before all was here; it may be tried again."""


class Refused(Exception):
    """The controller has no such tree, in its own words."""


async def stage(shell: Shell, attempt: r.Attempt, folder: Path) -> Outcome | None:
    """Makes the staged tree; an outcome where that failed. ``None`` too where the attempt is to end: its end is told
    by whoever began this."""
    assert attempt.spec is not None
    job = Staging(shell.reach, str(attempt.spec.stage["hash"]), scratch.place_of(folder))
    work = asyncio.create_task(_work(shell, attempt, job))
    try:
        while not work.done():
            await asyncio.wait([work], timeout=0.1)
            now = shell.state.attempts.get(attempt.key)
            if now is None or now.stop is not None:
                job.cancel()
    finally:
        job.cancel()  # also where this agent ends: what is half done, the next one does afresh
    return work.result()


async def _work(shell: Shell, attempt: r.Attempt, job: Staging) -> Outcome | None:
    assert attempt.spec is not None
    umask = 0o077 if attempt.spec.umask is None else attempt.spec.umask
    heard = time.monotonic()
    for _ in range(_TRIES):
        while not shell.connection.up and not job.cancelled:
            heard = time.monotonic()
            await asyncio.sleep(0.1)
        try:
            await asyncio.to_thread(job.run, umask)
            return None
        except Cancelled:
            return None
        except Unanswered as error:
            heard = max(heard, job.moved_at)
            if shell.connection.up and time.monotonic() - heard > STALL_S:
                return _failed(f"no byte of it came for {STALL_S:g} s: {error}")
            log.info("staging %s#%d begins again: %s", *attempt.key, error)
            await asyncio.sleep(_AGAIN_S)
        except (Refused, TreeError) as error:
            return _failed(str(error))
        except OSError as error:
            return _failed(await asyncio.to_thread(_in_words, error, job.place))
    return _failed(f"the connection to the controller broke {_TRIES} times before all of it was here")


def _failed(why: str) -> Outcome:
    return Outcome(Ending.STAGE_FAILED, detail=why)


def _in_words(error: OSError, place: Path) -> str:
    name = shown(os.fsencode(error.filename)) if error.filename else "a file"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {place} is full at {name}"
    lacking = ""
    if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES):
        from tenure.mounts import lacks

        try:
            lacking = "; ".join(lacks(place))
        except OSError:
            lacking = ""
    said = f"{name} could not be made in {place}: {error.strerror}"
    return f"{said}; its file system {lacking}" if lacking else said


class Staging:
    """One tree for one attempt. ``run`` blocks, for a thread; ``moved_at`` is when bytes last came (monotonic)."""

    def __init__(self, reach: Reach, tree: str, place: Path) -> None:
        self._reach = reach
        self._tree = tree
        self.place = place
        self.moved_at = 0.0
        self._cancelled = threading.Event()
        self._socket: socket.socket | None = None

    @property
    def cancelled(self) -> bool:
        """Whether it is to end."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Ends ``run`` soon, also where it waits for bytes. From any thread, again and again."""
        self._cancelled.set()
        waiting = self._socket
        if waiting is not None:
            with contextlib.suppress(OSError):  # closed by now
                waiting.shutdown(socket.SHUT_RDWR)

    def run(self, umask: int) -> None:
        """Fetches, unpacks, checks and names the tree. Where it is there already, nothing is done.

        Raises ``Cancelled``, ``Unanswered``, ``Refused``, ``TreeError``, and ``OSError`` naming the entry.
        """
        target, partial = self.place / TREE, self.place / _PARTIAL
        if target.is_dir() and not target.is_symlink():
            return
        scratch.remove(partial)
        partial.mkdir(mode=0o700)
        done = False
        try:
            root = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                self._unpack(root, umask)
                os.fchmod(root, 0o777 & ~umask | 0o700)
            finally:
                os.close(root)
            partial.rename(target)
            done = True
        finally:
            if not done:
                scratch.remove(partial)

    def _unpack(self, root: int, umask: int) -> None:
        unpacker = trees.Unpacker(root, umask)
        try:
            found = self._fetch(lambda read: read_tree(read, unpacker))
        finally:
            unpacker.close()
        if found != self._tree:
            raise TreeError(f"the tree that came has the hash {found}, not {self._tree}")
        self._check()
        there = trees.pack(root, trees.every_name(root), progress=lambda _: self._check())
        if there.hash != self._tree:
            wrong = trees.difference(unpacker.values, there)
            name, how = wrong if wrong is not None else (b"", "differs after unpacking")
            raise TreeError(f"{shown(name)} {how}{self._lacking()}", name)

    def _lacking(self) -> str:
        from tenure.mounts import lacks

        found = lacks(self.place)
        return f"; the file system of {self.place} {' and '.join(found)}" if found else ""

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled

    def _fetch(self, use: Callable[[Callable[[int], bytes]], str]) -> str:
        """Asks the controller for the tree and hands ``use`` a function that reads it."""
        self._check()
        link = HTTPConnection(self._reach.authority)
        try:
            try:
                link.sock = self._socket = self._reach.dial(_QUIET_S)
                link.request("GET", f"/v1/stages/{self._tree}/stream", headers=self._reach.headers())
                answer = link.getresponse()
                said = b"" if answer.status == 200 else answer.read(4000)
            except (OSError, HTTPException) as error:
                self._check()
                raise Unanswered(f"the controller could not be asked for it: {error!r}") from error
            except TenureError as error:
                self._check()
                raise (Unanswered if error.code == "controller_unreachable" else Refused)(error.message) from error
            if answer.status != 200:
                raise Refused(_message(answer.status, said))
            return use(self._reader(answer))
        finally:
            self._socket = None
            link.close()

    def _reader(self, answer: HTTPResponse) -> Callable[[int], bytes]:
        """Reads through a buffer, so that small entries cost no call each."""
        held = bytearray()

        def read(size: int) -> bytes:
            if not held:
                self._check()
                try:
                    piece = answer.read1(256 << 10)
                except (OSError, HTTPException) as error:
                    self._check()
                    raise Unanswered(f"the connection broke: {error!r}") from error
                if not piece and answer.length:  # a body of known length that stopped before its end
                    self._check()
                    raise Unanswered("the stream stopped before its end")
                self.moved_at = time.monotonic()
                held.extend(piece)
            taken = bytes(held[:size])
            del held[:size]
            return taken

        return read


def _message(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the controller answered {status} and gave no reason"
