"""The controller's copy of every job's output: exact bytes, and an index of where each run of a stream lies.

``<job>.<attempt>.bin`` holds the bytes as read, ``.idx`` one record for each run: offset, length, stream, UTC time. An
offset is acknowledged to the agent only after both files are on disk; until then the agent keeps the bytes (I13).
Readers may be shown bytes that are not yet on disk: after a crash the agent sends the very same bytes again.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tenure.durable import sync_dir, sync_fd
from tenure.errors import TenureError
from tenure.paths import Layout
from tenure.wire.frames import OutputChunk

RUN = struct.Struct("<QIBxxxd")
STREAMS = {1: "stdout", 2: "stderr"}
#: How long bytes may wait to be made durable together with later ones.
SYNC_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of one stream, read at one time: ``offset`` counts in the whole output of the attempt."""

    offset: int
    length: int
    stream: int
    at: float


class AttemptOutput:
    """The two files of one attempt, open for appending. Not safe to share between threads."""

    def __init__(self, bin_path: Path, idx_path: Path) -> None:
        fresh = not bin_path.exists()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._bin = os.open(bin_path, flags, 0o600)
        self._idx = os.open(idx_path, flags, 0o600)
        self.path = bin_path
        if fresh:
            sync_dir(bin_path.parent)
        self.size = self._repair()
        self.synced = self.size

    def _repair(self) -> int:
        """After a crash: keeps what index and bytes agree on, and returns how much that is."""
        records = os.fstat(self._idx).st_size // RUN.size
        held = os.fstat(self._bin).st_size
        end = 0
        for number in range(records - 1, -1, -1):
            offset, length, _, _ = RUN.unpack(os.pread(self._idx, RUN.size, number * RUN.size))
            if offset + length <= held:
                end = offset + length
                break
            records = number
        os.ftruncate(self._idx, (records if end else 0) * RUN.size)
        os.ftruncate(self._bin, end)
        os.lseek(self._idx, 0, os.SEEK_END)
        return end

    def append(self, chunk: OutputChunk) -> bool:
        """Adds what is new of a chunk; ``False`` where it begins beyond the end (something before it is missing)."""
        if chunk.offset > self.size:
            return False
        position, records, skip = chunk.offset, [], self.size - chunk.offset
        for stream, length, at in chunk.runs:
            end = position + length
            if end > self.size:
                begin = max(position, self.size)
                records.append(RUN.pack(begin, end - begin, stream, at))
            position = end
        if records:
            data = memoryview(chunk.data)[skip:]
            written = 0
            while written < len(data):
                written += os.pwrite(self._bin, data[written:], self.size + written)
            os.write(self._idx, b"".join(records))
            self.size += len(data)
        return True

    def sync(self) -> int:
        """Makes everything so far durable and returns how much that is."""
        size = self.size
        sync_fd(self._bin, data_only=True)
        sync_fd(self._idx, data_only=True)
        self.synced = size
        return size

    def close(self) -> None:
        """Closes both files."""
        os.close(self._bin)
        os.close(self._idx)


class OutputStore:
    """Every attempt's output. ``on_change`` is called with the job id whenever there is more to read."""

    def __init__(self, layout: Layout, on_change: Callable[[str], None]) -> None:
        self._layout = layout
        self._on_change = on_change
        self._open: dict[tuple[str, int], AttemptOutput] = {}
        self._dirty: dict[tuple[str, int], Callable[[int], None]] = {}
        self._flush: asyncio.Task[None] | None = None
        self.failure: str | None = None

    def _attempt(self, job: str, attempt: int) -> AttemptOutput:
        found = self._open.get((job, attempt))
        if found is None:
            paths = self._layout.output_bin(job, attempt), self._layout.output_idx(job, attempt)
            found = self._open[(job, attempt)] = AttemptOutput(*paths)
        return found

    def take(self, chunk: OutputChunk, acknowledge: Callable[[int], None]) -> None:
        """Stores a chunk and calls ``acknowledge(offset)`` once everything up to there is on disk.

        A chunk that leaves a gap is answered at once with where to go on from. A full disk acknowledges nothing: the
        agent keeps the bytes and sends them again.
        """
        key = (chunk.job, chunk.attempt)
        try:
            output = self._attempt(*key)
            if not output.append(chunk):
                acknowledge(output.synced)
                return
        except OSError as error:
            self.failure = f"output of {chunk.job}: {error.strerror}"
            found = self._open.pop(key, None)
            if found is not None:
                found.close()
            raise TenureError(
                "disk_full" if error.errno in (28, 122) else "io_error",
                f"output of job {chunk.job} cannot be stored: {error.strerror}",
                do="make room on the disk; the agent keeps the bytes until then",
                facts={"path": str(self._layout.output_bin(*key))},
            ) from error
        self.failure = None
        self._dirty[key] = acknowledge
        self._on_change(chunk.job)
        if self._flush is None or self._flush.done():
            self._flush = asyncio.create_task(self._sync_soon())

    async def _sync_soon(self) -> None:
        while self._dirty:
            await asyncio.sleep(SYNC_EVERY_S)
            batch, self._dirty = self._dirty, {}
            for key, acknowledge in batch.items():
                output = self._open.get(key)
                if output is None:
                    continue
                try:
                    acknowledge(await asyncio.to_thread(output.sync))
                except OSError as error:
                    self.failure = f"output of {key[0]}: {error.strerror}"

    def size(self, job: str, attempt: int) -> int:
        """How many bytes of an attempt's output are here."""
        found = self._open.get((job, attempt))
        if found is not None:
            return found.size
        path = self._layout.output_bin(job, attempt)
        return path.stat().st_size if path.exists() else 0

    def read(self, job: str, attempt: int, offset: int, limit: int) -> Iterator[tuple[Run, bytes]]:
        """The runs from ``offset`` on, up to about ``limit`` bytes, each with its bytes."""
        end = self.size(job, attempt)
        if offset >= end:
            return
        with (
            self._layout.output_bin(job, attempt).open("rb") as data,
            self._layout.output_idx(job, attempt).open("rb") as index,
        ):
            index.seek(_first_record(index.fileno(), offset) * RUN.size)
            sent = 0
            while sent < limit and (raw := index.read(RUN.size)) and len(raw) == RUN.size:
                begin, length, stream, at = RUN.unpack(raw)
                stop = min(begin + length, end)
                start = max(begin, offset)
                if start >= stop:
                    continue
                data.seek(start)
                piece = data.read(min(stop - start, limit - sent))
                yield Run(start, len(piece), stream, at), piece
                sent += len(piece)

    def forget(self, job: str) -> None:
        """Closes the files of a job that is over; its output stays readable."""
        for key in [key for key in self._open if key[0] == job and key not in self._dirty]:
            self._open.pop(key).close()

    async def close(self) -> None:
        """Makes everything durable and closes every file."""
        if self._flush is not None:
            await self._flush
        for output in self._open.values():
            output.close()
        self._open.clear()


def _first_record(index: int, offset: int) -> int:
    """The number of the index record that holds ``offset``, by bisection."""
    low, high = 0, os.fstat(index).st_size // RUN.size
    while low < high:
        middle = (low + high) // 2
        begin, length, _, _ = RUN.unpack(os.pread(index, RUN.size, middle * RUN.size))
        if begin + length <= offset:
            low = middle + 1
        else:
            high = middle
    return low
