"""Turns silence into ``unknown``: an agent not heard for too long, or whose connection is gone (A3)."""

from __future__ import annotations

import asyncio
import time

from tenure.controller.service import Controller
from tenure.domain import commands as cmd

SILENT_S = 15.0
CLOSED_S = 1.5
PERIOD_S = 0.25


async def watch_contact(service: Controller) -> None:
    """Declares contact lost 15 s after the last frame, or 1.5 s after the connection closed and did not come back."""
    while True:
        await asyncio.sleep(PERIOD_S)
        now = time.monotonic()
        for link in list(service.links.links.values()):
            if now - link.heard_at > SILENT_S:
                await _lost(service, link.agent, now - link.heard_at)
                link.close()
        for agent, since in list(service.links.lost_at.items()):
            if now - since > CLOSED_S:
                service.links.lost_at.pop(agent, None)
                if agent not in service.links.links:
                    await _lost(service, agent, now - since)


async def _lost(service: Controller, agent: str, silent_s: float) -> None:
    known = service.state.agents.get(agent)
    if known is not None and known.contact:
        await service.execute(cmd.LoseContact(agent, round(silent_s, 3)))
