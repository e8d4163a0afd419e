"""What a folder takes on disk: the blocks of every file in it, counted once each, with a deadline and a bound.

The difference of free room before and after is no such figure: it holds what everybody else wrote and removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value

INSTRUMENT = "stat.blocks"
MOST_ENTRIES = 100_000
_BLOCK = 512  # of st_blocks, whatever the file system's own are


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of disk under a folder and how many entries it has; sparse files count what they take."""

    bytes: int
    entries: int


def usage(
    path: str, *, deadline_s: float = 0.25, most: int = MOST_ENTRIES, clock: Callable[[], float] = time.monotonic
) -> Reading[Usage]:
    """Walks the folder. Links are not followed, other file systems not entered, files with several names counted once.

    Not atomic: what is written or removed meanwhile may be missing or counted. Unavailable where the walk would take
    longer than ``deadline_s`` or meets more than ``most`` entries, with the lower bound that it had come to.
    """
    at = clock()
    total = entries = 0
    seen: set[int] = set()
    try:
        root = os.lstat(path)
    except OSError as problem:
        return Unavailable(Reason.NOT_SUPPORTED, at, INSTRUMENT, Scope.PROCESS, problem.strerror or "")
    total += root.st_blocks * _BLOCK
    pending = [path]
    while pending:
        try:
            listing = os.scandir(pending.pop())
        except FileNotFoundError:
            continue  # removed meanwhile
        except OSError as problem:
            return Unavailable(Reason.NO_PERMISSION, at, INSTRUMENT, Scope.PROCESS, f"{path}: {problem.strerror}")
        with listing:
            for entry in listing:
                entries += 1
                if entries > most or clock() - at > deadline_s:
                    why = f"{entries} entries in {clock() - at:.2f} s and not through: at least {total} bytes"
                    return Unavailable(Reason.TIMEOUT, at, INSTRUMENT, Scope.PROCESS, why)
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # removed meanwhile
                if found.st_dev != root.st_dev or found.st_ino in seen:
                    continue
                if found.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                    seen.add(found.st_ino)
                total += found.st_blocks * _BLOCK
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return Value(Usage(total, entries), at, INSTRUMENT, Scope.PROCESS)
