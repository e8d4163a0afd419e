"""Ends the links whose token is over: revoked a moment ago, or expired while the agent was connected."""

from __future__ import annotations

import asyncio
import time

from tenure.controller import binding
from tenure.controller.logs import Log
from tenure.controller.service import Controller
from tenure.errors import TenureError

log = Log("tenure.controller.tokens")

PERIOD_S = 1.0


async def watch_tokens(service: Controller, period_s: float = PERIOD_S) -> None:
    """Looks once a second; whoever revokes a token looks at once."""
    while True:
        end_links(service)
        await asyncio.sleep(period_s)


def end_links(service: Controller) -> None:
    """Ends every link that came with a token which is valid no longer. Its agent is told why."""
    for link in list(service.links.links.values()):
        if not link.token or link.closed:
            continue
        try:
            binding.require(service.tokens, link.token, time.time())
        except TenureError as error:
            log.warning("token_over", agent=link.agent, token=link.token, why=error.message)
            link.refuse(error)
