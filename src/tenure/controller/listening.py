"""The addresses at which a controller answers other hosts: read from text, bound, and told to agents.

``Served`` is what stands beside the local socket of a controller that is served: which names it goes by, the addresses
that token files carry, and the certificate.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tenure.controller.certificate import Certificate
from tenure.durable import write_atomic
from tenure.errors import TenureError
from tenure.os_errors import told as os_error

DEFAULT_PORT = 7420
DEFAULT = f"127.0.0.1:{DEFAULT_PORT}"
LISTEN_BACKLOG = 1024
_ANY = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Served:
    """``id`` is the controller's own, kept with its home. ``at`` are the addresses it listens at, ``addresses`` those
    that agents are told to dial, ``names`` the host names and addresses under which it may be asked."""

    id: str
    at: tuple[str, ...]
    addresses: tuple[str, ...]
    certificate: Certificate
    sockets: tuple[socket.socket, ...] = field(default=(), repr=False)

    @property
    def names(self) -> frozenset[str]:
        """The host part of every address, and this host's own names."""
        return frozenset({*(split(each)[0].lower() for each in (*self.at, *self.addresses)), *own_names()})


def split(text: str) -> tuple[str, int]:
    """``HOST:PORT``, ``HOST`` or ``[IPv6]:PORT`` as (host, port); raises ``ValueError`` in words."""
    host, port = text, ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("an IPv6 address with a port is written [ADDRESS]:PORT")
        port = rest[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    elif text.count(":") > 1:
        try:
            ipaddress.IPv6Address(text)
        except ValueError:
            raise ValueError("an IPv6 address with a port is written [ADDRESS]:PORT") from None
    if not host or any(c.isspace() or c in "/@?#" for c in host):
        raise ValueError("it is HOST:PORT, such as 10.0.0.5:7420")
    if port and not (port.isdigit() and int(port) <= 65535):
        raise ValueError(f"{port!r} is no port: 0 to 65535")
    return host, int(port) if port else DEFAULT_PORT


def joined(host: str, port: int) -> str:
    """The text that ``split`` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(address: str) -> socket.socket:
    """A listening TCP socket. Raises ``usage`` or ``conflict``, naming the address and what is wrong with it."""
    host, port = split(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise TenureError(
            "usage",
            f"--listen {address}: {host} is no name or address that this host knows ({error})",
            do="give an address of this host; they are listed by: ip address",
            facts={"address": address},
        ) from error
    family, kind, protocol, _, where = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(where)
        bound.listen(LISTEN_BACKLOG)
    except OSError as error:
        bound.close()
        raise _refused(address, host, port, error) from error
    return bound


def _refused(address: str, host: str, port: int, error: OSError) -> TenureError:
    facts = {"address": address, "errno": error.errno}
    if error.errno == errno.EADDRINUSE:
        who = f"see who: ss -ltnp 'sport = :{port}'; or listen elsewhere: --listen {joined(host, port + 1)}"
        return TenureError("conflict", f"{address} is taken: another process listens there", do=who, facts=facts)
    if error.errno == errno.EADDRNOTAVAIL:
        do = "give one of its own, listed by: ip address; 0.0.0.0 is all of them"
        return TenureError("usage", f"--listen {address}: {host} is no address of this host", do=do, facts=facts)
    if error.errno in (errno.EACCES, errno.EPERM):
        do = f"take a port above 1023: --listen {joined(host, DEFAULT_PORT)}"
        return TenureError("not_permitted", f"this user may not listen at {address}", do=do, facts=facts)
    return TenureError("io_error", f"cannot listen at {address}: {error.strerror}", facts=facts)


def own_names() -> tuple[str, ...]:
    """What this host calls itself, and the loopback."""
    return tuple(dict.fromkeys((socket.gethostname().lower(), "localhost", "127.0.0.1", "::1")))


def dialled(at: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """The addresses that agents are told: those given, else those listened at. Where that is every address of this
    host, its name stands for it, because nobody can dial that."""
    if given:
        return tuple(joined(*split(each)) for each in given)
    hosts = ((socket.gethostname(), port) if host in _ANY else (host, port) for host, port in map(split, at))
    return tuple(dict.fromkeys(joined(host, port) for host, port in hosts))


def shown(bound: socket.socket) -> str:
    """Where a socket listens."""
    host, port = bound.getsockname()[:2]
    return joined(host, port)


def identity(path: Path) -> str:
    """The id of this home's controller, made where there is none. From then on the home is a served one's."""
    try:
        return str(json.loads(path.read_bytes())["id"])
    except FileNotFoundError:
        made = f"c{secrets.token_hex(8)}"
        write_atomic(path, json.dumps({"v": 1, "id": made}).encode() + b"\n")
        return made
    except (ValueError, KeyError, TypeError) as error:
        raise TenureError(
            "damaged_state",
            f"{path} is damaged: {error!r}",
            do=f"put a backup in its place, or begin anew, and join every agent again: rm {path}",
            facts={"path": str(path)},
        ) from error
    except OSError as error:
        raise os_error(error) from error
