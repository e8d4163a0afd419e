"""Starts the embedded controller again when it is gone while something is owed to it.

Jobs outlive their controller, and so do their agent and its reports. Somebody has to bring the controller back even
when nobody types a command: the agent does. The controller's own lock decides if two are started at once.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time

from tenure.paths import Layout

log = logging.getLogger("tenure.agent.restart")

LONGEST_PAUSE_S = 60.0


class ControllerKeeper:
    """Starts controllers with growing pauses, and collects those that ended."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._children: list[subprocess.Popen[bytes]] = []
        self._pause = 3.0
        self._again_at = 0.0

    def look(self, gone_s: float, patience_s: float) -> bool:
        """Starts one where it has been gone for longer than ``patience_s``; gives whether it did."""
        self._children = [child for child in self._children if child.poll() is None]
        now = time.monotonic()
        if gone_s == 0.0:
            self._pause = 3.0
            return False
        if gone_s <= patience_s or now < self._again_at:
            return False
        self._again_at = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        try:
            with self._layout.controller_log.open("ab") as out:
                child = subprocess.Popen(
                    [sys.executable, "-m", "tenure.controller", "--embedded"],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    cwd="/",
                    env={**os.environ, "TENURE_HOME": str(self._layout.home)},
                    start_new_session=True,
                )
        except OSError as error:
            log.error("the controller could not be started: %s", error)
            return False
        log.info("the controller was gone for %.1f s: started one (pid %d)", gone_s, child.pid)
        self._children.append(child)
        return True
