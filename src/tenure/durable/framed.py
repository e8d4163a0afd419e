"""An append-only log of checksummed frames that tells a torn tail from damage.

A frame is ``[magic 2B][length u32][synced u64][crc32 u32][payload]``, little-endian. The checksum covers length,
synced and payload. ``synced`` is the length up to which the file had been synced when the frame was written. It tells
two kinds of broken bytes apart that look the same: bytes that no fsync ever covered (a power cut may leave any part of
them, even a later frame without an earlier one) are a torn tail and may be dropped; bytes below what some frame calls
synced were promised to somebody, and their loss is damage that a person has to hear of.

Rejected: one checksum for the whole file (an append would rewrite it); line-based JSON (a torn number is valid JSON);
SQLite for samples (one fsync a commit and a page of overhead a sample); an flock on the log itself (an abandoned child
would inherit it and lock its own parent's successor out). One writer a log: whoever opens one holds the lock of the
folder it lies in.
"""

from __future__ import annotations

import errno
import os
import shlex
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tenure.durable.files import sync_dir, sync_fd, write_all, write_atomic
from tenure.errors import TenureError

MAGIC = b"\xf7\x01"  # 0xf7 occurs in no UTF-8 text, so a search for the next frame does not stop in a JSON payload
_HEADER = struct.Struct("<2sIQI")
_COVERED = struct.Struct("<IQ")
HEADER_BYTES = _HEADER.size
MAX_PAYLOAD = 16 * 1024 * 1024


class Frame(NamedTuple):
    """One whole frame: where it begins, what it carries, and where the next one begins (bytes from the start)."""

    offset: int
    payload: bytes
    end: int


class Torn(NamedTuple):
    """A tail that no fsync ever covered was incomplete and has been cut off: ``bytes_dropped`` from ``offset`` on."""

    offset: int
    bytes_dropped: int


class Damaged(TenureError):
    """Bytes that had been made durable are no longer what was written. Nothing was changed or dropped.

    ``path`` names the file, ``offset`` the first byte that is not whole, ``synced`` how far the file had been durable.
    """

    def __init__(self, path: Path, offset: int, synced: int, why: str) -> None:
        super().__init__(
            "damaged_state",
            f"{path} is damaged at byte {offset}: {why}, although it had been made durable up to byte {synced}.",
            do=f"Nothing was changed; the frames before byte {offset} are whole. Keep a copy of the file, look for "
            "disk errors (dmesg, smartctl), then put a backup in its place, or start without it: "
            f"mv {shlex.quote(str(path))} {shlex.quote(str(path) + '.damaged')}",
            facts={"path": str(path), "offset": offset, "synced": synced, "why": why},
        )
        self.path = path
        self.offset = offset
        self.synced = synced


class LogFailed(TenureError):
    """An append, a sync or a replacement did not succeed; ``__cause__`` is the operating system's own error.

    ``usable`` says whether the log can go on: it can where the failed write left nothing behind.
    """

    def __init__(self, path: Path, what: str, cause: OSError | None, usable: bool) -> None:
        full = cause is not None and cause.errno in (errno.ENOSPC, errno.EDQUOT)
        super().__init__(
            "disk_full" if full else "io_error",
            f"Could not {what} {path}: {(cause.strerror or str(cause)) if cause else 'it is closed'}.",
            do=(
                "Nothing of it was kept; make room and try again."
                if usable
                else "What the disk holds is not known any more: restart the program, which reads the file afresh."
            ),
            facts={"path": str(path), "errno": cause.errno if cause else None},
        )
        self.path = path
        self.usable = usable


def _pack(payload: bytes, synced: int) -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"a frame holds at most {MAX_PAYLOAD} bytes, not {len(payload)}")
    crc = zlib.crc32(payload, zlib.crc32(_COVERED.pack(len(payload), synced)))
    return _HEADER.pack(MAGIC, len(payload), synced, crc) + payload


def _frame_at(fd: int, offset: int, size: int) -> tuple[Frame, int] | str:
    """The frame at an offset and what it calls synced, or in words why there is no whole one."""
    if size - offset < HEADER_BYTES:
        return f"{size - offset} bytes are too few for a frame"
    header = os.pread(fd, HEADER_BYTES, offset)
    if len(header) < HEADER_BYTES:
        return "the file ends inside a frame's header"
    magic, length, synced, crc = _HEADER.unpack(header)
    if magic != MAGIC:
        return "no frame begins here"
    end = offset + HEADER_BYTES + length
    if length > MAX_PAYLOAD or end > size:
        return f"the frame claims {length} bytes, more than there are"
    payload = os.pread(fd, length, offset + HEADER_BYTES)
    if len(payload) < length or zlib.crc32(payload, zlib.crc32(_COVERED.pack(length, synced))) != crc:
        return "the checksum does not match"
    return Frame(offset, payload, end), synced


def _synced_according_to_later_frames(fd: int, offset: int, size: int) -> int:
    """The highest length that a whole frame beyond a broken place calls synced; 0 where there is none."""
    chunk, synced = 1 << 20, 0
    while offset < size:
        data = os.pread(fd, chunk, offset)
        if not data:
            break
        found = data.find(MAGIC)
        if found < 0:
            # a magic may lie across the border of two chunks: step back by one byte, but always get on
            offset += max(len(data) - 1, 1)
            continue
        offset += found
        frame = _frame_at(fd, offset, size)
        if isinstance(frame, str):
            offset += 1
        else:
            synced = max(synced, frame[1])
            offset = frame[0].end
    return synced


