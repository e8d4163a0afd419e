"""The job's side: writes one kind of awkward output, and leaves behind how much of it there was and its hashes.

``writer.py KIND SIZE ACCOUNT``: SIZE counts bytes, updates, characters or seconds, as the kind says. Standard library
only: it runs as a job. What it counts is what it wrote, so nothing of the product has a part in the figures.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

LINES_PER_S = 50_000


def flat(size: int) -> Iterator[tuple[int, bytes]]:
    """So many bytes of noise without a newline, in large writes that differ."""
    block = hashlib.shake_256(b"tenure").digest(1 << 20).replace(b"\n", b" ")
    for number in range(0, size, 1 << 20):
        part = b"%020d" % number + block[20:]
        yield 1, part[: size - number]


def bars(size: int) -> Iterator[tuple[int, bytes]]:
    """So many updates of a progress bar, each a write of its own, and now and then a word on the other stream."""
    for number in range(size):
        yield 1, b"\rstep %d of %d" % (number + 1, size)
        if number % 1000 == 0:
            yield 2, b"at %d\n" % number


def nuls(size: int) -> Iterator[tuple[int, bytes]]:
    """So many bytes of which nearly all are NUL, on both streams."""
    for number in range(0, size, 65536):
        yield 1 + number // 65536 % 2, (bytes(65535) + bytes([number // 65536 % 256]))[: size - number]


def emoji(size: int) -> Iterator[tuple[int, bytes]]:
    """So many characters of four bytes, byte by byte, with bytes of the other stream in between."""
    for number in range(size):
        for byte in chr(0x1F600 + number % 64).encode():
            yield 1, bytes([byte])
        yield 2, "é".encode()[number % 2 : number % 2 + 1]


def lines(size: int) -> Iterator[tuple[int, bytes]]:
    """For so many seconds 50,000 lines in each, every line a write of its own."""
    began = time.monotonic()
    for number in range(size * LINES_PER_S):
        if number % 500 == 0:
            time.sleep(max(0.0, number / LINES_PER_S - (time.monotonic() - began)))
        yield 1, b"%09d a line as a training loop writes them, loss=0.%06d\n" % (number, number * 7919 % 1_000_000)


KINDS = {"flat": flat, "bars": bars, "nuls": nuls, "emoji": emoji, "lines": lines}


def main(kind: str, size: int, account: str) -> None:
    """Writes it all, then the account: per stream the bytes and their SHA-256, and how long it took."""
    hashes = {1: hashlib.sha256(), 2: hashlib.sha256()}
    counts, writes = {1: 0, 2: 0}, 0
    began = time.monotonic()
    for fd, data in KINDS[kind](size):
        hashes[fd].update(data)
        counts[fd] += len(data)
        writes += 1
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    took = time.monotonic() - began
    streams = {
        name: {"bytes": counts[fd], "sha256": hashes[fd].hexdigest()} for fd, name in ((1, "stdout"), (2, "stderr"))
    }
    partial = Path(account + ".part")
    partial.write_text(json.dumps({"streams": streams, "writes": writes, "took_s": took}))
    partial.rename(account)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
