"""Files that survive a crash: atomic replacement, and an append-only log of checksummed frames."""

from tenure.durable.files import make_dirs, remove_temporaries, sync_dir, sync_fd, write_atomic
from tenure.durable.framed import (
    HEADER_BYTES,
    MAGIC,
    MAX_PAYLOAD,
    Damaged,
    Frame,
    FramedLog,
    LogFailed,
    Torn,
    read_frames,
)

__all__ = [
    "HEADER_BYTES",
    "MAGIC",
    "MAX_PAYLOAD",
    "Damaged",
    "Frame",
    "FramedLog",
    "LogFailed",
    "Torn",
    "make_dirs",
    "read_frames",
    "remove_temporaries",
    "sync_dir",
    "sync_fd",
    "write_atomic",
]
