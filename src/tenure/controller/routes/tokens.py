"""Tokens for callers from other hosts: made, listed, revoked. An admin's business alone."""

from __future__ import annotations

import asyncio
import re
import time

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, field_validator

from tenure.controller import listening
from tenure.controller.auth import Admin
from tenure.controller.logs import Log
from tenure.controller.loops.tokens import end_links
from tenure.controller.replies import reply
from tenure.controller.routes import Service
from tenure.controller.tokens import view
from tenure.errors import TenureError

router = APIRouter(prefix="/v1", tags=["tokens"])
log = Log("tenure.controller.tokens")

_HOST = re.compile(r"[A-Za-z0-9_-]{1,64}")


class TokenBody(BaseModel):
    """For which host's agent, for how long (seconds; none: until it is revoked), and what it is to dial."""

    model_config = ConfigDict(extra="forbid")

    host: str
    expires_s: float | None = Field(default=None, gt=0, le=100 * 365 * 86400)
    addresses: list[str] = Field(default_factory=list, max_length=16)

    @field_validator("host")
    @classmethod
    def _is_a_host(cls, host: str) -> str:
        if not _HOST.fullmatch(host):
            raise ValueError("a host's name is up to 64 letters, digits, - and _: it begins the names of its devices")
        return host

    @field_validator("addresses")
    @classmethod
    def _are_addresses(cls, addresses: list[str]) -> list[str]:
        return [listening.joined(*listening.split(each)) for each in addresses]


@router.post("/tokens", status_code=201)
async def create(body: TokenBody, caller: Admin, service: Service) -> Response:
    """Makes a token. ``file`` is the content of the file to be taken to the host, and holds the only copy of the
    secret there is."""
    served = service.served
    if served is None:
        raise TenureError(
            "conflict",
            "this controller listens on its local socket alone: no other host could use a token",
            do="start it for other hosts: rc down, then: rc serve --listen HOST:PORT",
        )
    now = time.time()
    token, secret = await asyncio.to_thread(
        service.tokens.create,
        body.host,
        by=caller.name,
        now=now,
        expires_s=body.expires_s,
        addresses=tuple(body.addresses) or served.addresses,
    )
    log.info("token_created", token=token.id, host=token.host, by=caller.name, expires_at=token.expires_at)
    reached = {"id": served.id, "addresses": list(token.addresses)}
    trusted = {"pin": "" if served.certificate.ca else served.certificate.pin, "ca": served.certificate.ca}
    whose = {"v": 1, "kind": "agent", "host": token.host, "token": token.id, "secret": secret}
    file = {**whose, "expires_at": token.expires_at, "controller": {**reached, **trusted}}
    return reply({"token": view(token, now), "file": file}, 201)


@router.get("/tokens")
async def show(caller: Admin, service: Service) -> Response:
    """Every token that was ever made here, without its secret. ``connected``: an agent is here with it now."""
    now = time.time()
    here = {link.token for link in service.links.links.values()}
    return reply({"tokens": [{**view(token, now), "connected": token.id in here} for token in service.tokens.all()]})


class RevokeBody(BaseModel):
    """Nothing has to be said beside which one."""

    model_config = ConfigDict(extra="forbid")


@router.post("/tokens/{token_id}/revoke")
async def revoke(token_id: str, body: RevokeBody, caller: Admin, service: Service) -> Response:
    """Ends a token for good, and at once every link that came with it. Jobs there go on; their devices are unknown
    until an agent of that host is back with another token."""
    token = await asyncio.to_thread(service.tokens.revoke, token_id, by=caller.name, now=time.time())
    log.info("token_revoked", token=token.id, host=token.host, by=caller.name)
    cut = sum(link.token == token.id for link in service.links.links.values())
    end_links(service)
    return reply({"token": view(token, time.time()), "links_ended": cut})
