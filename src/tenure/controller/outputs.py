"""Every job's output as it arrives from the agents: stored, made durable, acknowledged, and read back.

An offset is acknowledged only after everything up to it is on disk; until then the agent keeps the bytes (I13). Readers
may be shown bytes that are not yet on disk: after a crash the agent sends the very same bytes again.

Where the disk refuses, nothing is acknowledged and nothing else suffers. The files of that attempt are opened anew
after a pause, which cuts them to what is durable, and the agent is told to go on from there: so bytes flow again by
themselves once there is room, at one try a pause and not in a tight circle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tenure.controller.attempt_output import AttemptOutput, Run, Snapshot, read_closed, since_closed
from tenure.controller.logs import Log
from tenure.paths import Layout
from tenure.wire.frames import OutputChunk

log = Log("tenure.controller.outputs")

#: How long bytes may wait to be made durable together with later ones, and how many of them end that wait.
SYNC_EVERY_S = 0.05
SYNC_BYTES = 256 << 10
#: Seconds between two tries at a disk that refused, and between two requests to send from the same offset again.
RETRY_S = 1.0
#: Attempts whose files are kept open; those used least recently give way.
MAX_OPEN = 128
_SYNC_THREADS = 4

Key = tuple[str, int]
Acknowledge = Callable[[int], None]


@dataclass(slots=True, eq=False)
class _Held:
    """An attempt whose output is arriving. ``output`` is None after a failure; ``asked_at`` is monotonic."""

    output: AttemptOutput | None
    acknowledge: Acknowledge
    dirty: bool = False
    syncing: bool = False
    broken: bool = False
    leaving: bool = False
    asked_at: float = float("-inf")


class OutputStore:
    """Every attempt's output. ``on_change`` is called with the job id whenever there is more to read.

    For one event loop. ``failure`` says in words what the disk refused last, until a write succeeds.
    """

    def __init__(self, layout: Layout, on_change: Callable[[str], None], *, retry_s: float = RETRY_S) -> None:
        self._layout = layout
        self._on_change = on_change
        self._retry_s = retry_s
        self._held: dict[Key, _Held] = {}
        self._flusher: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._retries: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="output")
        self._closing = False
        self.failure: str | None = None

    def _paths(self, key: Key) -> tuple[Path, Path]:
        return self._layout.output_bin(*key), self._layout.output_idx(*key)

    # -- writing ---------------------------------------------------------------------------------------------------

    def take(self, chunk: OutputChunk, acknowledge: Acknowledge) -> None:
        """Stores a chunk and calls ``acknowledge(offset)`` once everything up to there is on disk.

        Where something before the chunk is missing, or the disk refused it, the offset to go on from is acknowledged
        instead: at once the first time, then not more often than every ``retry_s``. Raises ``ValueError`` for a job's
        name that is none.
        """
        key = (chunk.job, chunk.attempt)
        held = self._held.pop(key, None) or _Held(None, acknowledge)
        self._held[key] = held  # last: the one used most recently
        held.acknowledge, held.leaving = acknowledge, False
        if held.broken:
            return
        try:
            if held.output is None:
                self._make_room()
                held.output = AttemptOutput(*self._paths(key))
            if not held.output.append(chunk):
                self._ask_again(key, held)
                return
        except OSError as error:
            self._refused(key, held, error)
            return
        except ValueError:
            del self._held[key]
            raise
        held.dirty = True
        if held.output.size - held.output.durable >= SYNC_BYTES:
            self._hurry.set()
        self._on_change(chunk.job)
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.create_task(self._flush())

    def _ask_again(self, key: Key, held: _Held) -> None:
        assert held.output is not None
        now = asyncio.get_running_loop().time()
        if now - held.asked_at >= self._retry_s:
            held.asked_at = now
            log.info("output_gap", job=key[0], attempt=key[1], go_on_from=held.output.durable)
            held.acknowledge(held.output.durable)

    def _refused(self, key: Key, held: _Held, error: OSError) -> None:
        """The disk refused: forget what is not durable, and try again after a pause."""
        if held.broken:
            self._let_go(held)
            return
        if self.failure is None:
            log.error("output_not_stored", job=key[0], attempt=key[1], path=str(self._paths(key)[0]), why=str(error))
        self.failure = (
            f"output of {key[0]} cannot be stored: {error.strerror}; make room, the agents keep it until then"
        )
        held.broken, held.dirty = True, False
        self._let_go(held)
        if not self._closing:
            retry = asyncio.create_task(self._retry(key, held))
            self._retries.add(retry)
            retry.add_done_callback(self._retries.discard)

    async def _retry(self, key: Key, held: _Held) -> None:
        while True:
            await asyncio.sleep(self._retry_s)
            if held.syncing:
                continue
            try:
                output = held.output = AttemptOutput(*self._paths(key))
            except OSError as error:
                self.failure = f"output of {key[0]} cannot be opened: {error.strerror}"
                continue
            held.broken = False
            held.acknowledge(output.durable)
            return

    @staticmethod
    def _let_go(held: _Held) -> None:
        """Closes the files, but never under a sync that uses them; its end closes them then."""
        if held.output is not None and not held.syncing:
            held.output.close()
            held.output = None

    async def _flush(self) -> None:
        """Makes durable what has gathered, again and again while there is some."""
        while any(held.dirty for held in self._held.values()):
            if not self._closing:
                try:
                    async with asyncio.timeout(SYNC_EVERY_S):
                        await self._hurry.wait()
                except TimeoutError:
                    pass
            self._hurry.clear()
            await asyncio.gather(*(self._sync(key, held) for key, held in list(self._held.items()) if held.dirty))

    async def _sync(self, key: Key, held: _Held) -> None:
        output = held.output
        assert output is not None
        upto: Snapshot = output.snapshot()
        held.dirty, held.syncing = False, True
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads, output.sync, upto)
        except OSError as error:
            held.syncing = False
            # What a failed sync left is not known: the next one may succeed although the pages are gone.
            self._refused(key, held, error)
            return
        held.syncing = False
        if held.broken:  # an append failed meanwhile; what this sync did is on disk, and a new look will find it
            self._let_go(held)
            return
        self.failure = None
        held.acknowledge(output.synced(upto))
        if held.leaving and not held.dirty:
            self._forget(key, held)

    def _make_room(self) -> None:
        idle = [key for key, held in self._held.items() if held.output is not None and not held.broken]
        for key in idle[: max(0, len(idle) - MAX_OPEN + 1)]:
            self._forget(key, self._held[key])

    def _forget(self, key: Key, held: _Held) -> None:
        if held.dirty or held.syncing or held.broken:
            held.leaving = True
            return
        self._let_go(held)
        self._held.pop(key, None)

    def forget(self, job: str) -> None:
        """Closes the files of a job that is over, once they are durable; its output stays readable."""
        for key, held in [(key, held) for key, held in self._held.items() if key[0] == job]:
            self._forget(key, held)

    def closed(self, job: str, attempt: int) -> bool:
        """Closes an attempt's files before they are removed; False while something of them is on its way to the disk.
        A file that is removed while it is open is still read, and would be shown as if it were kept."""
        held = self._held.get((job, attempt))
        if held is not None:
            self._forget((job, attempt), held)
        return (job, attempt) not in self._held

    async def close(self) -> None:
        """Makes everything durable and closes every file. What cannot be is not acknowledged, and said in the log."""
        self._closing = True
        self._hurry.set()
        for retry in list(self._retries):
            retry.cancel()
        await asyncio.gather(*self._retries, return_exceptions=True)
        if self._flusher is not None:
            await self._flusher
        for held in self._held.values():
            self._let_go(held)
        self._held.clear()
        self._threads.shutdown()

    # -- reading ---------------------------------------------------------------------------------------------------

    def size(self, job: str, attempt: int) -> int:
        """How many bytes of an attempt's output are here."""
        found = self._held.get((job, attempt))
        if found is not None and found.output is not None:
            return found.output.size
        try:
            return self._layout.output_bin(job, attempt).stat().st_size
        except FileNotFoundError:
            return 0

    async def since(self, job: str, attempt: int, at: float) -> int:
        """The offset of the first run that was read at or after a UTC time; the size where there is none yet."""
        found = self._held.get((job, attempt))
        if found is not None and found.output is not None:
            return found.output.since(at)
        return await asyncio.to_thread(since_closed, self._paths((job, attempt))[1], at, self.size(job, attempt))

    async def read(self, job: str, attempt: int, offset: int, limit: int) -> list[tuple[Run, bytes]]:
        """The runs from ``offset`` on with their bytes, at most ``limit`` bytes; empty where there is no more now."""
        found = self._held.get((job, attempt))
        if found is not None and found.output is not None:
            return found.output.read(offset, limit)  # fresh, so in the page cache
        return await asyncio.to_thread(read_closed, *self._paths((job, attempt)), offset, limit)
