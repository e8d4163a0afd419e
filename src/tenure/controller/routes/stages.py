"""Staged trees: whether one is here, sending one in pieces, and fetching one."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from tenure.controller import binding
from tenure.controller.auth import Caller, Fetcher
from tenure.controller.replies import Stream, reply
from tenure.controller.routes import Service
from tenure.errors import TenureError

router = APIRouter(prefix="/v1", tags=["stages"])

OCTETS = "application/octet-stream"
Offset = Annotated[int, Query(ge=0, le=1 << 50, description="bytes of the upload that came before these")]
Announced = Annotated[int, Query(ge=0, le=1 << 60, description="bytes that will be sent, to be refused at once")]


@router.get("/stages/{tree}")
async def show_stage(tree: str, caller: Caller, service: Service, announce: Announced = 0) -> Response:
    """Whether a tree is here, by its hash; ``limit_bytes`` is how large one may be."""
    size = await asyncio.to_thread(service.stages.size, tree)
    if size is None and announce:
        await asyncio.to_thread(service.stages.announced, announce)
    return reply({"hash": tree, "bytes": size, "limit_bytes": service.stages.limit_bytes})


@router.get("/stages/{tree}/stream")
async def fetch_stage(tree: str, caller: Fetcher, service: Service) -> Response:
    """A tree as one stream of bytes, in the form that ``tenure.domain.tree`` describes. An agent's token opens those of
    the jobs on its own devices."""
    if caller.role == "agent":
        await service.writer.settled()
        binding.require_own_tree(service.state, service.tokens, caller, tree)
    if await asyncio.to_thread(service.stages.size, tree) is None:
        raise TenureError("stage_failed", f"the tree {tree} is not here (any more)", do="stage it again")
    return Stream(service.stages.send(tree), OCTETS)


@router.get("/uploads/{upload}")
async def show_upload(upload: str, caller: Caller, service: Service) -> Response:
    """How much of an upload has arrived."""
    return reply({"upload": upload, "received": await asyncio.to_thread(service.stages.received, upload)})


@router.put("/uploads/{upload}")
async def send_piece(upload: str, request: Request, caller: Caller, service: Service, offset: Offset = 0) -> Response:
    """Adds the bytes of the body at an offset. What does not begin at the end changes nothing: look at the answer."""
    data = await request.body()
    received = await asyncio.to_thread(service.stages.append, upload, offset, data)
    return reply({"upload": upload, "received": received})


class FinishBody(BaseModel):
    """Which tree it was: its hash is worked out from what arrived and must be this one."""

    model_config = ConfigDict(extra="forbid")

    hash: str = Field(min_length=64, max_length=64)


@router.post("/uploads/{upload}/finish")
async def finish_upload(upload: str, body: FinishBody, caller: Caller, service: Service) -> Response:
    """Takes a whole upload in as a tree, once that is durable."""
    size = await asyncio.to_thread(service.stages.finish, upload, body.hash)
    return reply({"hash": body.hash, "bytes": size, "limit_bytes": service.stages.limit_bytes})