def _scan(fd: int, path: Path, offset: int) -> Iterator[Frame]:
    """Whole frames from an offset on; ends before a tail that was never durable, raises ``Damaged`` on a loss."""
    size = os.fstat(fd).st_size
    promised = 0
    if offset > size:
        raise Damaged(path, size, offset, f"it ends there, before byte {offset} where a reader left off")
    while offset < size:
        found = _frame_at(fd, offset, size)
        if isinstance(found, str):
            promised = max(promised, _synced_according_to_later_frames(fd, offset + 1, size))
            if promised > offset:
                raise Damaged(path, offset, promised, found)
            return
        frame, synced = found
        promised = max(promised, synced)
        yield frame
        offset = frame.end
    if promised > offset:
        raise Damaged(path, offset, promised, "the file ends there")


def read_frames(path: str | os.PathLike[str], offset: int = 0) -> Iterator[Frame]:
    """The whole frames from an offset on (0, or the ``end`` of a frame read before), for readers beside a writer.

    Ends before an incomplete tail: the writer may be in the middle of it, so ask again later from the last ``end``. A
    frame seen here need not be durable yet. Raises ``Damaged``, and ``FileNotFoundError`` where there is no file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield from _scan(fd, Path(path), offset)
    finally:
        os.close(fd)


class FramedLog:
    """An append-only log with one writer. Appended frames are durable once ``sync`` has returned, not before.

    ``recovered`` says what opening had to cut off: ``None`` where the file was whole. After an error that leaves the
    state of the disk unknown (a failed sync above all: the kernel may have dropped the pages and would call the next
    sync a success) every further call raises ``LogFailed``; only opening the file afresh finds out what is there.
    """

    def __init__(self, path: Path, fd: int, end: int, recovered: Torn | None, *, later: bool = False) -> None:
        self.path = path
        self.recovered = recovered
        self._fd = fd
        self._end = end
        self._synced = 0 if later else end
        self._named = not later  # whether the file's name is durable
        self._failed: OSError | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, mode: int = 0o600, later: bool = False) -> FramedLog:
        """Opens a log for appending, creates it where it is missing, and cuts off a tail that was never durable.

        What it leaves is durable on return: an earlier writer may have died between a write and its sync, and nobody
        may act on a frame that the next power cut would take back. With ``later`` a new log is so after its first
        ``sync``: two syncs less, where nothing follows from it until then. Raises ``Damaged``, then changes nothing.
        """
        path = Path(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            end = 0
            for frame in _scan(fd, path, 0):
                end = frame.end
            size = os.fstat(fd).st_size
            recovered = None
            if end < size:
                recovered = Torn(end, size - end)
                os.ftruncate(fd, end)
            if later and not size:
                return cls(path, fd, end, recovered, later=True)
            sync_fd(fd)
            sync_dir(path.parent)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd, end, recovered)

    @property
    def end(self) -> int:
        """Length of the log in bytes: the offset of the next frame."""
        return self._end

    @property
    def synced(self) -> int:
        """Length up to which the log is known to be durable, in bytes."""
        return self._synced

    def append(self, payload: bytes) -> int:
        """Appends one frame and gives its offset. A failed append leaves nothing of the frame behind."""
        return self._write(_pack(payload, self._synced))

    def append_many(self, payloads: Iterable[bytes]) -> int:
        """Appends frames with one write and gives the offset of the first; a failed call leaves none of them behind.

        That is not a promise about crashes: until ``sync`` a power cut may keep any part of them.
        """
        return self._write(b"".join(_pack(each, self._synced) for each in payloads))

    def _write(self, data: bytes) -> int:
        self._check_usable()
        start = self._end
        try:
            write_all(self._fd, data, start)
        except BaseException as error:
            try:
                os.ftruncate(self._fd, start)
            except OSError as second:
                self._failed = second
            if not isinstance(error, OSError):
                raise
            raise LogFailed(self.path, "append to", error, usable=self._failed is None) from error
        self._end = start + len(data)
        return start

    def sync(self) -> None:
        """Makes every appended frame durable. Costs nothing where nothing was appended since the last call."""
        self._check_usable()
        end = self._end  # read first: a sync vouches for nothing that another thread appends meanwhile
        if self._synced == end and self._named:
            return
        try:
            sync_fd(self._fd, data_only=True)
            if not self._named:
                sync_dir(self.path.parent)
        except OSError as error:
            self._failed = error
            raise LogFailed(self.path, "make durable", error, usable=False) from error
        self._synced, self._named = end, True

    def frames(self) -> Iterator[Frame]:
        """Every frame of the log as it is now, the ones not yet synced included."""
        self._check_usable()
        return _scan(self._fd, self.path, 0)

    def replace(self, payloads: Iterable[bytes]) -> None:
        """Puts these frames in place of all others, durably: a crash shows the old log or the new one, whole."""
        self._check_usable()
        # Two passes: each frame carries the final length, because nobody sees this file before all of it is synced.
        bodies = list(payloads)
        total = sum(HEADER_BYTES + len(each) for each in bodies)
        try:
            write_atomic(
                self.path,
                b"".join(_pack(each, total) for each in bodies),
                mode=os.fstat(self._fd).st_mode & 0o777,
            )
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            # The old file may or may not be the one under the name: whoever goes on appending to it may write to
            # a file without a name.
            self._failed = error
            raise LogFailed(self.path, "replace", error, usable=False) from error
        os.close(self._fd)
        self._fd = fd
        self._end = self._synced = total
        self._named = True

    def _check_usable(self) -> None:
        if self._fd < 0:
            raise LogFailed(self.path, "use the closed log", None, usable=False)
        if self._failed is not None:
            raise LogFailed(self.path, "go on with", self._failed, usable=False)

    def close(self) -> None:
        """Closes the log without syncing it: what was not synced stays undurable, and closing never hides that."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> FramedLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.sync()
        self.close()
