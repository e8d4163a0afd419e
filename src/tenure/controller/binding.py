"""What an agent's token allows it to say of itself: one host, one agent, and devices under that host's name.

Without this whoever holds the token of one host could speak for another: take over its link, report its jobs over, or
offer devices under its names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tenure.controller.auth import Principal
from tenure.controller.tokens import require_valid, unknown
from tenure.domain.commands import OfferedDevice, Register
from tenure.domain.promises import WIRE_FACT
from tenure.domain.state import FleetState
from tenure.errors import TenureError
from tenure.wire.frames import WIRE

if TYPE_CHECKING:
    from tenure.controller.tokens import Tokens


def check(state: FleetState, caller: Principal, register: Register) -> None:
    """Raises ``authentication_refused`` where the registration is not this token's to make. Says nothing of an agent
    on the local socket: that one is this user's own."""
    if not caller.token:
        return
    if register.host != caller.host:
        raise _foreign(caller, f"the token is for host {caller.host!r}, and this agent says it is {register.host!r}")
    astray = next((d.name for d in register.devices if not d.name.startswith(f"{caller.host}:")), None)
    if astray is not None:
        raise _foreign(caller, f"the token is for host {caller.host!r}, and its agent offers a device {astray!r}")
    known = state.agents.get(register.agent)
    if known is not None and known.host != caller.host:
        raise _foreign(caller, f"agent {register.agent} is that of host {known.host!r}")


def as_spoken(register: Register, wire: int) -> Register:
    """The registration with the wire version of an old agent on each device's record, whatever it says itself: what it
    cannot keep is not asked of it."""

    def marked(device: OfferedDevice) -> OfferedDevice:
        said = {name: value for name, value in device.facts.items() if name != WIRE_FACT}
        return replace(device, facts={**said, WIRE_FACT: wire} if wire < WIRE else said)

    if wire >= WIRE and not any(WIRE_FACT in device.facts for device in register.devices):
        return register
    return replace(register, devices=tuple(map(marked, register.devices)))


def require(tokens: Tokens, token_id: str, now: float) -> None:
    """Raises where a token that a link came with is over by now."""
    token = tokens.get(token_id)
    if token is None:
        raise unknown()
    require_valid(token, now)


def require_own_tree(state: FleetState, tokens: Tokens, caller: Principal, tree: str) -> None:
    """Raises ``not_permitted`` where no job on a device of the caller's agent has that staged tree."""
    token = tokens.get(caller.token)
    agent = token.agent if token is not None else ""
    for lease in state.leases.values():
        job = state.jobs.get(lease.job) if agent and lease.agent == agent else None
        if job is not None and job.spec.stage.get("hash") == tree:
            return
    raise TenureError("not_permitted", f"no job on a device of {caller.host} has the tree {tree[:64]}")


def _foreign(caller: Principal, why: str) -> TenureError:
    return TenureError(
        "authentication_refused",
        why,
        do="each host needs a token and a home folder of its own: rc admin token create --agent HOST --out FILE",
        facts={"token": caller.token, "host": caller.host},
    )
