"""What jobs left on a host, as its agent last told."""

from __future__ import annotations

from fastapi import APIRouter, Response

from tenure.controller.auth import Reader
from tenure.controller.replies import reply
from tenure.controller.routes import Service

router = APIRouter(prefix="/v1", tags=["devices"])


@router.get("/leftovers/{agent}")
async def show_leftovers(agent: str, caller: Reader, service: Service) -> Response:
    """What an agent's host has that its image did not, and which job left it; ``told`` is null where it said nothing
    yet."""
    await service.writer.settled()
    known = service.state.agents.get(agent)
    told = service.left.of_agent(agent)
    body = {
        "agent": agent,
        "host": known.host if known is not None else "",
        "contact": known is not None and known.contact,
        "told": told,
    }
    return reply(body)
