"""The client of the /proc child: looks that can block, asked with a deadline and abandoned when they miss it.

Within one call a subject that blocks reads ``timeout`` and the rest goes to a fresh child; a call uses up at most
``MAX_ROUNDS`` children, after which the rest reads ``timeout`` too.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tenure.probes.proc_worker as proc_worker
from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.probes.child import Child, ChildGone, python_argv
from tenure.probes.host import Disk
from tenure.probes.proc import Handles, ProcEntry, Vanished

MAX_UNDEAD = 4
MAX_ROUNDS = 3


class ProcProbe:
    """Open files, maps, environments and disks, each with a deadline. ``deadline_s`` bounds the silence per subject.

    ``start_deadline_s`` bounds a child's start. One call at a time; a second one waits for the first.
    """

    def __init__(
        self,
        *,
        deadline_s: float = 2.0,
        start_deadline_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadline_s = deadline_s
        self._start_deadline_s = start_deadline_s
        self._clock = clock
        self._child: Child | None = None
        self._undead: list[Child] = []
        self._lock = asyncio.Lock()
        self._next_id = 0

    async def handles(self, processes: Iterable[ProcEntry]) -> dict[int, Reading[Handles] | Vanished]:
        """GPU handles and driver libraries of each process (told apart from a reused pid by its start)."""
        entries = list(processes)
        at, replies = await self._ask("handles", [[e.pid, e.start_ticks] for e in entries])
        found: dict[int, Reading[Handles] | Vanished] = {}
        for entry, reply in zip(entries, replies, strict=True):
            if "gone" in reply:
                found[entry.pid] = Vanished(entry.pid, at)
                continue
            found[entry.pid] = self._reading(
                reply, at, "proc.handles", Scope.PROCESS, lambda v: Handles(tuple(v[0]), tuple(v[1]), frozenset(v[2]))
            )
        return found

    async def environ_has(self, pids: Iterable[int], key: str, value: str) -> dict[int, Reading[bool] | Vanished]:
        """Which processes were started with ``key=value``: how what a job left running is found."""
        wanted = list(pids)
        at, replies = await self._ask("environ", [[pid, key, value] for pid in wanted])
        return {
            pid: Vanished(pid, at) if "gone" in reply else self._reading(reply, at, "proc.environ", Scope.PROCESS, bool)
            for pid, reply in zip(wanted, replies, strict=True)
        }

    async def disk_free(self, paths: Sequence[str]) -> dict[str, Reading[Disk]]:
        """Room on the file systems of these paths."""
        at, replies = await self._ask("disk", list(paths))
        return {
            path: self._reading(reply, at, "statvfs", Scope.HOST, lambda v: Disk(*v))
            for path, reply in zip(paths, replies, strict=True)
        }

    async def close(self) -> None:
        """Ends the child."""
        async with self._lock:
            self._abandon()

    def _reading(
        self, reply: dict[str, Any], at: float, instrument: str, scope: Scope, make: Callable[[Any], Any]
    ) -> Any:
        if "e" in reply:
            return Unavailable(Reason(reply["e"]), at, reply.get("i", instrument), scope, reply.get("m", ""))
        return Value(make(reply["v"]), at, instrument, scope)

    async def _ask(self, op: str, subjects: list[Any]) -> tuple[float, list[dict[str, Any]]]:
        async with self._lock:
            at = self._clock()
            replies: list[dict[str, Any]] = []
            try:
                for _ in range(MAX_ROUNDS):
                    if len(replies) == len(subjects):
                        break
                    await self._round(op, subjects, replies)
            except BaseException:
                self._abandon()
                raise
            late = {"e": str(Reason.TIMEOUT), "m": f"not asked: {MAX_ROUNDS} others blocked first"}
            return at, replies + [late] * (len(subjects) - len(replies))

    async def _round(self, op: str, subjects: list[Any], replies: list[dict[str, Any]]) -> None:
        """Asks for what is not answered yet; a subject that blocks or kills the child is answered with that."""
        self._undead = [child for child in self._undead if not child.reaped()]
        loop = asyncio.get_running_loop()
        if self._child is not None and self._child.reaped():
            self._abandon()
        try:
            if self._child is None:
                if len(self._undead) >= MAX_UNDEAD:
                    raise ChildGone(f"{MAX_UNDEAD} abandoned children have not died yet; no new one is started")
                env = {"PATH": os.defpath, "LC_ALL": "C"}
                self._child = Child(python_argv(proc_worker.__file__, proc_worker.source_root()), env)
                await self._child.next_line(loop.time() + self._start_deadline_s)  # a busy host starts it slowly
            self._next_id += 1
            first = len(replies)
            async with asyncio.timeout(self._deadline_s):
                await self._child.ask({"id": self._next_id, "op": op, "subjects": subjects[first:]})
            while len(replies) < len(subjects):
                line = await self._child.next_line(loop.time() + self._deadline_s)
                if line.get("id") == self._next_id and line.get("n") == len(replies) - first:
                    replies.append(line)
        except TimeoutError:
            where = self._child.progress() if self._child is not None else ""
            self._abandon()
            replies.append({"e": str(Reason.TIMEOUT), "m": f"no answer for {self._deadline_s:g} s in {where or op}"})
        except (ChildGone, OSError) as problem:
            self._abandon()
            replies.append({"e": str(Reason.SAMPLING_GAP), "m": str(problem)})

    def _abandon(self) -> None:
        if self._child is not None:
            self._child.abandon()
            self._undead.append(self._child)
            self._child = None
