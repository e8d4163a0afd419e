"""Tells a job what others had left on its worker before it started: once, on its record."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tenure.agent import records as r
from tenure.durable import LogFailed

if TYPE_CHECKING:
    from tenure.agent.runs import Run
    from tenure.agent.shell import Shell

log = logging.getLogger("tenure.agent.leftovers")

#: A job that is over before this has it with its outcome alone, which costs no write of its own.
AFTER_S = 1.0


class AtStart:
    """A companion. What was there is taken when it is made, and kept in the attempt's folder for a later agent."""

    def __init__(self, shell: Shell, run: Run) -> None:
        self._shell = shell
        self._key = run.key
        self._file = run.folder / "leftovers.json"
        attempt = shell.state.attempts.get(run.key)
        here = attempt is not None and attempt.identity == shell.identity.triple
        self._found = shell.leftovers.at_start(run.key) if here and shell.options.leftovers else None
        self._told_here = here

    async def run(self) -> None:
        """Keeps it, and tells of it after a moment. An agent that took the attempt over tells nothing again."""
        if not self._told_here:
            self._found = await asyncio.to_thread(self._load)
            return
        if self._found is None or not self._found.get("words"):
            return
        await asyncio.to_thread(self._file.write_text, json.dumps(self._found))
        await asyncio.sleep(AFTER_S)
        notice = {
            "kind": "leftovers",
            "words": self._found["words"],
            "utc": time.time(),
            "facts": self._found,
        }
        try:
            self._shell.tell(r.Noticed(*self._key, notice))
        except LogFailed as error:  # it is with the outcome all the same
            log.error("%s", error)

    def measured(self) -> Mapping[str, Any]:
        """What was there at the start; nothing where no agent knows it any more."""
        return {"leftovers": self._found} if self._found is not None else {}

    def _load(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None
