"""What must be ready before a command may start: its tree staged, its requirements met. Nothing is run before that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tenure.agent import records as r
from tenure.domain.job import Outcome

if TYPE_CHECKING:
    from tenure.agent.shell import Shell


async def make_ready(shell: Shell, attempt: r.Attempt, folder: Path) -> Outcome | None:
    """Makes an attempt's folder ready for its command; an outcome where the command must not be started.

    May be repeated for the same attempt by a later agent, and is ended early where the attempt is to be stopped.
    """
    if attempt.spec is not None and attempt.spec.stage:
        from tenure.agent import staging  # a job that stages nothing need not wait for it

        failed = await staging.stage(shell, attempt, folder)
        now = shell.state.attempts.get(attempt.key)
        if failed is not None or now is None or now.stop is not None:
            return failed
    if attempt.spec is not None and attempt.spec.needs:
        from tenure.agent import preflight  # a job that asks for nothing need not wait for it

        return await preflight.check(shell, attempt, folder)
    return None
