"""Staged trees on the controller's disk: received in pieces, held against their hash, kept once each.

``<hash>.tree`` holds the stream of a tree (see ``tenure.domain.tree``) whose hash was worked out here from its bytes;
its time of change says when it was last asked for. ``<upload>.part`` is one on its way. A piece is appended at the
offset it names, so whoever sends may ask how much is here and go on, through any break and any restart; a tree is
there whole or not at all.

The ledger lies on the same disk, so an upload stops well before that disk is full.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import threading
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from tenure.domain.tree import Nowhere, TreeError, read_tree
from tenure.durable import sync_dir, sync_fd
from tenure.durable.files import write_all
from tenure.errors import TenureError

#: Bytes of one tree, at most, where the settings say nothing else.
LIMIT_BYTES = 8 << 30
#: Of the disk this much stays free, or a twentieth of it where that is less.
RESERVE_BYTES = 256 << 20
PAGE = 1 << 20
_HASH = re.compile(r"[0-9a-f]{64}")
_UPLOAD = re.compile(r"[0-9a-z]{8,64}")


class StageStore:
    """The trees that are here. Its methods block (all but ``send``) and may be called from any thread.

    One upload is for one sender; two that send at once each get what they sent refused or taken whole. ``clock`` gives
    UTC seconds.
    """

    def __init__(self, folder: Path, *, limit_bytes: int = LIMIT_BYTES, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._clock = clock
        self._appending = threading.Lock()

    # -- looking

    def path(self, tree: str) -> Path:
        """Where a tree lies, if it is here. Raises ``invalid_request`` for what is no hash."""
        if not _HASH.fullmatch(tree):
            raise TenureError("invalid_request", f"{tree[:80]!r} is no hash of a tree: 64 hexadecimal digits")
        return self.folder / f"{tree}.tree"

    def size(self, tree: str) -> int | None:
        """The bytes of a tree's stream, ``None`` where it is not here. Counts as having been asked for."""
        path = self.path(tree)
        try:
            now = self._clock()
            os.utime(path, (now, now))
            return path.stat().st_size
        except FileNotFoundError:
            return None

    async def send(self, tree: str) -> AsyncGenerator[bytes, None]:
        """The stream of a tree in pieces; reads no further ahead than one."""
        with self.path(tree).open("rb", buffering=0) as file:
            while piece := file.read(PAGE):  # from a local disk, and mostly from memory: a thread would cost more
                yield piece

    # -- receiving

    def _part(self, upload: str) -> Path:
        if not _UPLOAD.fullmatch(upload):
            raise TenureError("invalid_request", f"{upload[:80]!r} is no name of an upload: 8 to 64 letters and digits")
        return self.folder / f"{upload}.part"

    def received(self, upload: str) -> int:
        """How many bytes of an upload are here."""
        try:
            return self._part(upload).stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, upload: str, offset: int, data: bytes) -> int:
        """Adds a piece and gives how many bytes are here now. One that does not begin at the end changes nothing.

        Raises ``disk_full`` (then nothing of the upload is left here) and ``invalid_request`` beyond the limit.
        """
        with self._appending:  # whoever sends again after a break may overtake what broke
            return self._append(upload, offset, data)

    def _append(self, upload: str, offset: int, data: bytes) -> int:
        path = self._part(upload)
        have = self.received(upload)
        if offset != have or not data:
            return have
        if have + len(data) > self.limit_bytes:
            path.unlink(missing_ok=True)
            raise too_large(have + len(data), self.limit_bytes)
        try:
            self._check_room(len(data))
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                write_all(fd, data, have)
            finally:
                os.close(fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._full(len(data)) from error
            raise TenureError(
                "io_error", f"{path} cannot be written: {error.strerror}", facts={"path": str(path)}
            ) from error
        return have + len(data)

    def finish(self, upload: str, tree: str) -> int:
        """Takes an upload in as the tree of that hash, durably, and gives its bytes. Again and again is fine.

        Raises ``stage_failed`` where its bytes are no tree, or another: then nothing of it is left here.
        """
        target, part = self.path(tree), self._part(upload)
        if not part.exists() and (there := self.size(tree)) is not None:
            return there
        try:
            with part.open("rb", buffering=PAGE) as file:
                found = read_tree(file.read, Nowhere())
                size = file.tell()
                if found != tree:
                    raise TreeError(f"its hash is {found}, not {tree}")
                sync_fd(file.fileno())
        except FileNotFoundError as error:
            raise TenureError("stage_failed", f"nothing of the upload {upload} is here", do="send it again") from error
        except TreeError as error:
            part.unlink(missing_ok=True)
            raise TenureError(
                "stage_failed", f"what was uploaded is not the tree it was said to be: {error}", do="send it again"
            ) from error
        with contextlib.suppress(FileNotFoundError):  # the same request, sent again, was quicker
            part.rename(target)
        sync_dir(self.folder)
        return size

    def announced(self, size: int) -> None:
        """Refuses a tree of so many bytes at once where there will be no place for it."""
        if size > self.limit_bytes:
            raise too_large(size, self.limit_bytes)
        try:
            self._check_room(size)
        except OSError as error:
            raise self._full(size) from error

    def _check_room(self, size: int) -> None:
        disk = shutil.disk_usage(self.folder)
        if disk.free - size < min(RESERVE_BYTES, disk.total // 20):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))

    def _full(self, size: int) -> TenureError:
        free = shutil.disk_usage(self.folder).free
        return TenureError(
            "disk_full",
            f"the controller has no room for {size} more bytes of a staged tree: {free} are free in {self.folder}",
            do="make room there, or stage less; some of it always stays free for the ledger",
            facts={"path": str(self.folder), "free_bytes": free, "wanted_bytes": size},
        )

    # -- letting go

    def sweep(self, needed: set[str], keep_s: float | None, part_s: float = 86_400.0, most: int = 200) -> list[str]:
        """Removes trees that no open job needs and nobody asked for in ``keep_s`` seconds (``None``: never), and
        uploads that stood still for ``part_s``; at most so many. Gives the names of what was removed."""
        gone: list[str] = []
        now = self._clock()
        for entry in sorted(self.folder.iterdir()):
            if len(gone) >= most:
                break
            age = now - entry.stat().st_mtime
            old = entry.suffix == ".tree" and keep_s is not None and age > keep_s and entry.stem not in needed
            if old or (entry.suffix == ".part" and age > part_s):
                entry.unlink(missing_ok=True)
                gone.append(entry.name)
        return gone


def too_large(size: int, limit: int) -> TenureError:
    """The error of a tree that is larger than any may be here."""
    return TenureError(
        "invalid_request",
        f"the staged tree is larger than the {limit} bytes that one may have here ({size} and perhaps more)",
        do="leave large data out of the tree (.gitignore) and read it where it lies; the limit is stage_limit_bytes "
        "in embedded.json",
        facts={"limit_bytes": limit},
    )
