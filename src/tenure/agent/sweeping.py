"""Lets go, on the host, of what was kept long enough: samples of old attempts, kept scratches, and scratch of nobody.

See ``tenure.domain.retention``. A round removes a bounded number of things; what an attempt on record still owns is
not looked at.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tenure.agent import folders, scratch
from tenure.agent import records as r
from tenure.agent.cleaning import Cleaner, Wish
from tenure.domain.retention import Retention

if TYPE_CHECKING:
    from tenure.agent.shell import Shell

log = logging.getLogger("tenure.agent.sweeping")

FIRST_S, PERIOD_S = 60.0, 3600.0
MOST = 500
_EVIDENCE = ("samples.log", "host.log")


async def run(shell: Shell) -> None:
    """Rounds for ever, beside everything else."""
    await asyncio.sleep(FIRST_S)
    while True:
        try:
            await asyncio.to_thread(
                one_round, shell.layout.attempts, lambda: shell.state.attempts, shell.options.retention
            )
        except OSError as error:
            log.error("a round of retention failed: %s", error)
        await asyncio.sleep(PERIOD_S)


def one_round(
    attempts: Path,
    on_record: Callable[[], Mapping[r.Key, r.Attempt]],
    retention: Retention,
    clock: Callable[[], float] = time.time,
    most: int = MOST,
) -> tuple[int, int]:
    """Removes what is due; gives how many attempts lost their samples and how many scratches went."""
    cleaner = Cleaner(attempts, on_record, clock)
    keep_s = retention.kept_scratch_s
    done = cleaner.clean(Wish(kept=keep_s is not None, older_than_s=keep_s or 0.0))
    samples = 0
    for folder in sorted(attempts.iterdir()) if retention.samples_s is not None else ():
        if samples >= most:
            break
        key, ended_at = folders.key_of(folder), scratch.ended_at(folder)
        if key is None or key in on_record() or ended_at is None or clock() - ended_at < (retention.samples_s or 0.0):
            continue
        gone = [name for name in _EVIDENCE if (folder / name).exists()]
        for name in gone:
            (folder / name).unlink(missing_ok=True)
        if gone:
            samples += 1
            folders.discard(folder)
    if samples or done.removed:
        log.info("retention: samples of %d attempts and %d scratches were removed", samples, len(done.removed))
    return samples, len(done.removed)
