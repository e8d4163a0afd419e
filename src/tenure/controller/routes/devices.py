"""Devices as they are known now, and why one would or would not be taken."""

from __future__ import annotations

import time

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from tenure.controller.auth import Caller
from tenure.controller.replies import reply
from tenure.controller.routes import Service
from tenure.controller.routes.jobs import canonical_selector
from tenure.domain.explain import reasons
from tenure.domain.queue import Requirement
from tenure.errors import TenureError

router = APIRouter(prefix="/v1", tags=["devices"])


@router.get("/devices")
async def list_devices(caller: Caller, service: Service) -> Response:
    """Every device, with the version and the time of this view."""
    await service.writer.settled()
    state, now = service.state, time.time()
    shown = ",".join([service.shown.text(state, state.devices[name], now) for name in sorted(state.devices)])
    text = f'{{"version":{state.version},"at":{now!r},"devices":[{shown}]}}'
    return Response(text, media_type="application/json")


@router.get("/devices/{name}")
async def show_device(name: str, caller: Caller, service: Service) -> Response:
    """One device, by its full name or by what follows the host where that is unambiguous."""
    await service.writer.settled()
    state = service.state
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
    text = service.shown.text(state, state.devices[matches[0]], time.time())
    return Response(text, media_type="application/json")


class ExplainBody(BaseModel):
    """What a job would ask for."""

    model_config = ConfigDict(extra="forbid")

    device: str | None = None
    select: str = ""
    count: int = Field(1, ge=1, le=1024)


@router.post("/explain")
async def explain(body: ExplainBody, caller: Caller, service: Service) -> Response:
    """For each device: whether it matches and its state, or the first condition that fails. Submits nothing."""
    need = Requirement(body.device, canonical_selector(body.select), body.count)
    await service.writer.settled()
    state = service.state
    told = {
        name: {"reason": words, "state": str(state.devices[name].state), "words": state.devices[name].words}
        for name, words in reasons(state, need).items()
    }
    return reply({"version": state.version, "select": need.select, "count": need.count, "devices": told})
