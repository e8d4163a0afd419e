"""Ends jobs that have waited in the queue for as long as their submitter allowed.

Measured on the monotonic clock from the moment this controller accepted the job or came up with it: time during which
no controller ran counts against nobody (I14).
"""

from __future__ import annotations

import heapq
import time

from tenure.controller.feed import EVENTS, wait_for
from tenure.controller.logs import Log
from tenure.controller.service import Controller
from tenure.domain import commands as cmd
from tenure.domain.job import JobState
from tenure.errors import TenureError

log = Log("tenure.controller.timeouts")

#: Seconds until an end that could not be recorded is tried again.
AGAIN_S = 1.0


async def watch_timeouts(service: Controller) -> None:
    """Keeps a deadline for every queued job that has one, and expires it."""
    due: list[tuple[float, str, float]] = []
    with service.feed.watch(EVENTS) as changed:
        while True:
            now = time.monotonic()
            fresh, service.deadlines = service.deadlines, []
            for job_id, allowed in fresh:
                heapq.heappush(due, (now + allowed, job_id, allowed))
            while due and due[0][0] <= now:
                _, job_id, allowed = heapq.heappop(due)
                found = service.state.jobs.get(job_id)
                if found is not None and found.state is JobState.QUEUED:
                    try:
                        await service.execute(cmd.ExpireQueued(job_id, allowed))
                    except TenureError as error:  # a full disk, say: the job goes on waiting, and so does its end
                        log.error("queue_timeout_not_recorded", job=job_id, **error.to_dict())
                        heapq.heappush(due, (now + AGAIN_S, job_id, allowed))
            await wait_for(changed, min(max(due[0][0] - time.monotonic(), 0.0), 1.0) if due else 1.0)
