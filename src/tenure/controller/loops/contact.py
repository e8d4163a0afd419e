"""Turns silence into ``unknown``: an agent not heard for too long, or whose connection is gone (A3)."""

from __future__ import annotations

import asyncio
import time

from tenure.controller.logs import Log
from tenure.controller.service import Controller
from tenure.domain import commands as cmd
from tenure.domain.contact import CLOSED_S, PERIOD_S, SILENT_S, ContactRule
from tenure.errors import TenureError

log = Log("tenure.controller.contact")

#: How long a link may be there without contact on record before it is made to register again.
ODD_S = 2.0


async def watch_contact(
    service: Controller, silent_s: float = SILENT_S, closed_s: float = CLOSED_S, period_s: float = PERIOD_S
) -> None:
    """Declares contact lost ``silent_s`` after the last frame, or ``closed_s`` after the connection closed."""
    rule = ContactRule(silent_s, closed_s, period_s)
    looked = time.monotonic()
    while True:
        await asyncio.sleep(period_s)
        now = time.monotonic()
        if away := rule.away(looked, now):
            log.warning("controller_was_away", seconds=round(now - looked, 3))
            service.links.excuse(away)
        looked = now
        try:
            await _look(service, now, rule)
        except TenureError as error:  # a full disk, say: looked at again in the next round, and until it is recorded
            log.error("contact_lost_not_recorded", **error.to_dict())


async def _look(service: Controller, now: float, rule: ContactRule) -> None:
    links = service.links
    await service.writer.settled()
    silent = rule.silent({link.agent: link.heard_at for link in links.links.values()}, now)
    for link in list(links.links.values()):
        silence = now - link.heard_at
        if link.agent in silent:
            await _lost(service, link.agent, silent[link.agent])
            link.close()
        elif link.welcomed and silence < ODD_S < now - link.since and not _has_contact(service, link.agent):
            # It talks, and the fleet says it does not: only a registration can say that it is there.
            log.warning("link_without_contact", agent=link.agent)
            link.close()
    ended = dict(links.lost_at)
    for agent, ago in rule.closed(ended, now).items():
        if agent not in links.links:
            await _lost(service, agent, ago)
        if links.lost_at.get(agent) == ended[agent]:
            del links.lost_at[agent]


def _has_contact(service: Controller, agent: str) -> bool:
    known = service.state.agents.get(agent)
    return known is not None and known.contact


async def _lost(service: Controller, agent: str, silent_s: float) -> None:
    if _has_contact(service, agent):
        await service.execute(cmd.LoseContact(agent, round(silent_s, 3)))
