"""What agent and controller said to each other in wire version 1, and how it was written. Frozen: never edit to match
the program. Taken from the last commit that spoke it; only its imports were bent to the records beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from tests.upgrade.wire1 import records as cmd
from tests.upgrade.wire1.records import Instruction, StartJob, StopJob

from tenure.errors import TenureError

#: The version this side speaks, and the oldest it still understands.
WIRE: Final = 1
OLDEST_WIRE: Final = 1

#: Reports by the name under which agents queue them. ``device`` is never queued: it is superseded by the next look.
REPORTS: Final[Mapping[str, type[Any]]] = {
    "started": cmd.ReportStarted,
    "refused": cmd.ReportRefused,
    "ended": cmd.ReportEnded,
    "use": cmd.ReportUse,
    "device": cmd.ReportDevice,
}

T = TypeVar("T")


_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}


def adapter(cls: type[T]) -> TypeAdapter[T]:
    """The validator of one record type, made once."""
    found = _ADAPTERS.get(cls)
    if found is None:
        found = _ADAPTERS[cls] = TypeAdapter(cls)
    return found


def read(cls: type[T], body: Any) -> T:
    """A record from what the other side sent; raises ``invalid_request`` naming the field at fault."""
    try:
        return adapter(cls).validate_python(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TenureError(
            "invalid_request", f"{cls.__name__}: {where}: {first['msg']}", facts={"field": where}
        ) from error


def plain(record: Any) -> Any:
    """A record as JSON-able values."""
    return adapter(type(record)).dump_python(record, mode="json")


def dumps(frame: Mapping[str, Any]) -> str:
    """One text frame. Escapes keep lone surrogates, which argv and file names may hold, out of UTF-8."""
    return _encode(frame)


def loads(text: str | bytes) -> dict[str, Any]:
    """A text frame; raises ``invalid_request`` for anything but an object with a ``type``."""
    try:
        frame = _decode(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        raise TenureError("invalid_request", f"a frame that is no JSON: {str(text[:80])!r}") from error
    if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
        raise TenureError("invalid_request", "a frame without a type")
    return frame


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


# Made once: json makes both anew for every call that asks for anything but its defaults.
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder(parse_constant=_no_number).decode


def hello(register: cmd.Register) -> str:
    """The agent's first frame."""
    return dumps({"type": "hello", "wire": WIRE, "register": plain(register)})


def report(seq: int, kind: str, body: Mapping[str, Any]) -> str:
    """One report; ``seq`` 0 asks for no acknowledgement."""
    return dumps({"type": "report", "seq": seq, "kind": kind, "body": body})


def read_report(frame: Mapping[str, Any], agent: str) -> cmd.Command:
    """The command that a report frame stands for. The agent's identity is the connection's, never the frame's."""
    cls = REPORTS.get(str(frame.get("kind")))
    if cls is None:
        raise TenureError("invalid_request", f"a report of unknown kind {frame.get('kind')!r}")
    body = frame.get("body")
    if not isinstance(body, dict):
        raise TenureError("invalid_request", "a report without a body")
    command: cmd.Command = read(cls, {**body, "agent": agent})
    return command


def instruction(told: Instruction) -> str:
    """The frame that carries an instruction."""
    return dumps({"type": "start" if isinstance(told, StartJob) else "stop", "body": plain(told)})


def read_instruction(frame: Mapping[str, Any]) -> Instruction:
    """The instruction in a ``start`` or ``stop`` frame."""
    if frame["type"] == "start":
        return read(StartJob, frame.get("body"))
    return read(StopJob, frame.get("body"))


def check_wire(version: object) -> int:
    """The version both sides will speak; raises ``wire_version`` where they are too far apart."""
    if isinstance(version, bool) or not isinstance(version, int) or not OLDEST_WIRE <= version <= WIRE + 1:
        raise TenureError(
            "wire_version",
            f"the other side speaks wire version {version!r}, this side {OLDEST_WIRE} to {WIRE}",
            do="upgrade the older of the two",
        )
    return min(version, WIRE)


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """Bytes of an attempt's output as read, starting at ``offset``.

    ``runs`` cuts ``data`` into pieces of one stream: (stream 1 or 2, length, UTC time it was read).
    """

    job: str
    attempt: int
    offset: int
    runs: tuple[tuple[int, int, float], ...]
    data: bytes

    def to_bytes(self) -> bytes:
        """The binary frame."""
        head = {"job": self.job, "attempt": self.attempt, "offset": self.offset, "runs": self.runs}
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + self.data

    @classmethod
    def from_bytes(cls, frame: bytes) -> OutputChunk:
        """Reads a binary frame; raises ``invalid_request`` where head and bytes disagree."""
        head, _, data = frame.partition(b"\n")
        try:
            body = json.loads(head, parse_constant=_no_number)
            runs = tuple((int(s), int(n), float(t)) for s, n, t in body["runs"])
            chunk = cls(str(body["job"]), int(body["attempt"]), int(body["offset"]), runs, data)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise TenureError("invalid_request", f"an output frame that cannot be read: {error}") from error
        if (
            chunk.attempt < 1
            or chunk.offset < 0
            or any(s not in (1, 2) or n < 1 or not isfinite(t) for s, n, t in runs)
        ):
            raise TenureError("invalid_request", "an output frame with an attempt, offset or run that cannot be")
        if sum(length for _, length, _ in chunk.runs) != len(data):
            raise TenureError("invalid_request", "an output frame whose runs do not add up to its bytes")
        return chunk
