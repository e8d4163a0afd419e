"""A job as a stream of lines: its state whenever that changes, its output as it comes, and its end.

Lines are JSON objects: ``job``, ``output`` (base64, with offset and stream), ``gap``, ``beat``, ``ended``, ``error``;
where only what is here now is asked for, ``end`` is the last. A ``gap`` stands where bytes are missing, with how many,
of which stream where that is known, and why: ``disk`` and ``quota`` were never stored, ``not_arrived`` may still come.
``ended`` and ``end`` say how much is ``held`` here. A client that loses the stream goes on at the offset after the last
byte it has. Nothing is read ahead of the client: a page of output is read when the one before it has gone out, so a
slow reader costs a page and no more.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from tenure.controller.attempt_output import STREAMS, Run
from tenure.controller.feed import wait_for
from tenure.controller.logs import Log
from tenure.controller.replies import encode
from tenure.controller.service import Controller
from tenure.controller.views import job_view
from tenure.domain.job import Job, JobState
from tenure.errors import TenureError

log = Log("tenure.controller.follow")

NDJSON = "application/x-ndjson"
BEAT_S = 5.0
#: Bytes of output read and sent at a time.
PAGE = 128 * 1024
#: How long an ended job's last output may take to arrive before the gap is told and the stream ends. Longer than the
#: agent's keeper may wait before it starts one that died again and again.
TAIL_S = 30.0


_WHY = {
    "disk": "the disk of the job's host refused them",
    "quota": "the output quota was used up",
    "unknown": "they were lost where they were written",
    "not_arrived": "these bytes have not arrived from the host; they are kept there and follow when it answers",
    "let_go": "they were kept as long as output is kept, and removed (rc status: how long)",
}


def _line(body: Mapping[str, Any]) -> bytes:
    return encode(body).encode("ascii") + b"\n"


async def follow_job(
    service: Controller,
    job_id: str,
    offset: int,
    *,
    stream: str = "both",
    since: float | None = None,
    beat_s: float = BEAT_S,
    tail_s: float = TAIL_S,
) -> AsyncGenerator[bytes, None]:
    """The stream of one job from ``offset`` of its output on, ``stream`` both or one of stdout and stderr; with
    ``since`` (UTC) from the first byte that was read then or later.

    Ends with ``ended``; or with ``error`` where it cannot go on; or with neither, when the controller goes down.
    """
    try:
        async with aclosing(_follow(service, job_id, offset, stream, since, beat_s, tail_s)) as lines:
            async for line in lines:
                yield line
    except (TenureError, OSError) as error:
        log.error("follow_failed", error=error, job=job_id)
        told = error if isinstance(error, TenureError) else TenureError("io_error", f"output of {job_id}: {error}")
        yield _line({"type": "error", "error": told.to_dict()})


async def _follow(
    service: Controller, job_id: str, offset: int, stream: str, since: float | None, beat_s: float, tail_s: float
) -> AsyncGenerator[bytes, None]:
    shown = -1
    moved_at, over = asyncio.get_running_loop().time(), False
    if since is not None:
        offset = await _since(service, await service.job(job_id), offset, since)
    with service.feed.watch(job_id) as changed:
        while True:
            changed.clear()
            job = await service.job(job_id)
            if (
                job.state is JobState.ENDED and not over
            ):  # the tail is waited for from here on, however long it was quiet
                moved_at, over = asyncio.get_running_loop().time(), True
            if job.version != shown and not over:
                shown = job.version
                yield _line({"type": "job", "job": _view(service, job)})
            page = await _page(service, job, offset)
            for run, data in page:
                offset = run.offset + len(data)
                if since is not None and run.at < since:
                    continue  # the job had not begun, or was quiet, when its output was looked through
                since = None
                if stream in ("both", STREAMS[run.stream]):
                    yield _output_line(run, data)
            now = asyncio.get_running_loop().time()
            if page:
                moved_at = now
                continue
            missing = (job.output_bytes or 0) - offset
            if over and (missing <= 0 or now - moved_at >= tail_s or _let_go(service, job)):
                for line in _missing_at_end(service, job, offset, stream):
                    yield line
                yield _line({"type": "ended", "job": _view(service, job), "held": _held(service, job)})
                return
            if service.feed.closing:
                return
            if not await wait_for(changed, min(beat_s, 0.5) if over else beat_s) and not over:
                yield _line({"type": "beat"})


async def output_now(
    service: Controller, job_id: str, offset: int, *, stream: str = "both", since: float | None = None
) -> AsyncGenerator[bytes, None]:
    """The output that is here now, from ``offset`` on, after one line with the job as it is."""
    job = await service.job(job_id)
    if since is not None:
        offset = await _since(service, job, offset, since)
    yield _line({"type": "job", "job": _view(service, job)})
    end = _held(service, job)
    while offset < end and (page := await _page(service, job, offset)):
        for run, data in page:
            offset = run.offset + len(data)
            if stream in ("both", STREAMS[run.stream]):
                yield _output_line(run, data)
    for line in _missing_at_end(service, job, offset, stream):
        yield line
    yield _line({"type": "end", "offset": offset, "held": end})


async def _since(service: Controller, job: Job, offset: int, since: float) -> int:
    return max(offset, await service.outputs.since(job.id, job.attempt, since)) if job.attempt else offset


def _held(service: Controller, job: Job) -> int:
    return service.outputs.size(job.id, job.attempt) if job.attempt else 0


def _missing_at_end(service: Controller, job: Job, offset: int, stream: str) -> list[bytes]:
    """The gaps after the last byte that is here, of a job that is over: what has not arrived, and what was not stored
    after the last byte that was (no index tells of that, the record of the end does)."""
    if job.state is not JobState.ENDED or offset > (job.output_bytes or 0):
        return []
    told = []
    missing = (job.output_bytes or 0) - offset
    if missing > 0:
        told.append(_gap(offset, None, missing, "let_go" if _let_go(service, job) else "not_arrived"))
    gaps = job.outcome.stats.get("output_gaps") if job.outcome is not None else None
    for gap in gaps if isinstance(gaps, list) else ():
        if gap.get("at_end") and stream in ("both", gap.get("stream")):
            told.append(_gap(job.output_bytes or 0, gap["stream"], int(gap["at_end"]), str(gap["cause"])))
    return told


def _let_go(service: Controller, job: Job) -> bool:
    """Whether the output was removed because it had been kept as long as it was to be: all of it goes at once."""
    kept_s = service.settings.retention.output_s
    old = kept_s is not None and job.ended_at is not None and time.time() - job.ended_at > kept_s
    return old and bool(job.output_bytes) and _held(service, job) == 0


def _gap(offset: int, stream: str | None, count: int, cause: str, at: float | None = None) -> bytes:
    body = {"type": "gap", "offset": offset, "bytes": count, "stream": stream, "cause": cause, "at": at}
    return _line({**body, "why": _WHY.get(cause, _WHY["unknown"])})


async def _page(service: Controller, job: Job, offset: int) -> list[tuple[Run, bytes]]:
    return await service.outputs.read(job.id, job.attempt, offset, PAGE) if job.attempt else []


def _output_line(run: Run, data: bytes) -> bytes:
    if run.lost:
        return _gap(run.offset, STREAMS[run.stream], run.lost, run.cause, run.at)
    # By hand: the encoder would look at every character of the data again.
    head = f'{{"type":"output","offset":{run.offset},"stream":"{STREAMS[run.stream]}","at":{run.at!r},"data":"'
    return b"".join((head.encode("ascii"), base64.b64encode(data), b'"}\n'))


def _view(service: Controller, job: Job) -> dict[str, Any]:
    return job_view(service.state, job, service.leases(job), service.left.of_job(job.id))
