"""``host.log``: what was sampled of the host beside one attempt, in its folder, so that the last sample survives.

Frames: ``{"begin": {"utc", "boot", "memory_total"}}`` (one for each agent that took the job up), ``{"utc", "at", "v",
"un"}`` (a sample) and ``{"block": ...}`` (older samples put together). Its owner syncs it after every sample, so that a
power cut takes two seconds of it at most.

Bounded: at ``RAW_MOST`` single samples (eight hours at one a second) the older half becomes blocks of a minute, which
keep minimum, maximum and mean of every value; at ``BLOCKS_MOST`` blocks neighbours of the older half are put together.
So no excursion is ever lost, only the minute in which it was, and a log stays below some 30 MiB however long the job.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tenure.domain import host_record as record
from tenure.durable import FramedLog, read_frames

RAW_MOST = 28_800
BLOCKS_MOST = 4096
BLOCK_S = 60.0
#: The last samples that are kept at hand, for what is said of the end.
RECENT = 12


@dataclass(slots=True)
class Account:
    """What a log says: every sample as one block, the last ones, and the boot they were taken in."""

    boot: str = ""
    memory_total: int | None = None
    whole: record.Block | None = None
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RECENT))
    raw: int = 0

    def take(self, frame: Mapping[str, Any]) -> None:
        """Adds one frame."""
        if "begin" in frame:
            self.boot = str(frame["begin"].get("boot", ""))
            self.memory_total = frame["begin"].get("memory_total")
            return
        if "block" in frame:
            block = record.block_from(frame["block"])
        else:
            block = record.block_of(frame)
            self.recent.append(dict(frame))
            self.raw += 1
        self.whole = block if self.whole is None else record.merged(self.whole, block)


class HostLog:
    """The log of one attempt, for one writer. ``append`` and ``sync`` may be called from different threads."""

    def __init__(self, path: Path) -> None:
        """Opens the log, or makes it; reads what an earlier agent wrote. Raises OSError or TenureError."""
        self._log = FramedLog.open(path, later=True)
        self._lock = threading.Lock()
        self.account = Account()
        for frame in self._log.frames():
            self.account.take(json.loads(frame.payload))

    def begin(self, boot: str, memory_total: int | None) -> None:
        """Says which boot the samples after it are of."""
        self._append({"begin": {"utc": time.time(), "boot": boot, "memory_total": memory_total}})

    def append(self, sample: Mapping[str, Any]) -> None:
        """Adds one sample; now and then puts older ones together."""
        self._append(sample)
        if self.account.raw >= RAW_MOST:
            self._thin()

    def _append(self, frame: Mapping[str, Any]) -> None:
        with self._lock:
            self._log.append(json.dumps(frame, separators=(",", ":")).encode())
        self.account.take(frame)

    def _thin(self) -> None:
        with self._lock:
            frames = [json.loads(frame.payload) for frame in self._log.frames()]
            begins = [frame for frame in frames if "begin" in frame]
            samples = [frame for frame in frames if "v" in frame]
            blocks = [record.block_from(frame["block"]) for frame in frames if "block" in frame]
            half = len(samples) // 2
            blocks = record.thinned([*blocks, *record.in_blocks(samples[:half], BLOCK_S)], BLOCKS_MOST)
            kept = [begins[-1:], [{"block": record.plain(block)} for block in blocks], samples[half:]]
            self._log.replace(json.dumps(one, separators=(",", ":")).encode() for part in kept for one in part)
            self.account.raw = len(samples) - half

    def sync(self) -> None:
        """Makes all of it durable. Waits for the disk."""
        with self._lock:
            self._log.sync()

    def close(self) -> None:
        """Closes it without a sync."""
        with self._lock:
            self._log.close()


def read(path: Path) -> Account | None:
    """What a log says, for a reader; None where there is none. Raises ``Damaged`` as ``read_frames`` does."""
    account = Account()
    try:
        for frame in read_frames(path):
            account.take(json.loads(frame.payload))
    except FileNotFoundError:
        return None
    return account
