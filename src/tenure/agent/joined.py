"""Joining a controller elsewhere: a token file is read, tried, and kept in this machine's folder.

The file may be thrown away afterwards. What is kept says which controller, so that an agent with work of one
controller on its hands is never led to another, which would stop what it has no lease for.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from tenure.agent.reach import Reach
from tenure.durable import write_atomic
from tenure.errors import TenureError
from tenure.paths import Layout

TRY_S = 15.0


def read(path: Path) -> Reach:
    """What a token file says. Raises ``not_configured`` or ``invalid_configuration``, naming the file, never what is in
    it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TenureError(
            "not_configured",
            f"{path} cannot be read: {error.strerror}",
            do="make a token file at the controller: rc admin token create --agent HOST --out FILE",
            facts={"path": str(path)},
        ) from error
    try:
        body = json.loads(data)
        return _reach(body)
    except (ValueError, KeyError, TypeError) as error:
        lacks = f" (it lacks {error})" if isinstance(error, KeyError) else ""
        raise TenureError(
            "invalid_configuration",
            f"{path} is no token file{lacks}",
            do="copy it once more, whole, or make another: rc admin token create --agent HOST --out FILE",
            facts={"path": str(path)},
        ) from None


def _reach(body: Any) -> Reach:
    controller = body["controller"]
    addresses = tuple(map(str, controller["addresses"]))
    pin, ca = str(controller.get("pin") or ""), str(controller.get("ca") or "")
    if body["kind"] != "agent" or not addresses or not (pin or ca):
        raise KeyError("addresses and a pin")
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError
    return Reach(
        addresses=addresses,
        pin=pin,
        ca=ca,
        token=str(body["token"]),
        secret=str(body["secret"]),
        host=str(body["host"]),
        controller=str(controller["id"]),
    )


def load(layout: Layout) -> Reach:
    """How this machine's agent reaches its controller: as it joined, else by the socket of this home."""
    return read(layout.joined) if layout.joined.exists() else Reach(path=layout.ctl_sock)


def join(layout: Layout, file: Path) -> Reach:
    """Tries a token file, then keeps it. The caller holds the agent's lock.

    What was joined before is joined still, without a question. Raises what the controller answers,
    ``controller_unreachable`` where it does not, and ``conflict`` where this home is another host's, or has work of
    another controller on its hands.
    """
    reach = read(file)
    if layout.joined.exists() and read(layout.joined) == reach:
        return reach  # as it was: the agent goes to its jobs, whether the controller answers now or later
    _require_same_host(layout, reach)
    if not layout.joined.exists() or read(layout.joined).controller != reach.controller:
        _require_idle(layout, reach)
    who = reach.ask("/v1/agent", timeout_s=TRY_S)
    if who.get("host") != reach.host:
        raise TenureError(
            "authentication_refused",
            f"the controller takes that token for host {who.get('host')!r}, and the file says {reach.host!r}",
            do="make another: rc admin token create --agent HOST --out FILE",
        )
    write_atomic(layout.joined, file.read_bytes())
    return reach


def _require_same_host(layout: Layout, reach: Reach) -> None:
    try:
        known = json.loads(layout.identity.read_bytes())
        host, names = str(known["host"]), [str(name) for name in known["names"].values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # none yet, or damaged, which is said by who loads it
    other = host if host != reach.host else next((n for n in names if not n.startswith(f"{reach.host}:")), "")
    if other and names:
        raise TenureError(
            "conflict",
            f"the token is for host {reach.host!r}, and the devices of this home go by the name of {other!r}",
            do=f"ask for a token for {host}, or use a fresh home folder: export TENURE_HOME=DIR",
            facts={"host": host, "token_host": reach.host},
        )


def _require_idle(layout: Layout, reach: Reach) -> None:
    """An agent that comes to a controller which has no lease for what runs would be told to stop it."""
    held = sorted(folder.name for folder in layout.attempts.iterdir()) if layout.attempts.is_dir() else []
    if held:
        raise TenureError(
            "conflict",
            f"this home still has {len(held)} attempts of the controller it had before: {', '.join(held[:4])}",
            do="let that controller finish with them (rc ps), or join with a fresh home: "
            f"TENURE_HOME=DIR rc agent --join FILE; {shlex.quote(str(layout.attempts))} is empty then",
            facts={"attempts": held[:64], "controller": reach.controller},
        )
