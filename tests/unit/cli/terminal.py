"""A terminal as far as the output of jobs needs one: UTF-8, carriage return, new line, and lines that grow and change.

Fed by a real pty (which turns each new line into carriage return and new line). A byte that is not UTF-8 shows as
U+FFFD, as it does on a real one: so a character that was torn is seen.
"""

from __future__ import annotations

import codecs
import os
import pty
import select
import threading
from collections.abc import Callable


class Terminal:
    """What the screen shows: ``lines`` from the first on, and how often a character came out torn."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = [[]]
        self.column = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> None:
        """Shows what a program wrote."""
        for one in self._decode.decode(data):
            if one == "\r":
                self.column = 0
            elif one == "\n":
                self.rows.append([])
            elif one == "\b":
                self.column = max(0, self.column - 1)
            else:
                row = self.rows[-1]
                row += " " * (self.column + 1 - len(row))
                row[self.column] = one
                self.column += 1

    @property
    def lines(self) -> list[str]:
        """The lines as they stand, without blanks at their ends."""
        return ["".join(row).rstrip() for row in self.rows]


def on_a_terminal(work: Callable[[int], object]) -> tuple[Terminal, bytes]:
    """Lets ``work`` write to the slave side of a pty; gives what a terminal on the other side shows, and the bytes."""
    master, slave = pty.openpty()
    raw = bytearray()

    def read() -> None:
        while True:
            ready, _, _ = select.select([master], [], [], 30)
            try:
                data = os.read(master, 65536) if ready else b""
            except OSError:  # the last writer closed it
                return
            if not data:
                return
            raw.extend(data)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        work(slave)
    finally:
        os.close(slave)
        reading.join(60)
        os.close(master)
    shown = Terminal()
    shown.feed(bytes(raw))
    return shown, bytes(raw)
