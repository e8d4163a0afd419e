"""What became of a supervisor: alive, ended with its record, or lost, and how far that is known.

A supervisor is identified by (boot id, PID namespace, pid, start ticks). A pid alone names nothing: numbers are reused.
So a handle holds a pidfd that was opened first and checked by start ticks afterwards, and signals through it alone; a
later process of the same number is never signalled.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tenure.agent.spawner import settle

Reason = Literal["never_started", "host_rebooted", "other_namespace", "gone", "unreadable"]
_HALF_WRITTEN_TRIES = 20  # times 5 ms: supervisor.json is created and then written, within microseconds


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a supervisor is. ``leader_pid`` is None where it died, or was looked at, before the command was forked;
    ``mark`` is the limit by which all that came of it are known, None where none could be left."""

    boot_id: str
    pidns: int
    pid: int
    start_ticks: int
    leader_pid: int | None = None
    leader_start_ticks: int | None = None
    cgroup: str | None = None
    mark: int | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """From the content of supervisor.json. Raises KeyError, TypeError."""
        return cls(
            boot_id=str(record["boot_id"]),
            pidns=int(record["pidns"]),
            pid=int(record["pid"]),
            start_ticks=int(record["start_ticks"]),
            leader_pid=record.get("leader_pid"),
            leader_start_ticks=record.get("leader_start_ticks"),
            cgroup=record.get("cgroup"),
            mark=record.get("mark"),
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """exit.json is there: the tree is gone, and this is how it ended. ``identity`` says who its supervisor was, where
    its record can be read."""

    record: Mapping[str, Any]
    identity: Identity | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """No supervisor and no exit record.

    never_started    no supervisor had begun, and none can any more: the folder was sealed.
    host_rebooted    another boot id: every process of the attempt is gone.
    other_namespace  another PID namespace: from here nothing can be said about its processes.
    gone             the supervisor is gone; processes of the job may be left (see ``survivors``).
    unreadable       a file is damaged or cannot be read: nothing is known.
    """

    reason: Reason
    detail: str
    identity: Identity | None = None


class Handle:
    """A living supervisor, held by pidfd."""

    def __init__(self, folder: Path, pid: int, start_ticks: int, pidfd: int) -> None:
        self.folder = folder
        self.pid = pid
        self.start_ticks = start_ticks
        self._pidfd = pidfd

    @classmethod
    def open(cls, folder: Path, pid: int, start_ticks: int) -> Handle | None:
        """The process of that pid and start time; None where it is gone (a zombie is gone: it runs no code)."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        # The pidfd first, the start ticks second: had the number passed on in between, the ticks would differ.
        if start_ticks_of(pid) != start_ticks or _readable(pidfd):
            os.close(pidfd)
            return None
        return cls(folder, pid, start_ticks, pidfd)

    def stop(self) -> bool:
        """Asks for an orderly end: TERM to the tree, the grace, then KILL. False: the supervisor is gone."""
        return self._send(signal.SIGTERM)

    def kill(self) -> bool:
        """Asks for SIGKILL to the whole tree, now. False: the supervisor is gone."""
        return self._send(signal.SIGUSR1)

    @property
    def gone(self) -> bool:
        """Whether the supervisor has ended."""
        return _readable(self._pidfd)

    async def wait_gone(self) -> None:
        """Until the supervisor has ended. Then ``examine`` tells how. Cancellable; several may wait at once."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        fd = os.dup(self._pidfd)
        loop.add_reader(fd, settle, ended)
        try:
            await ended
        finally:
            loop.remove_reader(fd)
            os.close(fd)

    def close(self) -> None:
        """Lets go of the pidfd; the supervisor runs on."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _send(self, number: signal.Signals) -> bool:
        try:
            signal.pidfd_send_signal(self._pidfd, number)
            # A supervisor that was stopped (its job runs as the same user, and may have done it) would not hear the one
            # without the other, and the job would outlive its cancellation.
            signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)
        except ProcessLookupError:
            return False
        return not self.gone


@dataclass(frozen=True, slots=True)
class Alive:
    """The supervisor lives. The handle is the caller's to close."""

    handle: Handle
    identity: Identity


def examine(folder: Path) -> Alive | Ended | Lost:
    """What became of the attempt in this folder.

    Where no supervisor has begun, the folder is sealed (supervisor.json is created exclusively, as a supervisor would)
    before ``never_started`` is answered, so that a request still under way cannot start the command afterwards.
    """
    ended = _ended(folder)
    if ended is not None:
        return ended
    record = _record(folder)
    if isinstance(record, Lost):
        return record
    if record.get("sealed"):
        return Lost("never_started", "no supervisor had begun when the folder was sealed")
    try:
        identity = Identity.of(record)
    except (KeyError, TypeError, ValueError) as e:
        return Lost("unreadable", f"{folder / 'supervisor.json'}: {e!r}")
    boot, pidns = here()
    if identity.boot_id != boot:
        return Lost("host_rebooted", f"boot id was {identity.boot_id}, is {boot}", identity)
    if identity.pidns != pidns:
        return Lost("other_namespace", f"PID namespace was {identity.pidns}, is {pidns}", identity)
    handle = Handle.open(folder, identity.pid, identity.start_ticks)
    if handle is not None:
        return Alive(handle, identity)
    # It may have ended between the first look and now. Gone and still no record: then none will come.
    return _ended(folder) or Lost("gone", f"supervisor {identity.pid} is gone and left no exit.json", identity)


def here() -> tuple[str, int]:
    """This boot's id and the inode of this PID namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return boot, Path("/proc/self/ns/pid").stat().st_ino


def start_ticks_of(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
        return int(text.rpartition(b")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return None


def _readable(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def _ended(folder: Path) -> Ended | Lost | None:
    try:
        record = json.loads((folder / "exit.json").read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:  # written by rename after an fsync: this is damage, not a half-written file
        return Lost("unreadable", f"{folder / 'exit.json'}: {e}")
    try:
        identity = Identity.of(json.loads((folder / "supervisor.json").read_bytes()))
    except (OSError, KeyError, TypeError, ValueError):
        identity = None  # how it ended does not depend on it
    return Ended(record, identity)


def _record(folder: Path) -> dict[str, Any] | Lost:
    """supervisor.json; where there is none, seals the folder."""
    path = folder / "supervisor.json"
    trouble = ""
    for _ in range(_HALF_WRITTEN_TRIES):
        try:
            _seal(path)
        except FileExistsError:
            pass
        except OSError as e:
            return Lost("unreadable", f"{path}: {e}")
        try:
            record = json.loads(path.read_bytes())
            return record if isinstance(record, dict) else Lost("unreadable", f"{path} holds no record")
        except (OSError, ValueError) as e:
            trouble = str(e)
        time.sleep(0.005)
    return Lost("unreadable", f"{path}: {trouble}")


def _seal(path: Path) -> None:
    """Takes the name of the supervisor's record, as a supervisor would: whole, or not at all. Raises FileExistsError
    where one has begun, or the folder is sealed already."""
    if path.exists():
        raise FileExistsError
    fresh = path.with_name(f".sealed.{os.getpid()}.{time.monotonic_ns()}")
    try:
        fresh.write_text(json.dumps({"v": 1, "sealed": True}))
        path.hardlink_to(fresh)
    finally:
        fresh.unlink(missing_ok=True)
