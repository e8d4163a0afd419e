"""Who this agent is, for good and for now, and the names its devices keep.

For good (``identity.json``): the agent's id, the host name it goes by, and the name of every device it ever offered,
bound to the device's UUID, so that a card keeps its name when another is added, removed or listed in another order.
For now: boot id, PID namespace, and the id of this run of the agent.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
import shlex
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tenure.durable import write_atomic
from tenure.errors import TenureError
from tenure.probes import identity as probe


@dataclass(slots=True)
class AgentIdentity:
    """``names`` is UUID -> device name. ``boot_id`` and ``namespace`` are empty where the kernel does not tell."""

    path: Path
    agent: str
    host: str
    names: dict[str, str] = field(default_factory=dict)
    boot_id: str = ""
    namespace: str = ""
    initial_namespace: bool | None = None
    instance: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def triple(self) -> tuple[str, str, str]:
        """(boot id, namespace, instance), as the core keeps it with every attempt."""
        return (self.boot_id, self.namespace, self.instance)

    def bind(self, found: Iterable[tuple[str, str]]) -> dict[str, str]:
        """Names for devices given as (UUID, stem such as ``gpu``): the ones they had, or the lowest free number.

        Durable before it returns: a name that was shown once never moves to another device.
        """
        taken = set(self.names.values())
        fresh: dict[str, str] = {}
        given: dict[str, str] = {}
        for uuid, stem in found:
            name = self.names.get(uuid) or fresh.get(uuid)
            if name is None:
                numbered = (f"{self.host}:{stem}{number}" for number in itertools.count())
                name = next(candidate for candidate in numbered if candidate not in taken)
                taken.add(name)
                fresh[uuid] = name
            given[uuid] = name
        if fresh:
            self.names.update(fresh)
            self.save()
        return given

    def save(self) -> None:
        """Writes what is kept for good."""
        body = {"v": 1, "agent": self.agent, "host": self.host, "names": self.names}
        write_atomic(self.path, json.dumps(body, indent=1).encode())


def load(path: Path, *, host: str = "") -> AgentIdentity:
    """The identity in ``path``, made and saved where there is none. A damaged file is refused, never replaced: a new
    identity would leave the old one's leases without an agent."""
    now = probe.read()
    body = _read(path)
    if body is None:
        name = host or _host_name(socket.gethostname())
        identity = AgentIdentity(path, f"a{secrets.token_hex(8)}", name)
        _fill(identity, now)
        identity.save()
        return identity
    try:
        names = {str(uuid): str(name) for uuid, name in body["names"].items()}
        identity = AgentIdentity(path, str(body["agent"]), host or str(body["host"]), names)
    except (KeyError, AttributeError, TypeError) as error:
        raise _damaged(path, f"lacks {error}") from error
    _fill(identity, now)
    return identity


def _fill(identity: AgentIdentity, now: probe.HostIdentity) -> None:
    identity.boot_id = now.boot_id or ""
    identity.namespace = probe.namespace_name(now)
    identity.initial_namespace = now.initial_namespace


def _host_name(full: str) -> str:
    """The first part of a host name, as far as it can stand in a device's name."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", full.split(".")[0]) or "host"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(body, dict):
        raise _damaged(path, "holds no object")
    return body


def _damaged(path: Path, why: str) -> TenureError:
    return TenureError(
        "damaged_state",
        f"{path} is damaged: {why}.",
        do="Put a backup in its place. Without one this host gets a new agent, and leases of the old one stay as they "
        f"are: mv {shlex.quote(str(path))} {shlex.quote(str(path) + '.damaged')}",
        facts={"path": str(path)},
    )
