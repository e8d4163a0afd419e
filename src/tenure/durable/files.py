"""Atomic files and durable folders: what makes a byte safe is one rule with two halves.

A file's content is safe after a successful fsync of that file, and its *name* is safe after a successful fsync of the
folder that holds the name. Everything here is that rule, spelt out. The crash tests undo whatever was not followed by
the right fsync and hold both halves, because killing a process proves nothing: the page cache survives it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sys
from pathlib import Path

_TEMPORARY = ".tenure-tmp-"
_counter = itertools.count()


def sync_fd(fd: int, *, data_only: bool = False) -> None:
    """Makes a file's content durable. On macOS fsync stops at the drive's cache, so the full sync is asked for."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    elif data_only:
        os.fdatasync(fd)  # still writes the new size of the file, which is metadata needed to read the data back
    else:
        os.fsync(fd)


def sync_dir(path: str | os.PathLike[str]) -> None:
    """Makes the names in a folder durable: what was created, renamed or removed in it before this call."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_fd(fd)
    finally:
        os.close(fd)


def make_dirs(path: str | os.PathLike[str], mode: int = 0o700) -> None:
    """Creates a folder and its missing parents, durably. A folder that is there already keeps its mode."""
    missing = []
    folder = Path(path).absolute()
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    # Folders are made top down, each synced before the next: so of those that exist, only the deepest may stem from a
    # call that was killed before its sync. A parent that we may not read is not one that we made things in.
    with contextlib.suppress(PermissionError):
        sync_dir(folder.parent)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):  # somebody else was quicker; the sync is owed all the same
            each.mkdir(mode)
        sync_dir(each.parent)
        if not each.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(each))


def write_all(fd: int, data: bytes, offset: int) -> None:
    """Writes all of the data at an offset; pwrite may stop early."""
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view = view[done:]
        offset += done


def write_atomic(path: str | os.PathLike[str], data: bytes, *, mode: int = 0o600) -> None:
    """Replaces a file's content so that any reader, and any crash, sees the old content or the new, whole.

    On return the new content is durable. On an error the old content is untouched, except that an error of the last
    step (the sync of the folder) leaves open which of the two a crash would show.
    """
    target = Path(path)
    temporary = target.parent / f".{target.name}{_TEMPORARY}{os.getpid()}-{next(_counter)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        try:
            write_all(fd, data, 0)
            sync_fd(fd)
        finally:
            os.close(fd)
        temporary.rename(target)
    except BaseException as error:
        with contextlib.suppress(OSError):  # the error that matters is the one on its way up
            temporary.unlink()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(target)  # of a write the system tells the number alone
        raise
    sync_dir(target.parent)


def remove_temporaries(folder: str | os.PathLike[str]) -> int:
    """Removes what killed calls of ``write_atomic`` left in a folder, gives the count. Only for its one writer."""
    count = 0
    for entry in Path(folder).iterdir():
        if entry.name.startswith(".") and _TEMPORARY in entry.name:
            entry.unlink(missing_ok=True)
            count += 1
    return count
