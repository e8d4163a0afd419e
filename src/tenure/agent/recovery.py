"""What a fresh agent does with what the one before it left: adopt, finish, name, clean up.

For every attempt in the journal: a supervisor that lives is watched on; an exit record is reported; a supervisor that
is gone without one is a lost attempt, named by boot and namespace; and an attempt that was accepted and provably never
started is started now: its token is durable and it is the same attempt. It is never started twice: the supervisor's
own record is published under a name that can be taken once.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from tenure.agent import adopt, folders, lost, scratch
from tenure.agent import records as r

if TYPE_CHECKING:
    from tenure.agent.shell import Shell

log = logging.getLogger("tenure.agent.recovery")


async def recover(shell: Shell) -> None:
    """Takes up every attempt of the journal, then removes folders that no attempt needs any more."""
    for attempt in list(shell.state.attempts.values()):
        try:
            await _take_up(shell, attempt)
        except Exception:  # one that cannot be taken up must not keep the others waiting
            log.exception("taking up %s#%d failed", *attempt.key)
    await asyncio.to_thread(_sweep, shell.layout.attempts, set(shell.state.attempts))
    await asyncio.to_thread(shell.memory_ceilings.sweep)


async def _take_up(shell: Shell, attempt: r.Attempt) -> None:
    key, folder = attempt.key, shell.layout.attempt(*attempt.key)
    if attempt.phase == "ended":
        if (folder / "exit.json").exists():  # the agent before this one may have died before it was removed
            shell.aside(asyncio.to_thread(scratch.finish, folder))
        if attempt.output_acked < attempt.output_bytes:
            _ship_rest(shell, attempt, folder)
        if attempt.unproved:
            shell.prover.look(key)
        return
    shell.shipper.add(key, folder, attempt.output_acked)
    begun = (folder / "supervisor.json").exists() or (folder / "exit.json").exists()
    wanted = attempt.phase == "accepted" and not lost.rebooted(shell, attempt)
    if not begun and wanted and (attempt.stop is None or not folder.exists()):
        # Whoever may still be about to begin it (the last agent's spawner) and this start meet at the supervisor's
        # record, which is created exclusively: one of them wins.
        log.info("%s#%d was accepted and not started: starting it now", *key)
        shell.runs.start(key)
        return
    if not begun and not folder.exists():
        found: adopt.Alive | adopt.Ended | adopt.Lost = adopt.Lost("unreadable", f"{folder} is not there")
    else:
        found = await asyncio.to_thread(adopt.examine, folder)
    if isinstance(found, adopt.Lost) and found.reason == "never_started" and attempt.phase == "accepted":
        shell.tell(r.NotStarted(*key, found.detail))
        return
    if isinstance(found, adopt.Alive):
        log.info("%s#%d goes on under its supervisor, pid %d", *key, found.handle.pid)
    shell.runs.take_up(key, found)


def _ship_rest(shell: Shell, attempt: r.Attempt, folder: Path) -> None:
    if (folder / "output.bin").exists():
        shell.shipper.add(attempt.key, folder, attempt.output_acked)
        return
    missing = attempt.output_bytes - attempt.output_acked
    log.error("%d bytes of the output of %s#%d are gone from %s", missing, *attempt.key, folder)
    shell.tell(r.OutputTaken(*attempt.key, attempt.output_bytes))


def _sweep(attempts: Path, known: set[r.Key]) -> None:
    """Removes what attempts that were forgotten left behind, after a crash between forgetting and deleting.

    Only where the exit record says that nothing runs; a folder without one may be somebody's whom we know nothing of.
    """
    for folder in attempts.iterdir():
        key = folders.key_of(folder)
        if key is None or key in known or not (folder / "exit.json").exists():
            continue
        folders.discard(folder)
