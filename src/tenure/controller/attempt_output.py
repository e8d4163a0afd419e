"""One attempt's output on the controller's disk: exact bytes, and an index of where each run of a stream lies.

``<job>.<attempt>.bin`` holds the bytes as read, ``.idx`` one record for each run: offset, length, stream, UTC time. A
record with a cause beside its stream tells of bytes that were lost right before the run after it; it names none here.

A record is written only after its bytes are known to be on disk; until then it is kept in memory, where readers find
it. So whatever a crash leaves, every record that the index holds names bytes that are truly there, and everything
after the last good record is cut off: the agent has not been told that it arrived, and sends it again. Rejected: a
record as soon as its bytes are written. After a power cut such a record may name bytes that never reached the disk,
and they would be taken for output.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tenure.durable import sync_dir, sync_fd
from tenure.wire.frames import OutputChunk

RUN = struct.Struct("<QIBxxxd")
STREAMS = {1: "stdout", 2: "stderr"}
#: What stands beside the stream of a loss.
CAUSES = {16: "disk", 32: "quota", 64: "unknown"}
_TAGS = {cause: tag for tag, cause in CAUSES.items()}
#: Runs of one stream that were read within this many seconds are shown as one.
TOGETHER_S = 0.01
_CHECK_BYTES = RUN.size * 4096
#: Runs of one answer: bytes that came one by one must not make it many times as large as they are.
_PAGE_RUNS = 4096


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of one stream, read at one time: ``offset`` counts in the whole output of the attempt.

    With a ``cause`` they are ``lost`` bytes that are not here, and ``length`` is 0.
    """

    offset: int
    length: int
    stream: int
    at: float
    lost: int = 0
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one sync makes durable: the bytes up to ``size``, and the first ``records`` bytes of what waits."""

    size: int
    records: int


class AttemptOutput:
    """The two files of one attempt, open for appending.

    ``size`` bytes can be read, ``durable`` of them survive a crash. Everything but ``sync`` is for one thread; ``sync``
    may run in another meanwhile, between ``snapshot`` and ``synced``.
    """

    def __init__(self, bin_path: Path, idx_path: Path) -> None:
        fresh = not (bin_path.exists() and idx_path.exists())
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._bin = os.open(bin_path, flags, 0o600)
        try:
            self._idx = os.open(idx_path, flags, 0o600)
            try:
                if fresh:
                    sync_dir(bin_path.parent)
                self._indexed, self.size = _good(self._idx, os.fstat(self._bin).st_size)
                os.ftruncate(self._idx, self._indexed)
                os.ftruncate(self._bin, self.size)
            except BaseException:
                os.close(self._idx)
                raise
        except BaseException:
            os.close(self._bin)
            raise
        self.durable = self.size
        self._waiting = bytearray()

    def append(self, chunk: OutputChunk) -> bool:
        """Adds what is new of a chunk; ``False`` where it begins beyond the end (something before it is missing).

        After an ``OSError`` this object must be closed; a new one begins at what is durable.
        """
        if chunk.offset > self.size:
            return False
        position, records = chunk.offset, bytearray()
        if chunk.offset == self.size and chunk.data:  # else they came before, with the byte that they go with
            for stream, lost, cause, at in chunk.lost:
                records += RUN.pack(self.size, lost, stream | _TAGS.get(cause, _TAGS["unknown"]), at)
        for stream, length, at in chunk.runs:
            end = position + length
            if end > self.size:
                begin = max(position, self.size)
                records += RUN.pack(begin, end - begin, stream, at)
            position = end
        if records:
            data = memoryview(chunk.data)[self.size - chunk.offset :]
            written = 0
            while written < len(data):
                written += os.pwrite(self._bin, data[written:], self.size + written)
            self._waiting += records
            self.size += len(data)
        return True

    def snapshot(self) -> Snapshot:
        """What a sync that begins now would make durable."""
        return Snapshot(self.size, len(self._waiting))

    def sync(self, upto: Snapshot) -> None:
        """Makes the bytes durable, then the records that name them."""
        sync_fd(self._bin, data_only=True)
        records = bytes(self._waiting[: upto.records])
        written = 0
        while written < len(records):
            written += os.pwrite(self._idx, records[written:], self._indexed + written)
        sync_fd(self._idx, data_only=True)

    def synced(self, upto: Snapshot) -> int:
        """Takes note of a sync that came through, and gives how much is durable now."""
        del self._waiting[: upto.records]
        self._indexed += upto.records
        self.durable = upto.size
        return self.durable

    def read(self, offset: int, limit: int) -> list[tuple[Run, bytes]]:
        """The runs from ``offset`` on with their bytes, at most ``limit`` bytes of them."""
        found = _runs(self._idx, self._indexed, bytes(self._waiting), offset, min(offset + limit, self.size))
        return _with_bytes(self._bin, found)

    def since(self, at: float) -> int:
        """The offset of the first run that was read at or after a UTC time; the size where there is none.

        By bisection: where the host's clock was set back, the place is one at which the times pass it.
        """
        number = _first(self._idx, self._indexed, lambda begin, length, stream, when: when < at)
        waiting = bytes(self._waiting)
        if number * RUN.size < self._indexed:
            return int(RUN.unpack(os.pread(self._idx, RUN.size, number * RUN.size))[0])
        return next((begin for begin, _, _, when in RUN.iter_unpack(waiting) if when >= at), self.size)

    def close(self) -> None:
        """Closes both files."""
        os.close(self._bin)
        os.close(self._idx)


def read_closed(bin_path: Path, idx_path: Path, offset: int, limit: int) -> list[tuple[Run, bytes]]:
    """``AttemptOutput.read`` for files that nobody writes; empty where there are none."""
    try:
        data = os.open(bin_path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        index = os.open(idx_path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(index).st_size
            end = min(offset + limit, os.fstat(data).st_size)
            return _with_bytes(data, _runs(index, size - size % RUN.size, b"", offset, end))
        finally:
            os.close(index)
    except FileNotFoundError:
        return []
    finally:
        os.close(data)


def since_closed(idx_path: Path, at: float, size: int) -> int:
    """``AttemptOutput.since`` for files that nobody writes."""
    try:
        index = os.open(idx_path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return size
    try:
        indexed = os.fstat(index).st_size // RUN.size * RUN.size
        number = _first(index, indexed, lambda begin, length, stream, when: when < at)
        raw = os.pread(index, RUN.size, number * RUN.size)
        return int(RUN.unpack(raw)[0]) if len(raw) == RUN.size else size
    finally:
        os.close(index)


def _good(index: int, held: int) -> tuple[int, int]:
    """How many bytes of an index are good records, and the end of the output they name.

    Read from the start, because what a crash left may look right again further on. Each record has to begin where the
    one before it ends, and to lie within the bytes that are there. A loss without the run after it does not count: it
    comes again with that run.
    """
    end = position = good = 0
    while raw := os.pread(index, _CHECK_BYTES, position):
        for offset, length, stream, _ in RUN.iter_unpack(raw[: len(raw) - len(raw) % RUN.size]):
            if offset != end or not length or stream & 3 not in STREAMS:
                return good, end
            position += RUN.size
            if stream in STREAMS:
                if end + length > held:
                    return good, end
                end += length
                good = position
            elif stream & ~3 not in CAUSES:
                return good, end
        if len(raw) < _CHECK_BYTES:
            break
    return good, end


def _runs(index: int, indexed: int, waiting: bytes, offset: int, end: int) -> list[Run]:
    """The runs that cover ``offset`` to ``end``, cut to that, those of one stream and moment joined, and between them
    the losses; a loss at ``offset`` comes first, one at ``end`` with the page that begins there."""
    found: list[Run] = []
    position = _first(index, indexed, _before(offset)) * RUN.size
    while offset < end and len(found) < _PAGE_RUNS:
        if position < indexed:
            raw = os.pread(index, min(_CHECK_BYTES, indexed - position), position)
            position += len(raw)
        else:
            raw, waiting = waiting, b""
        if not raw:
            break
        for begin, length, stream, at in RUN.iter_unpack(raw):
            if stream not in STREAMS:
                if begin == offset:
                    found.append(Run(begin, 0, stream & 3, at, length, CAUSES[stream & ~3]))
                continue
            start, stop = max(begin, offset), min(begin + length, end)
            if start >= stop:
                continue
            last = found[-1] if found else None
            if last is not None and last.stream == stream and not last.lost and 0 <= at - last.at < TOGETHER_S:
                found[-1] = Run(last.offset, stop - last.offset, stream, last.at)
            else:
                found.append(Run(start, stop - start, stream, at))
            offset = stop
            if offset >= end or len(found) >= _PAGE_RUNS:
                break
    while found and found[-1].lost:  # a crash kept it from the run after it
        found.pop()
    return found


def _with_bytes(file: int, runs: list[Run]) -> list[tuple[Run, bytes]]:
    if not runs:
        return []
    begin, end = runs[0].offset, runs[-1].offset + runs[-1].length
    data = os.pread(file, end - begin, begin)
    told = []
    for run in runs:
        piece = data[run.offset - begin : run.offset - begin + run.length]
        if len(piece) < run.length:  # cut off under a reader: what was there is told, the rest is for later
            if piece:
                told.append((Run(run.offset, len(piece), run.stream, run.at), piece))
            break
        told.append((run, piece))
    return told


def _before(offset: int) -> Callable[[int, int, int, float], bool]:
    """Whether a record tells of what lies before ``offset`` only; a loss right before it goes with what follows."""
    return lambda begin, length, stream, at: begin + length <= offset if stream in STREAMS else begin < offset


def _first(index: int, indexed: int, before: Callable[[int, int, int, float], bool]) -> int:
    """The number of the first index record that is not ``before``, by bisection."""
    low, high = 0, indexed // RUN.size
    while low < high:
        middle = (low + high) // 2
        if before(*RUN.unpack(os.pread(index, RUN.size, middle * RUN.size))):
            low = middle + 1
        else:
            high = middle
    return low
