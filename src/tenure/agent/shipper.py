"""Carries every attempt's output to the controller: in order, without a gap, as fast as the controller takes it.

The supervisor writes bytes first, then their index record; what the index does not name yet is not sent. Sending
resumes where the controller has everything durable (its acknowledgements), never where this side believes it had got
to. What is under way is bounded per attempt, so that a slow controller costs no memory here: the disk is the buffer.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tenure.agent import records as r
from tenure.wire.frames import Lost, OutputChunk

#: Offset, length, stream, UTC time. With a cause beside the stream: so many bytes of it were lost there, and are not
#: stored; they take no room in the output.
RUN = struct.Struct("<QIBxxxd")
DISK, QUOTA = 16, 32
_CAUSES = {DISK: "disk", QUOTA: "quota"}
#: Bytes of a chunk. Each is copied several times on its way into the controller's store, so this times the copies,
#: times the chunks under way, is what a large output costs there at its worst moment.
CHUNK_BYTES = 128 << 10
CHUNK_RUNS = 1024
#: Bytes sent and not acknowledged, at most, for one attempt.
UNDER_WAY = 512 << 10
#: Without progress for this long what is under way is taken for lost and sent again.
STALLED_S = 15.0


@dataclass(slots=True)
class Stream:
    """One attempt's output on its way. Offsets count in the whole output; ``record`` is the next index record."""

    key: r.Key
    folder: Path
    sent: int = 0
    acked: int = 0
    record: int = 0
    moved_at: float = 0.0

    def rewind(self, now: float) -> None:
        """Begins again where the controller has everything."""
        self.sent = self.acked
        self.record = _record_at(self.folder / "output.idx", self.sent)
        self.moved_at = now


class Shipper:
    """The outputs of all attempts. ``send`` is the connection's; it waits while its buffers are full."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.streams: dict[r.Key, Stream] = {}

    def add(self, key: r.Key, folder: Path, acked: int) -> None:
        """An attempt whose output is to be sent, from ``acked`` on."""
        if key not in self.streams:
            stream = Stream(key, folder, acked=acked)
            stream.rewind(self._clock())
            self.streams[key] = stream

    def remove(self, key: r.Key) -> None:
        """The controller has all of it, or nobody wants it any more."""
        self.streams.pop(key, None)

    def connected(self) -> None:
        """A new connection: nothing is under way any more."""
        for stream in self.streams.values():
            stream.rewind(self._clock())

    def acknowledged(self, key: r.Key, offset: int) -> int | None:
        """The controller has output up to ``offset`` for good. Gives the offset where that is news.

        No news means that it could not use what came (a gap, or a store that failed): sending begins again there.
        """
        stream = self.streams.get(key)
        if stream is None:
            return None
        now = self._clock()
        if offset > stream.acked:
            stream.acked, stream.moved_at = offset, now
            if offset > stream.sent:  # more than this run of the agent has sent: an earlier one did
                stream.rewind(now)
            return offset
        stream.acked = offset
        stream.rewind(now)
        return None

    async def pump(self, send: Callable[[bytes], Awaitable[None]]) -> bool:
        """Sends what may be sent now, one chunk of each attempt in turn. Gives whether there may be more at once."""
        more = False
        for stream in list(self.streams.values()):
            now = self._clock()
            if stream.sent > stream.acked and now - stream.moved_at > STALLED_S:
                stream.rewind(now)
            if stream.sent - stream.acked >= UNDER_WAY:
                continue
            chunk, records = read_chunk(stream.folder, stream.key, stream.sent, stream.record)
            if chunk is None:
                continue
            if stream.sent == stream.acked:
                stream.moved_at = now
            stream.sent = chunk.offset + len(chunk.data)
            stream.record += records
            more = True
            await send(chunk.to_bytes())
        return more


def read_chunk(folder: Path, key: r.Key, offset: int, record: int) -> tuple[OutputChunk | None, int]:
    """The next chunk from ``offset`` on, and how many whole index records it used up.

    A record longer than a chunk is sent in pieces; the records' count then stays behind at the one not used up. What
    was lost before a byte travels with that byte, at the head of a chunk, so that both arrive or neither.
    """
    try:
        index = os.open(folder / "output.idx", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None, 0
    try:
        raw = os.pread(index, RUN.size * CHUNK_RUNS, record * RUN.size)
    finally:
        os.close(index)
    runs: list[tuple[int, int, float]] = []
    lost: list[Lost] = []
    used = size = 0
    for begin, length, stream, at in RUN.iter_unpack(raw[: len(raw) - len(raw) % RUN.size]):
        if stream & ~3:
            if size:
                break
            if length and begin >= offset:
                lost.append((stream & 3, length, _CAUSES.get(stream & ~3, "unknown"), at))
            used += 1
            continue
        start = max(begin, offset)
        take = min(begin + length - start, CHUNK_BYTES - size)
        if begin + length > offset and take <= 0:
            break
        if take > 0:
            runs.append((stream, take, at))
            size += take
        if start + max(take, 0) < begin + length:
            break
        used += 1
    if not size:
        return None, 0
    data = _read_exactly(folder / "output.bin", offset, size)
    if data is None:
        return None, 0
    return OutputChunk(*key, offset, tuple(runs), data, tuple(lost)), used


def _read_exactly(path: Path, offset: int, size: int) -> bytes | None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(fd, size, offset)
    finally:
        os.close(fd)
    return data if len(data) == size else None


def _record_at(path: Path, offset: int) -> int:
    """The number of the index record that holds ``offset``, or tells of a loss right before it, by bisection; 0 where
    there is no index yet."""
    try:
        index = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    try:
        low, high = 0, os.fstat(index).st_size // RUN.size
        while low < high:
            middle = (low + high) // 2
            begin, length, stream, _ = RUN.unpack(os.pread(index, RUN.size, middle * RUN.size))
            if begin < offset if stream & ~3 else begin + length <= offset:
                low = middle + 1
            else:
                high = middle
        return low
    finally:
        os.close(index)


def indexed_bytes(folder: Path) -> int:
    """How much of an attempt's output index and bytes agree on: its size where no exit record tells."""
    try:
        held = (folder / "output.bin").stat().st_size
        index = os.open(folder / "output.idx", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    try:
        for number in range(os.fstat(index).st_size // RUN.size - 1, -1, -1):
            begin, length, stream, _ = RUN.unpack(os.pread(index, RUN.size, number * RUN.size))
            length = 0 if stream & ~3 else length
            if begin + length <= held:
                return int(begin + length)
        return 0
    finally:
        os.close(index)


def quota_hit(folder: Path) -> tuple[int, float] | None:
    """Where (offset) and when (UTC) bytes began not to be stored for the quota; None where that has not happened.

    The supervisor writes that record once, at once, and after it nothing more.
    """
    try:
        index = os.open(folder / "output.idx", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        last = os.fstat(index).st_size // RUN.size - 1
        raw = os.pread(index, RUN.size, last * RUN.size) if last >= 0 else b""
    finally:
        os.close(index)
    if len(raw) < RUN.size:
        return None
    begin, _, stream, at = RUN.unpack(raw)
    return (begin, at) if stream & QUOTA else None
