"""HTTP/1.1 over the controller's Unix socket: kept alive between calls, streamed where asked.

Written against the socket because ``http.client`` takes longer to import than a whole ``rc run`` may, and because a
stream that stops must be told from a stream that ended. One instance is one connection, for one thread.
"""

from __future__ import annotations

import os

from tenure.errors import TenureError
from tenure.sdk.lean import dumps, loads, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

CALL_S = 30.0
#: The controller sends a beat every 5 s on a quiet stream; this many seconds without a byte and it is not there.
STREAM_S = 30.0
_HEAD_LIMIT = 64 * 1024
_LINE_LIMIT = 16 * 1024 * 1024
#: Characters of a request's target; the controller's parser closes the connection on one that is longer than 64 KiB.
_TARGET_LIMIT = 32 * 1024
_PLAIN_PATH_BYTES = 100
_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~:")


class Unanswered(ConnectionError):
    """The connection could not be made, or broke before the whole answer was here."""


def quote(text: str) -> str:
    """Text as one piece of a target (RFC 3986, with ``:`` left as it is)."""
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in text.encode("utf-8", "surrogateescape"))


def query(values: Mapping[str, object]) -> str:
    """``?a=1&b=2`` of the values that are given; empty where none is."""
    given = [f"{name}={quote(str(value))}" for name, value in values.items() if value not in (None, "")]
    return "?" + "&".join(given) if given else ""


class Transport:
    """One connection to the controller behind a socket path, made when first needed and again after a break."""

    def __init__(self, path: str, timeout_s: float = CALL_S) -> None:
        self.path = path
        self.timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._buffer = b""

    def close(self) -> None:
        """Drops the connection; the next call makes a new one."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._buffer = None, b""

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def call(
        self,
        method: str,
        target: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        raw: bytes | None = None,
    ) -> dict[str, Any]:
        """One request, with a JSON body or ``raw`` bytes, and its JSON answer. Raises the ``TenureError`` that the
        controller answered with, ``controller_unreachable`` where nobody answers, ``authentication_refused`` where this
        user may not connect.

        Where a kept connection turns out to be closed, the request goes out once more on a fresh one: every request of
        this API may be repeated (submissions carry a key).
        """
        try:
            try:
                reused = self._socket is not None
                status, headers = self._ask(method, target, body, timeout_s or self.timeout_s, raw)
            except Unanswered:
                if not reused:
                    raise
                status, headers = self._ask(method, target, body, timeout_s or self.timeout_s, raw)
            data = b"".join(self._body(headers))
        except Unanswered as error:
            raise unreachable(self.path, str(error)) from error
        return _decoded(status, data)

    def lines(self, method: str, target: str, body: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """One request, answered by a stream of JSON lines. Raises ``Unanswered`` where it stops before its end, and
        the ``TenureError`` that the controller answered with instead of a stream."""
        self.close()
        status, headers = self._ask(method, target, body, STREAM_S)
        if status >= 300:
            _decoded(status, b"".join(self._body(headers)))
        rest = b""
        try:
            for piece in self._body(headers):
                rest += piece
                if b"\n" in piece:
                    whole, _, rest = rest.rpartition(b"\n")
                    for line in whole.split(b"\n"):
                        yield loads(line)
                elif len(rest) > _LINE_LIMIT:
                    raise Unanswered("a line of the stream is longer than any line may be")
        except ValueError as error:
            raise Unanswered(f"the stream holds something that is not JSON: {error}") from error
        finally:
            self.close()

    def _ask(
        self,
        method: str,
        target: str,
        body: Mapping[str, Any] | None,
        timeout_s: float,
        raw: bytes | None = None,
    ) -> tuple[int, dict[bytes, bytes]]:
        if len(target) > _TARGET_LIMIT:
            raise TenureError(
                "invalid_request",
                f"a name or filter of {len(target)} characters is longer than any can be",
                do="look at what it was made from; rc jobs and rc devices list the names",
            )
        data = raw if raw is not None else b"" if body is None else dumps(body).encode("ascii")
        head = f"{method} {target} HTTP/1.1\r\nHost: tenure\r\nContent-Length: {len(data)}\r\n"
        if data:
            head += f"Content-Type: {'application/json' if raw is None else 'application/octet-stream'}\r\n"
        if self._socket is None:
            self._socket = _connect(self.path, timeout_s)
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(head.encode("ascii") + b"\r\n" + data)
            return self._head()
        except OSError as error:
            self.close()
            raise _broken(error) from error
        except BaseException:
            self.close()  # an interrupted answer would be read as the answer to the next request
            raise

    def _more(self) -> bytes:
        assert self._socket is not None
        try:
            data = self._socket.recv(256 * 1024)
        except OSError as error:
            self.close()
            raise _broken(error) from error
        if not data:
            self.close()
            raise Unanswered("the connection was closed before the answer was whole")
        return data

    def _head(self) -> tuple[int, dict[bytes, bytes]]:
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > _HEAD_LIMIT:
                raise Unanswered("what answers there does not speak HTTP")
            self._buffer += self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *rest = head.split(b"\r\n")
        words = first.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise Unanswered("what answers there does not speak HTTP")
        pairs = (line.partition(b":") for line in rest)
        return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}

    def _take(self, size: int) -> Iterator[bytes]:
        """So many bytes, in pieces as they come."""
        while size:
            if not self._buffer:
                self._buffer = self._more()
            piece, self._buffer = self._buffer[:size], self._buffer[size:]
            size -= len(piece)
            yield piece

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            if len(self._buffer) > _HEAD_LIMIT:
                raise Unanswered("a chunk of the answer has no size")
            self._buffer += self._more()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _body(self, headers: Mapping[bytes, bytes]) -> Iterator[bytes]:
        """The answer's body in pieces, as the headers frame it (RFC 9112, section 6)."""
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            while True:
                try:
                    size = int(self._line().partition(b";")[0], 16)
                except ValueError as error:
                    raise Unanswered("a chunk of the answer has no size") from error
                if not size:
                    while self._line():
                        pass
                    break
                yield from self._take(size)
                if self._line():
                    raise Unanswered("a chunk of the answer is longer than it said")
        else:
            length = headers.get(b"content-length", b"0")
            if not length.isdigit():
                raise Unanswered("the answer has no length")
            yield from self._take(int(length))
        if headers.get(b"connection", b"").lower() == b"close":
            self.close()


