"""The lock by which a process is the only one of its kind in a home: a flock on a file that also names its pid."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tenure.errors import TenureError


def hold(path: Path, running: str, do: str) -> int:
    """Takes the lock and writes this pid into its file; the descriptor holds it for as long as it is open.

    Close-on-exec, so that no child ever holds it. Raises ``already_running`` where another process has it: ``running``
    says what that is, with ``{pid}`` in its place, and ``do`` what to do about it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise TenureError(
            "already_running", running.replace("{pid}", holder), do=do, facts={"pid": holder, "path": str(path)}
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
