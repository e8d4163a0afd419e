"""The tokens by which callers from other hosts are known: a durable file, read once and rewritten whole.

A secret is 256 random bits, shown once and kept here as its SHA-256 only: nothing that slow hashing would add to a
password is missing from it. A token that is over stays on record, with who ended it and when; it is never used again.
In a file of its own and not in the ledger, because who may speak is asked before anything of the ledger is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import shlex
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tenure.durable import write_atomic
from tenure.errors import TenureError

_SECRET_BYTES = 32
_NOBODY = "0" * 64


@dataclass(frozen=True, slots=True)
class Token:
    """One token. Times are UTC seconds; ``None`` is never.

    ``host`` is the one that an agent's token is for, ``agent`` the agent that came in with it first: no other may use
    it afterwards. ``digest`` is the secret's SHA-256. ``addresses`` stand in the file that was made for it.
    """

    id: str
    role: str
    host: str
    digest: str
    created_at: float
    created_by: str
    expires_at: float | None = None
    agent: str = ""
    revoked_at: float | None = None
    revoked_by: str = ""
    addresses: tuple[str, ...] = ()

    def state(self, now: float) -> str:
        """``valid``, ``revoked`` or ``expired``."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and now >= self.expires_at else "valid"


class Tokens:
    """Every token of a controller. Safe to call from several threads; what changes is durable before it returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._tokens: dict[str, Token] = {}

    def load(self) -> None:
        """Reads the file, where there is one. A damaged one is refused: without it everybody would be turned away."""
        try:
            body = json.loads(self._path.read_bytes())
            held = [Token(**{**each, "addresses": tuple(each["addresses"])}) for each in body["tokens"]]
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            raise TenureError(
                "damaged_state",
                f"{self._path} is damaged: {error!r}",
                do="put a backup in its place; without one every agent needs a new token: "
                f"mv {shlex.quote(str(self._path))} {shlex.quote(str(self._path) + '.damaged')}",
                facts={"path": str(self._path)},
            ) from error
        self._tokens = {token.id: token for token in held}

    def all(self) -> list[Token]:
        """Every token, the oldest first."""
        return sorted(self._tokens.values(), key=lambda token: (token.created_at, token.id))

    def get(self, token_id: str) -> Token | None:
        """A token by its id."""
        return self._tokens.get(token_id)

    def create(
        self, host: str, *, by: str, now: float, expires_s: float | None, addresses: tuple[str, ...] = ()
    ) -> tuple[Token, str]:
        """A new token for the agent of a host, and its secret, which nobody can ask for again."""
        secret = base64.urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).rstrip(b"=").decode("ascii")
        expires_at = None if expires_s is None else now + expires_s
        token_id = f"t{secrets.token_hex(6)}"
        token = Token(token_id, "agent", host, _digest(secret), now, by, expires_at, addresses=addresses)
        self._put(token.id, lambda _: token)
        return token, secret

    def revoke(self, token_id: str, *, by: str, now: float) -> Token:
        """Ends a token for good; one that was revoked before stays as it was."""

        def revoked(token: Token | None) -> Token:
            if token is None:
                raise TenureError("invalid_request", f"there is no token {token_id!r}", do="rc admin token list")
            return token if token.revoked_at is not None else replace(token, revoked_at=now, revoked_by=by)

        return self._put(token_id, revoked)

    def bind(self, token_id: str, agent: str) -> Token:
        """Binds a token to the agent that came in with it first; raises where it is bound to another."""

        def bound(token: Token | None) -> Token:
            if token is None:
                raise unknown()
            other = next((t for t in self._tokens.values() if t.agent == agent and t.host != token.host), None)
            if other is not None:
                raise TenureError(
                    "authentication_refused",
                    f"agent {agent} is that of host {other.host}, and token {token.id} is for {token.host}",
                    do="each host needs a home folder of its own",
                    facts={"token": token.id, "agent": agent},
                )
            if token.agent not in ("", agent):
                raise TenureError(
                    "authentication_refused",
                    f"token {token.id} is for agent {token.agent} of {token.host}, and this is agent {agent}",
                    do="make a token for this one: rc admin token create --agent HOST --out FILE",
                    facts={"token": token.id, "agent": agent},
                )
            return replace(token, agent=agent)

        return self._put(token_id, bound)

    def _put(self, token_id: str, change: Callable[[Token | None], Token]) -> Token:
        with self._lock:
            before = self._tokens.get(token_id)
            token = change(before)
            if token != before:
                after = {**self._tokens, token_id: token}
                body = {"v": 1, "tokens": [asdict(each) for each in after.values()]}
                write_atomic(self._path, json.dumps(body, indent=1).encode() + b"\n")
                self._tokens = after
            return token

    def authenticate(self, bearer: str, now: float) -> Token:
        """The token that ``ID.SECRET`` is; raises ``authentication_refused``. The secret is compared in constant time,
        and whether a token is over is told only to who has it."""
        token_id, _, secret = bearer.partition(".")
        token = self._tokens.get(token_id)
        same = hmac.compare_digest(_digest(secret), token.digest if token is not None else _NOBODY)
        if token is None or not same:
            raise unknown()
        require_valid(token, now)
        return token


def require_valid(token: Token, now: float) -> None:
    """Raises ``authentication_refused`` for a token that is over, with words."""
    state = token.state(now)
    if state != "valid":
        raise TenureError(
            "authentication_refused",
            f"token {token.id} for {token.host} " + ("was revoked" if state == "revoked" else "has expired"),
            do=f"ask for a new one: rc admin token create --agent {token.host} --out FILE, then here: "
            "rc agent --join FILE",
            facts={"token": token.id, "state": state},
        )


def unknown() -> TenureError:
    """The refusal of a token that is none, or whose secret is wrong: the two are not told apart."""
    return TenureError(
        "authentication_refused",
        "this controller does not know that token",
        do="ask for one that was made here: rc admin token create --agent HOST --out FILE",
    )


def view(token: Token, now: float) -> Mapping[str, Any]:
    """A token as it is shown: everything but its digest."""
    body = {name: value for name, value in asdict(token).items() if name != "digest"}
    return {**body, "addresses": list(token.addresses), "state": token.state(now)}


def bearer_of(header: str) -> str:
    """The credentials in an ``Authorization`` header; empty where it holds no bearer token."""
    scheme, _, rest = header.partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else ""


def _digest(secret: str) -> str:
    try:
        raw = base64.urlsafe_b64decode(secret.encode("ascii") + b"=" * (-len(secret) % 4))
    except (ValueError, binascii.Error):
        raw = secret.encode("utf-8", "replace")
    return hashlib.sha256(raw).hexdigest()
