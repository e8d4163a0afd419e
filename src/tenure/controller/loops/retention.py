"""Lets go of what was kept long enough (``tenure.domain.retention``): output, staged trees and, where asked, history.

A round looks at a bounded number of things and removes a bounded number; what is left over waits for the next. Nothing
goes that an open job needs, nor output of which something is still on its way. Times are compared with those that this
controller wrote down itself; a clock set back makes things stay longer, and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tenure.controller.logs import Log
from tenure.controller.service import Controller
from tenure.domain.job import Job, JobState
from tenure.errors import TenureError

log = Log("tenure.controller.retention")

#: Seconds from the start to the first round, and between two.
FIRST_S, PERIOD_S = 30.0, 600.0
#: Outputs and jobs that one round removes, at most.
MOST = 200


async def keep_retention(service: Controller, first_s: float = FIRST_S, period_s: float = PERIOD_S) -> None:
    """Rounds for ever. One that fails is logged, and the next tries again."""
    await asyncio.sleep(first_s)
    while True:
        try:
            await one_round(service)
        except (OSError, TenureError) as error:
            log.error("retention_round_failed", why=str(error))
        await asyncio.sleep(period_s)


async def one_round(service: Controller, clock: Callable[[], float] = time.time, most: int = MOST) -> dict[str, int]:
    """Removes what is due, at most ``most`` of a kind; gives how many of each went. ``clock`` gives UTC seconds."""
    await service.writer.settled()
    kept = service.settings.retention
    open_jobs = list(service.state.jobs.values())
    needed = {str(job.spec.stage["hash"]) for job in open_jobs if job.spec.stage}
    trees = await asyncio.to_thread(service.stages.sweep, needed, kept.staged_s, most=most)
    outputs = 0
    if kept.output_s is not None:
        opened = {job.id for job in open_jobs}
        due = await asyncio.to_thread(_outputs, service, opened, clock() - kept.output_s, most)
        shut = [path for path, job, attempt in due if service.outputs.closed(job, attempt)]
        outputs = await asyncio.to_thread(_removed, shut)
    jobs: list[str] = []
    if kept.history_s is not None:
        jobs = await service.writer.forget(clock() - kept.history_s, most)
        await asyncio.to_thread(_unreachable, service.layout.output, jobs)
    gone = {"staged": len(trees), "output": outputs, "history": len(jobs)}
    if any(gone.values()):
        log.info("retention", **gone)
    return gone


def _outputs(service: Controller, opened: set[str], before: float, most: int) -> list[tuple[Path, str, int]]:
    """The output of jobs that ended before a time: (its file, the job, the attempt)."""
    due: list[tuple[Path, str, int]] = []
    for path in _old(service.layout.output, before):
        if len(due) >= most:
            break
        job_id, _, attempt = path.stem.rpartition(".")
        job = None if job_id in opened else service.ledger.job(job_id)
        if job is not None and _is_due(job, before) and _is_whole(service, job, path):
            due.append((path, job_id, int(attempt)))
    return due


def _removed(paths: list[Path]) -> int:
    for path in paths:
        path.unlink(missing_ok=True)
        path.with_suffix(".idx").unlink(missing_ok=True)
    return len(paths)


def _unreachable(folder: Path, jobs: list[str]) -> None:
    """Removes the output of jobs that are forgotten: nobody can ask for it any more."""
    for job in jobs:
        for path in folder.glob(f"{job}.*"):
            path.unlink(missing_ok=True)


def _old(folder: Path, before: float) -> Iterator[Path]:
    """Output files that nothing was added to since a time."""
    for path in sorted(folder.glob("*.bin")):
        try:
            if path.stat().st_mtime < before:
                yield path
        except FileNotFoundError:
            continue


def _is_due(job: Job, before: float) -> bool:
    return job.state is JobState.ENDED and job.ended_at is not None and job.ended_at < before


def _is_whole(service: Controller, job: Job, path: Path) -> bool:
    """Whether nothing of this attempt's output can still be on its way here."""
    attempt = int(path.stem.rpartition(".")[2])
    return attempt != job.attempt or path.stat().st_size >= (job.output_bytes or 0)
