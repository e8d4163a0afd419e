"""What every host last told of its image and of what jobs left on it.

No part of the fleet's state: nothing is decided by it, and each telling supersedes the one before. So it makes no
event and no registration, and is kept in one small file a host, written when more than the time of the look changed:
a host that is away is still told of as it was last seen.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenure.controller.logs import Log
from tenure.durable import make_dirs, write_atomic

log = Log("tenure.controller.left")

#: What a host may tell, in bytes of JSON. Agents cap what they send far below it.
MAX_BYTES = 1 << 20
#: What changes with every look and is not worth a write.
_PASSING = ("looked_at", "looked_after", "looks", "scratch")


class LeftStore:
    """What agents told, by agent. Read from ``folder`` once, in the beginning."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told: dict[str, Mapping[str, Any]] = {}
        self._waiting: dict[str, Mapping[str, Any]] = {}
        self._writing: asyncio.Task[None] | None = None
        self._read()

    def _read(self) -> None:
        for file in sorted(self._folder.glob("*.json")):
            try:
                body = json.loads(file.read_bytes())
                self._told[str(body["agent"])] = body["told"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("left_unreadable", path=str(file), why=str(error))  # its host tells it again

    def take(self, agent: str, told: object) -> None:
        """Takes what an agent told. What is no account of a host, or too large for one, is refused and logged."""
        if not isinstance(told, dict) or not isinstance(told.get("jobs"), dict):
            log.warning("left_refused", agent=agent, why="it is no account of a host")
            return
        if len(json.dumps(told)) > MAX_BYTES:
            log.warning("left_refused", agent=agent, why=f"over {MAX_BYTES} bytes")
            return
        before = self._told.get(agent)
        self._told[agent] = told
        if before is None or _lasting(before) != _lasting(told):
            self._waiting[agent] = told
            if self._writing is None or self._writing.done():
                self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._waiting:
            agent, told = self._waiting.popitem()
            try:
                await asyncio.to_thread(self._save, agent, told)
            except OSError as error:
                log.warning("left_not_kept", agent=agent, why=str(error))  # the host tells it again

    def _save(self, agent: str, told: Mapping[str, Any]) -> None:
        make_dirs(self._folder)
        name = "".join(c if c.isalnum() else "_" for c in agent)[:100]
        write_atomic(self._folder / f"{name}.json", json.dumps({"agent": agent, "told": told}).encode())

    def of_agent(self, agent: str) -> Mapping[str, Any] | None:
        """What an agent told last; None where it told nothing."""
        return self._told.get(agent)

    def of_job(self, job: str) -> dict[str, Any] | None:
        """What a job left, or may have left, on any host, as the hosts last told; None where nothing is known.

        ``count`` is 0 where its host looked after it and found nothing of it.
        """
        for agent, told in self._told.items():
            found = told["jobs"].get(job)
            if isinstance(found, dict):
                return {"agent": agent, "looked_at": told.get("looked_at"), **found}
            if job in told.get("looked_after", ()):
                return {"agent": agent, "looked_at": told.get("looked_at"), "words": "", "count": 0}
        return None

    async def close(self) -> None:
        """Waits until what was to be kept is kept."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)


def _lasting(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name not in _PASSING}
