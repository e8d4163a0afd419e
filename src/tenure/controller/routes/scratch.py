"""Scratch folders on the hosts: which are kept, and removing what no job needs. Every agent in contact is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from tenure.controller.auth import Admin, Reader
from tenure.controller.replies import reply
from tenure.controller.routes import Service
from tenure.controller.service import Controller

router = APIRouter(prefix="/v1", tags=["scratch"])

#: Seconds within which an agent has to answer: to look, and to remove.
LOOK_S, CLEAN_S = 25.0, 300.0
_NOTHING: Mapping[str, Any] = {"kept": [], "removed": [], "left": []}


@router.get("/scratch")
async def kept(caller: Reader, service: Service) -> Response:
    """The scratch folders that were kept (``rc run --keep``), as their hosts find them now."""
    return reply(await _of_all(service, "scratch_kept", {}, LOOK_S))


class CleanBody(BaseModel):
    """What is to go besides what no job owns. ``kept``: kept ones too, all or of ``jobs`` (whole ids), that ended
    ``older_than_s`` ago or earlier. ``dry_run`` removes nothing and says what would go."""

    model_config = ConfigDict(extra="forbid")

    kept: bool = False
    jobs: list[str] = Field(default_factory=list, max_length=1000)
    older_than_s: float = Field(0.0, ge=0, le=1e11, allow_inf_nan=False)
    dry_run: bool = False


@router.post("/scratch/clean")
async def clean(body: CleanBody, caller: Admin, service: Service) -> Response:
    """Removes scratch that no job owns, and kept ones where asked; never what a live attempt owns."""
    return reply(await _of_all(service, "scratch_clean", body.model_dump(), LOOK_S if body.dry_run else CLEAN_S))


async def _of_all(service: Controller, what: str, body: Mapping[str, Any], within_s: float) -> dict[str, Any]:
    await service.writer.settled()
    agents = sorted((agent.id, agent.host) for agent in service.state.agents.values())
    told = await asyncio.gather(*(_of_one(service, agent, what, body, within_s) for agent, _ in agents))
    hosts = [{"agent": agent, "host": host, **said} for (agent, host), said in zip(agents, told, strict=True)]
    return {"at": time.time(), "dry_run": bool(body.get("dry_run")), "hosts": hosts}


async def _of_one(
    service: Controller, agent: str, what: str, body: Mapping[str, Any], within_s: float
) -> dict[str, Any]:
    link = service.links.links.get(agent)
    if link is None or not link.welcomed:
        return {**_NOTHING, "answered": False, "why": "it is not in contact"}
    try:
        said = await link.ask(what, body, within_s)
    except TimeoutError:
        why = f"it gave no answer within {within_s:g} s, or its link ended; an older version gives none"
        return {**_NOTHING, "answered": False, "why": why}
    if "error" in said:
        return {**_NOTHING, "answered": False, "why": str((said["error"] or {}).get("message", "an error"))}
    return {**_NOTHING, **{name: said[name] for name in _NOTHING if name in said}, "answered": True, "why": ""}
