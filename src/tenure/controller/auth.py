"""Who is calling, and may they. Every route depends on ``Caller``; a test holds that none forgets it.

On the local socket the kernel's word on the peer is the identity: the user the controller runs as, and root. Names
that a caller gives itself are labels beneath it and never decide anything.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from tenure.errors import TenureError


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller: a stable name, the local uid and pid, and what it may do."""

    name: str
    uid: int
    pid: int
    role: str

    @property
    def is_admin(self) -> bool:
        """Whether it may act on what belongs to others."""
        return self.role == "admin"


@lru_cache(maxsize=256)
def user_of(uid: int) -> str:
    """The account's name, or ``uid:N`` where the account has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid:{uid}"


def authenticated(connection: HTTPConnection) -> Principal:
    """The caller behind a connection; raises ``authentication_refused`` for anyone but the owner and root."""
    client = connection.client
    kind, _, number = client.host.partition(":") if client is not None else ("", "", "")
    if client is None or kind != "uid" or not number.isdecimal():
        raise TenureError("authentication_refused", "the caller's identity could not be established on this socket")
    uid = int(number)
    if uid not in (os.geteuid(), 0):
        raise TenureError(
            "authentication_refused",
            f"this controller belongs to {user_of(os.geteuid())} and answers no other user; you are {user_of(uid)}",
            do="run your own with: rc up",
        )
    return Principal(user_of(uid), uid, client.port, "admin")


async def caller(connection: HTTPConnection) -> Principal:
    """``authenticated`` for routes; not a plain function, which FastAPI would send through a thread each time."""
    return authenticated(connection)


Caller = Annotated[Principal, Depends(caller)]
