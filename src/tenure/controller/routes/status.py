"""The controller itself: how it is, and telling it to go."""

from __future__ import annotations

import os
import time
from collections import Counter

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict

from tenure.controller.auth import Admin, Reader
from tenure.controller.certificate import shown
from tenure.controller.replies import reply
from tenure.controller.routes import Service
from tenure.domain.job import JobState
from tenure.domain.state import FleetState
from tenure.errors import TenureError
from tenure.wire.frames import WIRE

router = APIRouter(prefix="/v1", tags=["controller"])


@router.get("/status")
async def status(caller: Reader, service: Service) -> Response:
    """What runs, since when, and how many of what it has."""
    await service.writer.settled()
    state, served = service.state, service.served
    body = {
        "version": service.version,
        "wire": WIRE,
        "pid": os.getpid(),
        "user": service.user,
        "home": str(service.layout.home),
        "state_folder": str(service.layout.root),
        "started_at": service.started_at,
        "at": time.time(),
        "mode": service.mode,
        "agents": [
            {
                "id": agent.id,
                "host": agent.host,
                "user": agent.user,
                "contact": agent.contact,
                "boot_id": agent.boot_id,
                "instance": agent.instance,
                "registered_at": agent.seen_at,
                "lost_at": lost_at(state, agent.id),
            }
            for agent in state.agents.values()
        ],
        "devices": dict(Counter(str(device.state) for device in state.devices.values())),
        "simulated_devices": sum(device.simulated for device in state.devices.values()),
        "queued": state.queue.length,
        "running": len(service.running()),
        "ledger_version": state.version,
        "ignored_reports": service.ignored_reports,
        "retention": service.settings.retention.to_dict(),
        "output_failure": service.outputs.failure,
        "agent_failure": None if any(agent.contact for agent in state.agents.values()) else service.agent_failure,
        "listen": list(served.at) if served is not None else [],
        "certificate": shown(served.certificate.pin) if served is not None else None,
    }
    return reply(body)


def lost_at(state: FleetState, agent: str) -> float | None:
    """Since when nothing is heard of an agent; its devices know. None while it is in contact, or has no device."""
    devices = (state.devices[name] for name in state.devices_of_agent.get(agent, ()))
    return max((device.lost_at for device in devices if device.lost_at is not None), default=None)


class ShutdownBody(BaseModel):
    """``leave``: go although jobs run; their supervisors keep them, and the next controller takes them up again."""

    model_config = ConfigDict(extra="forbid")

    leave: bool = False


@router.post("/shutdown", status_code=202)
async def shutdown(body: ShutdownBody, caller: Admin, service: Service) -> Response:
    """Stops the embedded agent, then the controller. Refuses while jobs run, unless told to leave them."""
    await service.writer.settled()
    running = service.running()
    if running and not body.leave:
        listed = ", ".join(job.id for job in running[:8])
        raise TenureError(
            "jobs_running",
            f"{len(running)} of your jobs run or start: {listed}",
            do="wait for them, stop them with rc kill, or leave them running with: rc down --leave",
            facts={"jobs": [job.id for job in running]},
        )
    service.stop.set()
    queued = [job.id for job in service.state.jobs.values() if job.state is JobState.QUEUED]
    return reply({"left_running": [job.id for job in running], "left_queued": queued, "pid": os.getpid()}, 202)
