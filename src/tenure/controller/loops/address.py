"""Keeps the controller's address in place: where its socket file was deleted or replaced, it listens there anew.

A cleaner of old files, or a hand, can take the file away under a controller that runs. Nobody could reach that one any
more, and no other could start, because it holds the lock.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from tenure.controller.logs import Log
from tenure.controller.service import Controller
from tenure.errors import TenureError
from tenure.paths import bind_unix

log = Log("tenure.controller.address")

PERIOD_S = 1.0
LISTEN_BACKLOG = 1024


async def keep_address(
    service: Controller, listen_too: Callable[[socket.socket], Awaitable[None]], period_s: float = PERIOD_S
) -> None:
    """Looks whether the path still leads to the socket it was bound to. What stands in the way is said, once."""
    path = service.layout.ctl_sock
    bound, trouble = _inode(path), ""
    while True:
        await asyncio.sleep(period_s)
        if bound is not None and _inode(path) == bound:
            continue
        try:
            fresh = await asyncio.to_thread(_bind, service)
            await listen_too(fresh)
        except (OSError, TenureError) as error:
            if str(error) != trouble:
                log.error("address_lost", path=str(path), why=str(error))
            trouble = str(error)
            continue
        bound, trouble = _inode(path), ""
        log.warning("address_renewed", path=str(path))


def _bind(service: Controller) -> socket.socket:
    service.layout.create()  # the folder may be gone with it
    fresh = bind_unix(service.layout.ctl_sock)
    fresh.listen(LISTEN_BACKLOG)
    return fresh


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
