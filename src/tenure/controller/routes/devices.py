"""Devices as they are known now, and why one would or would not be taken."""

from __future__ import annotations

import time

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from tenure.controller.auth import Admin, Reader
from tenure.controller.replies import reply
from tenure.controller.routes import Service
from tenure.controller.routes.jobs import canonical_selector
from tenure.controller.views import device_view
from tenure.domain import commands as cmd
from tenure.domain.device import Device
from tenure.domain.explain import reasons
from tenure.domain.queue import Requirement
from tenure.domain.state import FleetState
from tenure.errors import TenureError

router = APIRouter(prefix="/v1", tags=["devices"])


@router.get("/devices")
async def list_devices(caller: Reader, service: Service) -> Response:
    """Every device, with the version and the time of this view."""
    await service.writer.settled()
    state, now = service.state, time.time()
    devices = [state.devices[name] for name in sorted(state.devices)]
    shown = ",".join([service.shown.text(state, device, now, service.silence(device)) for device in devices])
    text = f'{{"version":{state.version},"at":{now!r},"devices":[{shown}]}}'
    return Response(text, media_type="application/json")


@router.get("/devices/{name}")
async def show_device(name: str, caller: Reader, service: Service) -> Response:
    """One device, by its full name or by what follows the host where that is unambiguous."""
    await service.writer.settled()
    state, device = service.state, named(service.state, name)
    text = service.shown.text(state, device, time.time(), service.silence(device))
    return Response(text, media_type="application/json")


class OperateBody(BaseModel):
    """An operator's act, and why."""

    model_config = ConfigDict(extra="forbid")

    act: str = Field(pattern="^(drain|resume|quarantine|clear|retire)$")
    reason: str = Field(min_length=1, max_length=500)


@router.post("/devices/{name}/operate")
async def operate(name: str, body: OperateBody, caller: Admin, service: Service) -> Response:
    """Takes a device out of service or back into it, clears its quarantine, or takes it off the books.

    The reason stays on record. Gives the device as it is then; one that was retired is there no longer.
    """
    await service.writer.settled()
    device = named(service.state, name)
    await service.decide(cmd.Operate(device.name, body.act, caller.name, body.reason))
    await service.writer.settled()
    found = service.state.devices.get(device.name)
    if found is None:
        return reply({"device": None, "retired": device.name})
    view = device_view(service.state, found, time.time(), service.silence(found))
    return reply({"device": view, "retired": None})


def named(state: FleetState, name: str) -> Device:
    """A device by its full name, or by what follows the host where that is unambiguous; raises ``unknown_device``."""
    matches = [name] if name in state.devices else [d for d in state.devices if d.split(":", 1)[-1] == name]
    if len(matches) != 1:
        names = sorted(matches or state.devices)
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        raise TenureError(
            "unknown_device",
            f"{name!r} may be any of several devices" if matches else f"there is no device {name!r} here",
            do="the devices are: " + (", ".join(names[:20]) + more or "none yet"),
            facts={"device": name, "devices": names},
        )
    return state.devices[matches[0]]


class ExplainBody(BaseModel):
    """What a job would ask for."""

    model_config = ConfigDict(extra="forbid")

    device: str | None = None
    select: str = ""
    count: int = Field(1, ge=1, le=1024)
    max_runtime_s: float | None = Field(None, ge=0, le=10 * 365 * 86_400, allow_inf_nan=False)
    idle_timeout_s: float | None = Field(None, ge=0, le=10 * 365 * 86_400, allow_inf_nan=False)


@router.post("/explain")
async def explain(body: ExplainBody, caller: Reader, service: Service) -> Response:
    """For each device: whether it matches and its state, or the first condition that fails. Submits nothing."""
    select = canonical_selector(body.select)
    need = Requirement(body.device, select, body.count, body.max_runtime_s, body.idle_timeout_s)
    await service.writer.settled()
    state = service.state
    told = {
        name: {"reason": words, "state": str(state.devices[name].state), "words": state.devices[name].words}
        for name, words in reasons(state, need).items()
    }
    return reply({"version": state.version, "select": need.select, "count": need.count, "devices": told})
