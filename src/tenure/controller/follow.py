"""A job as a stream of lines: its state whenever that changes, its output as it comes, and its end.

Lines are JSON objects: ``job``, ``output`` (base64, with offset and stream), ``gap``, ``beat``, ``ended``. A client
that loses the stream goes on at the offset after the last byte it has.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from tenure.controller.feed import wait_for
from tenure.controller.outputs import STREAMS
from tenure.controller.service import Controller
from tenure.controller.views import job_view
from tenure.domain.job import Job, JobState

NDJSON = "application/x-ndjson"
BEAT_S = 5.0
PIECE = 256 * 1024
#: How long an ended job's last output may take to arrive before the gap is told and the stream ends.
TAIL_S = 10.0


def _line(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


async def follow_job(service: Controller, job_id: str, offset: int, *, wait: bool = True) -> AsyncIterator[bytes]:
    """The stream of one job from ``offset`` of its output on; without ``wait`` it ends with what is there now."""
    shown = -1
    quiet_since: float | None = None
    loop = asyncio.get_running_loop()
    with service.feed.watch(job_id) as changed:
        while True:
            changed.clear()
            job = await service.job(job_id)
            if job.version != shown and job.state is not JobState.ENDED:
                shown = job.version
                yield _line({"type": "job", "job": _view(service, job)})
            async for line, end in _output(service, job, offset):
                yield line
                offset, quiet_since = end, None
            if not wait:
                return
            if job.state is JobState.ENDED:
                missing = (job.output_bytes or 0) - offset
                quiet_since = quiet_since if quiet_since is not None else loop.time()
                if missing > 0 and loop.time() - quiet_since < TAIL_S and not service.feed.closing:
                    await wait_for(changed, 0.5)
                    continue
                if missing > 0:
                    why = "these bytes have not arrived from the host; they are kept there and follow when it answers"
                    yield _line({"type": "gap", "offset": offset, "bytes": missing, "why": why})
                yield _line({"type": "ended", "job": _view(service, job)})
                return
            if service.feed.closing:
                return
            if not await wait_for(changed, BEAT_S):
                yield _line({"type": "beat"})


async def _output(service: Controller, job: Job, offset: int) -> AsyncIterator[tuple[bytes, int]]:
    if not job.attempt:
        return
    while True:
        pieces = list(service.outputs.read(job.id, job.attempt, offset, PIECE))
        if not pieces:
            return
        for run, data in pieces:
            offset = run.offset + len(data)
            body = {
                "type": "output",
                "offset": run.offset,
                "stream": STREAMS.get(run.stream, "stdout"),
                "at": run.at,
                "data": base64.b64encode(data).decode("ascii"),
            }
            yield _line(body), offset
        await asyncio.sleep(0)


def _view(service: Controller, job: Job) -> dict[str, Any]:
    return job_view(service.state, job, service.leases(job))
