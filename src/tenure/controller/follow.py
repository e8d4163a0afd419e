"""A job as a stream of lines: its state whenever that changes, its output as it comes, and its end.

Lines are JSON objects: ``job``, ``output`` (base64, with offset and stream), ``gap``, ``beat``, ``ended``, ``error``. A
client that loses the stream goes on at the offset after the last byte it has. Nothing is read ahead of the client: a
page of output is read when the one before it has gone out, so a slow reader costs a page and no more.
"""

from __future__ import annotations

import asyncio
import base64
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
PAGE = 256 * 1024
#: How long an ended job's last output may take to arrive before the gap is told and the stream ends.
TAIL_S = 10.0


def _line(body: Mapping[str, Any]) -> bytes:
    return encode(body).encode("ascii") + b"\n"


async def follow_job(
    service: Controller,
    job_id: str,
    offset: int,
    *,
    stream: str = "both",
    beat_s: float = BEAT_S,
    tail_s: float = TAIL_S,
) -> AsyncGenerator[bytes, None]:
    """The stream of one job from ``offset`` of its output on, ``stream`` both or one of stdout and stderr.

    Ends with ``ended``; or with ``error`` where it cannot go on; or with neither, when the controller goes down.
    """
    try:
        async with aclosing(_follow(service, job_id, offset, stream, beat_s, tail_s)) as lines:
            async for line in lines:
                yield line
    except (TenureError, OSError) as error:
        log.error("follow_failed", error=error, job=job_id)
        told = error if isinstance(error, TenureError) else TenureError("io_error", f"output of {job_id}: {error}")
        yield _line({"type": "error", "error": told.to_dict()})


async def _follow(
    service: Controller, job_id: str, offset: int, stream: str, beat_s: float, tail_s: float
) -> AsyncGenerator[bytes, None]:
    shown = -1
    moved_at = asyncio.get_running_loop().time()
    with service.feed.watch(job_id) as changed:
        while True:
            changed.clear()
            job = await service.job(job_id)
            over = job.state is JobState.ENDED
            if job.version != shown and not over:
                shown = job.version
                yield _line({"type": "job", "job": _view(service, job)})
            page = await _page(service, job, offset)
            for run, data in page:
                offset = run.offset + len(data)
                if stream in ("both", STREAMS[run.stream]):
                    yield _output_line(run, data)
            now = asyncio.get_running_loop().time()
            if page:
                moved_at = now
                continue
            missing = (job.output_bytes or 0) - offset
            if over and (missing <= 0 or now - moved_at >= tail_s):
                if missing > 0:
                    why = "these bytes have not arrived from the host; they are kept there and follow when it answers"
                    yield _line({"type": "gap", "offset": offset, "bytes": missing, "why": why})
                yield _line({"type": "ended", "job": _view(service, job)})
                return
            if service.feed.closing:
                return
            if not await wait_for(changed, min(beat_s, 0.5) if over else beat_s) and not over:
                yield _line({"type": "beat"})


async def output_now(
    service: Controller, job_id: str, offset: int, *, stream: str = "both"
) -> AsyncGenerator[bytes, None]:
    """The output that is here now, from ``offset`` on, after one line with the job as it is."""
    job = await service.job(job_id)
    yield _line({"type": "job", "job": _view(service, job)})
    end = service.outputs.size(job.id, job.attempt) if job.attempt else 0
    while offset < end and (page := await _page(service, job, offset)):
        for run, data in page:
            offset = run.offset + len(data)
            if stream in ("both", STREAMS[run.stream]):
                yield _output_line(run, data)


async def _page(service: Controller, job: Job, offset: int) -> list[tuple[Run, bytes]]:
    return await service.outputs.read(job.id, job.attempt, offset, PAGE) if job.attempt else []


def _output_line(run: Run, data: bytes) -> bytes:
    # By hand: the encoder would look at every character of the data again.
    head = f'{{"type":"output","offset":{run.offset},"stream":"{STREAMS[run.stream]}","at":{run.at!r},"data":"'
    return b"".join((head.encode("ascii"), base64.b64encode(data), b'"}\n'))


def _view(service: Controller, job: Job) -> dict[str, Any]:
    return job_view(service.state, job, service.leases(job), service.left.of_job(job.id))
