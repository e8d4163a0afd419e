"""``rc run --stage``: the tree goes to the controller before the job is submitted, with a line of progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from tenure.cli import session
from tenure.cli.options import Given, usage_error
from tenure.cli.text import note
from tenure.sdk import staging
from tenure.sdk.transport import Transport

#: Nothing is shown of what takes less than this; after that not more often than so.
_QUIET_S, _EVERY_S = 1.0, 0.2


def add(given: Given, body: dict[str, Any], connection: Transport) -> None:
    """Stages the folder that was given and puts what it came to into the request."""
    folder = given.text("stage")
    inside = given.text("cwd")
    if inside and not os.path.isabs(inside):  # noqa: PTH117
        body["cwd"] = None  # in the tree: the folder it would mean here need not be there
    shown = Progress()
    try:
        done = staging.stage(folder, connection, progress=shown.tell, revive=session.revive)
    finally:
        shown.close()
    body["stage"] = done.stage
    if inside and not os.path.isabs(inside):  # noqa: PTH117
        within = os.path.normpath(inside)
        if within.split("/")[0] == "..":
            raise usage_error(given.command, f"--cwd {inside}: with --stage a relative folder lies in the staged tree")
        body["stage"]["cwd"] = "" if within == "." else within
    for line in done.notes:
        note(line)


class Progress:
    """One line on a terminal that is written over again; nothing anywhere else."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._told = clock()
        self._shown = False

    def tell(self, doing: str, done: int, total: int) -> None:
        """Shows how far it is, if it takes long and there is a terminal."""
        now = self._clock()
        if now - self._began < _QUIET_S or now - self._told < _EVERY_S or not os.isatty(2):
            return
        self._told, self._shown = now, True
        if total:
            part = min(done / total, 1.0)
            bar = "#" * int(part * 24)
            said = f"{doing} the tree [{bar:<24}] {100 * part:3.0f} % of {total / 1e6:.0f} MB"
        else:
            said = f"{doing} the tree: {done / 1e6:.0f} MB"
        sys.stderr.write(f"\r\x1b[Krc: {said}")
        sys.stderr.flush()

    def close(self) -> None:
        """Takes the line away."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
