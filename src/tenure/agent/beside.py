"""What goes on beside a running attempt: the companions that watch it, each with its own reason to.

A companion begins when the command runs (or is adopted by a fresh agent) and ends when its supervisor is gone. It may
tell of something (``r.Noticed``), ask for the end (``r.Overran``), and at the end hands over what it measured, which
becomes part of the outcome. One that fails is logged and named in the outcome; it never takes the job with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tenure.agent.quota import OutputQuota
from tenure.agent.telemetry import Telemetry

if TYPE_CHECKING:
    from tenure.agent.runs import Run
    from tenure.agent.shell import Shell

log = logging.getLogger("tenure.agent.beside")

#: How long a companion may take to hand over what it measured; the report of the end waits for no more.
LAST_S = 0.25


class Companion(Protocol):
    """One watcher of one attempt."""

    async def run(self) -> None:
        """Watches until cancelled. May return early where there is nothing (more) to watch."""

    def measured(self) -> Mapping[str, Any]:
        """What goes into the outcome's ``stats``. Asked once, after ``run`` has ended; quick, and no I/O that waits."""


def companions_of(shell: Shell, run: Run) -> Sequence[Companion]:
    """Who watches beside this attempt. What one needs is loaded where there is one: a plain start waits for nobody."""
    found: list[Companion] = [OutputQuota(shell, run), Telemetry(shell, run)]
    attempt = shell.state.attempts.get(run.key)
    spec = attempt.spec if attempt is not None else None
    if attempt is None or spec is None:
        return found
    if spec.max_runtime_s or spec.idle_timeout_s or shell.options.bounds or run.adopted:
        from tenure.agent.bounds import BoundsWatch

        found.append(BoundsWatch(shell, run))
    if spec.needs:
        from tenure.agent.preflight import Told

        found.append(Told(run.folder))
    if shell.options.leftovers:
        from tenure.agent.leftovers_beside import AtStart

        found.append(AtStart(shell, run))
    return found


class Beside:
    """The companions of one attempt, as tasks."""

    def __init__(self, shell: Shell, run: Run, make: Callable[[Shell, Run], Sequence[Companion]] | None = None) -> None:
        self._name = f"{run.key[0]}#{run.key[1]}"
        self._companions = (make or companions_of)(shell, run)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins all of them."""
        for companion in self._companions:
            name = f"{type(companion).__name__} {self._name}"
            self._tasks.append(asyncio.create_task(companion.run(), name=name))

    async def stop(self) -> dict[str, Any]:
        """Ends all of them, waits a moment for each, and gives what they measured."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_S)
        measured: dict[str, Any] = {}
        troubles = []
        for companion, task in zip(self._companions, self._tasks, strict=True):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                log.error("%s of %s failed: %s", type(companion).__name__, self._name, error, exc_info=error)
                troubles.append(f"{type(companion).__name__}: {error}")
            try:
                measured.update(companion.measured())
            except Exception as error:  # what one cannot tell must not keep the end from being told
                log.exception("%s of %s could not tell what it measured", type(companion).__name__, self._name)
                troubles.append(f"{type(companion).__name__}: {error}")
        if troubles:
            measured["watchers_failed"] = troubles
        return measured
