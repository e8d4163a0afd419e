"""How the controller is reached: a socket of this machine, or TLS addresses with a token. The one place that knows.

Whatever an agent wants of its controller goes through here: its link (``connection``), and any request beside it
(``request``). What it dials elsewhere has to show the one certificate that the token file named, or one signed by the
authority it named; until then nothing of the token leaves this process.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tenure.errors import TenureError
from tenure.paths import connect_unix

CALL_S = 30.0
DEFAULT_PORT = 7420


class WrongCertificate(ssl.SSLError):
    """The other side showed another certificate than the one that was pinned; ``seen`` is its SHA-256."""

    def __init__(self, seen: str) -> None:
        super().__init__(f"another certificate than the pinned one, SHA-256 {seen}")
        self.seen = seen


@dataclass(frozen=True)
class Reach:
    """``path``: the local socket; else ``addresses`` (``HOST:PORT``), tried in turn.

    ``pin`` is the SHA-256 of the certificate in hexadecimal, or ``ca`` the authority's certificate as PEM text.
    ``token`` names the token and ``secret`` proves it. ``host`` is the one that the token is for, and ``controller``
    the id of the controller that made it.
    """

    path: Path | None = None
    addresses: tuple[str, ...] = ()
    pin: str = ""
    ca: str = field(default="", repr=False)
    token: str = ""
    secret: str = field(default="", repr=False)
    host: str = ""
    controller: str = ""

    @property
    def local(self) -> bool:
        """Whether the controller is one of this machine, behind a socket."""
        return self.path is not None

    @property
    def shown(self) -> str:
        """Where the controller answers, for people and for a job's ``RC_CONTROLLER``."""
        return str(self.path) if self.path is not None else f"https://{self.addresses[0]}"

    @property
    def authority(self) -> str:
        """The host that a request names."""
        return "localhost" if self.path is not None else self.addresses[0]

    def headers(self) -> dict[str, str]:
        """What every request carries beside its own."""
        return {"Authorization": f"Bearer {self.token}.{self.secret}"} if self.token else {}

    def context(self) -> ssl.SSLContext:
        """TLS that speaks with this controller and nobody else."""
        if self.ca:
            context = ssl.create_default_context(cadata=self.ca)
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            # The pin says more than a name could: it is one certificate, whatever it is called and for how long.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            _pin(context, self.pin)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context

    def dial(self, timeout_s: float = CALL_S) -> socket.socket:
        """A connected socket, through TLS where that is the way; blocking, with the timeout set. Raises
        ``controller_unreachable``, or ``authentication_refused`` where somebody else answers."""
        if self.path is not None:
            try:
                return connect_unix(self.path, timeout=timeout_s)
            except OSError as error:
                raise self.unreachable(str(error.strerror or error)) from error
        why: OSError | None = None
        for address in self.addresses:
            host, port = host_and_port(address)
            try:
                raw = socket.create_connection((host, port), timeout_s)
                try:
                    return self.context().wrap_socket(raw, server_hostname=host)
                except BaseException:
                    raw.close()
                    raise
            except ssl.SSLError as error:
                raise self.refused(error, address) from error
            except OSError as error:
                why = error
        raise self.unreachable(str(why.strerror or why) if why is not None else "no address is known") from why

    def request(
        self, method: str, target: str, body: bytes | None = None, *, timeout_s: float = CALL_S
    ) -> http.client.HTTPResponse:
        """One request, and its answer to be read (and closed) by the caller; blocking. Raises the ``TenureError`` that
        the controller answered with, and what ``dial`` raises."""
        link = http.client.HTTPConnection(self.authority, timeout=timeout_s)
        link.sock = self.dial(timeout_s)
        try:
            link.request(method, target, body, self.headers())
            answer = link.getresponse()
            if answer.status < 300:
                return answer
            with answer:
                raise said(answer.read(1 << 20), answer.status)
        except (OSError, http.client.HTTPException) as error:
            link.close()
            raise self.unreachable(str(error) or type(error).__name__) from error

    def ask(self, target: str, *, timeout_s: float = CALL_S) -> dict[str, Any]:
        """The JSON answer to a GET."""
        with self.request("GET", target, timeout_s=timeout_s) as answer:
            try:
                body = json.loads(answer.read())
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise self.unreachable(str(error)) from error
        if not isinstance(body, dict):
            raise self.unreachable("the answer is no object")
        return body

    def unreachable(self, why: str) -> TenureError:
        """The error that says that nobody answers there."""
        where = str(self.path) if self.path is not None else ", ".join(self.addresses)
        return TenureError(
            "controller_unreachable",
            f"no controller answers at {where}: {why}",
            do="see that it runs (rc status, at its host) and that nothing on the way stops what is dialled",
            facts={"addresses": list(self.addresses) or [where]},
        )

    def refused(self, error: ssl.SSLError, address: str) -> TenureError:
        """The error that says that what answers at an address is not this controller."""
        do = (
            "if the controller was given a new certificate: rc admin token create --agent "
            f"{self.host or 'HOST'} --out FILE there, and rc agent --join FILE here. If not, somebody stands in between"
        )
        if isinstance(error, WrongCertificate):
            said = f"what answers at {address} is not the controller this host joined: its certificate is another one"
            facts = {"address": address, "pinned": self.pin, "seen": error.seen}
        else:
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            said, facts = (
                f"what answers at {address} does not prove to be the controller: {reason}",
                {"address": address},
            )
        return TenureError("authentication_refused", f"{said}; nothing was told to it", do=do, facts=facts)


def said(body: bytes, status: int) -> TenureError:
    """The error in an answer; one of its own where there is none to be read."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        error = None
    if isinstance(error, Mapping):
        return TenureError.from_dict(error)
    return TenureError("internal", f"the controller answered with status {status} and nothing that can be read")


def host_and_port(address: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[IPv6]:PORT`` taken apart."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _pin(context: ssl.SSLContext, pin: str) -> None:
    """Makes the handshake itself fail on any other certificate: nothing was sent by then but what everybody may see."""

    def check(peer: ssl.SSLObject | ssl.SSLSocket) -> None:
        seen = hashlib.sha256(peer.getpeercert(True) or b"").hexdigest()
        if not hmac.compare_digest(seen, pin):
            raise WrongCertificate(seen)

    class PinnedObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            check(self)

    class PinnedSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            check(self)

    context.sslobject_class = PinnedObject
    context.sslsocket_class = PinnedSocket