def _connect(path: str, timeout_s: float) -> socket.socket:
    try:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(timeout_s)
            if len(os.fsencode(path)) <= _PLAIN_PATH_BYTES:
                connected.connect(path)
            else:
                _connect_far(connected, path)
        except BaseException:
            connected.close()
            raise
        return connected
    except PermissionError as error:
        raise TenureError(
            "authentication_refused",
            f"the controller's socket {path} may not be opened by this user",
            do="run your own with: rc up (TENURE_HOME says whose state is used)",
            facts={"path": path},
        ) from error
    except OSError as error:
        raise _broken(error) from error


def _connect_far(connecting: socket.socket, path: str) -> None:
    """Connects to a path that an address cannot hold, through its open folder, as ``tenure.paths`` binds it."""
    folder, _, name = path.rpartition("/")
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connecting.connect(f"/proc/self/fd/{fd}/{name}")
    finally:
        os.close(fd)


def _broken(error: OSError) -> Unanswered:
    return error if isinstance(error, Unanswered) else Unanswered(str(error.strerror or error or "no answer in time"))


def unreachable(path: str, why: str) -> TenureError:
    """The error that says that nobody answers, and why as far as it is known."""
    root = path.rpartition("/run/")[0]
    do = "start one with: rc up"
    if os.path.exists(f"{root}/controller/served.json"):  # noqa: PTH110 - pathlib is slow to import
        do = "start it as it was, for several hosts: rc serve (with its --listen)"
    elif os.path.exists(f"{root}/agent/joined.json"):  # noqa: PTH110 - see above
        do = "this home's agent serves a controller elsewhere (rc agent --join): ask there"
    return TenureError(
        "controller_unreachable",
        f"no controller answers at {path}: {why}",
        do=do,
        facts={"path": path},
    )


def _decoded(status: int, data: bytes) -> dict[str, Any]:
    try:
        body = loads(data) if data else {}
    except ValueError:
        body = None
    if status < 300 and isinstance(body, dict):
        return body
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        raise TenureError.from_dict(error)
    raise TenureError("internal", f"the controller answered with status {status} and nothing that can be read")
