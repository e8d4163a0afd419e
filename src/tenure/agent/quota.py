"""Beside a running attempt: tells once, when it happens, that its output has reached its quota.

The supervisor, which alone knows, says so with a record in the index; here that is looked for. The notice is made of
what stands there, so that a later agent which finds it again says the very same, and the controller keeps one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tenure.agent import records as r
from tenure.agent.shipper import quota_hit

if TYPE_CHECKING:
    from tenure.agent.runs import Run
    from tenure.agent.shell import Shell

LOOK_EVERY_S = 0.5


class OutputQuota:
    """The companion of one attempt."""

    def __init__(self, shell: Shell, run: Run) -> None:
        self._shell = shell
        self._run = run
        self._told = False

    async def run(self) -> None:
        """Looks until it was told, or until the attempt is over."""
        while not self._look():  # noqa: ASYNC110 - nothing wakes it: another process writes that record
            await asyncio.sleep(LOOK_EVERY_S)

    def measured(self) -> Mapping[str, Any]:
        """Nothing beyond the exit record; a last look, since the end may have come right after."""
        self._look()
        return {}

    def _look(self) -> bool:
        if not self._told and (hit := quota_hit(self._run.folder)) is not None:
            offset, at = hit
            words = (
                f"the output quota of {amount(offset)} is used up: what the job writes from here on is counted and "
                "not stored; the job goes on"
            )
            notice = {"kind": "output_quota", "words": words, "utc": at, "facts": {"quota_bytes": offset}}
            self._shell.tell(r.Noticed(*self._run.key, notice))
            self._told = True
        return self._told


def amount(count: int) -> str:
    """``8 GiB``, ``64 KiB``, ``1000 bytes``: exact, in the largest unit that is."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count and count % (1 << power) == 0:
            return f"{count >> power} {unit}"
    return f"{count} bytes"
