"""Who is calling, and may they. Every route says which roles it answers (``Caller`` and its like); a test holds that
none forgets it, and a table of who may do what.

On the local socket the kernel's word on the peer is the identity: the user the controller runs as, and root. From
another host it is a token, over TLS only. Names that a caller gives itself are labels beneath it and never decide
anything.

Roles: ``viewer`` sees, ``user`` submits and stops its own, ``admin`` may all of it; ``agent`` is one host's agent and
may do nothing but be that.
"""

from __future__ import annotations

import os
import pwd
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.controller.tokens import Tokens

ROLES = ("viewer", "user", "agent", "admin")


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller: a stable name, the local uid and pid (-1 and 0 from another host), and what it may do.

    ``token`` is the id of the token it came with and ``host`` what that is bound to; both empty on the local socket.
    """

    name: str
    uid: int
    pid: int
    role: str
    token: str = ""
    host: str = ""

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


def authenticated(connection: HTTPConnection, tokens: Tokens | None = None) -> Principal:
    """The caller behind a connection; raises ``authentication_refused`` for anyone but the owner and root on the local
    socket, and for anyone without a valid token elsewhere."""
    client = connection.client
    kind, _, number = client.host.partition(":") if client is not None else ("", "", "")
    if kind == "tls" and tokens is not None:
        return _by_token(connection, tokens)
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


def _by_token(connection: HTTPConnection, tokens: Tokens) -> Principal:
    from tenure.controller.tokens import bearer_of

    bearer = bearer_of(connection.headers.get("authorization", ""))
    if not bearer:
        raise TenureError(
            "authentication_refused",
            "this controller answers nobody from another host without a token",
            do="ask its owner for one: rc admin token create --agent HOST --out FILE",
        )
    token = tokens.authenticate(bearer, time.time())
    return Principal(f"token:{token.id}", -1, 0, token.role, token.id, token.host)


class Allow:
    """The dependency of a route that answers these roles alone. Not a plain function, which FastAPI would send through
    a thread each time."""

    def __init__(self, *roles: str) -> None:
        assert set(roles) <= set(ROLES)
        self.roles = frozenset(roles)

    async def __call__(self, connection: HTTPConnection) -> Principal:
        """The caller; raises ``authentication_refused``, or ``not_permitted`` where it has another role."""
        found = authenticated(connection, connection.app.state.controller.tokens)
        if found.role not in self.roles:
            raise TenureError(
                "not_permitted",
                f"{found.name} has the role {found.role}, and this is for: {', '.join(sorted(self.roles))}",
                do="use a token of one of these roles",
                facts={"role": found.role, "roles": sorted(self.roles)},
            )
        return found


#: Who sees; who acts (the default: an agent's token opens none of it); an agent; who fetches what a job needs (an agent
#: only for its own jobs, which its route has to see to); an operator.
Reader = Annotated[Principal, Depends(Allow("viewer", "user", "admin"))]
Caller = Annotated[Principal, Depends(Allow("user", "admin"))]
AgentCaller = Annotated[Principal, Depends(Allow("agent", "admin"))]
Fetcher = Annotated[Principal, Depends(Allow("user", "agent", "admin"))]
Admin = Annotated[Principal, Depends(Allow("admin"))]
