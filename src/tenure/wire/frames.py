"""What agent and controller say to each other over one WebSocket, and how it is written.

Text frames are JSON objects with a ``type``; output travels in binary frames (a JSON head line, then the bytes).
Each side sends its wire version first and the two may differ by one. Fields that are not known are ignored, so a
version may add but never take away; the previous version's messages are kept as captures.

Version 2 added reports of the kind ``notice``; a controller of version 1 acknowledges them and shows nothing.
It also added ``floors`` to the welcome, and ``lost`` to the heads of output frames.

Agent to controller: ``hello`` (wire, register), ``report`` (seq, kind, body), ``left`` (body), ``beat``, and output.
Controller to agent: ``welcome`` (wire, controller), ``start``, ``stop``, ``ack`` (seq), ``output_ack``, ``refused``.
A controller may also ``ask`` (id, what, body), and the agent answers with ``answer`` (id, body) when it has done so;
frames of a kind that an agent does not know it leaves alone, so an older one does not answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError

from tenure.domain import commands as cmd
from tenure.domain.instructions import Instruction, StartJob, StopJob
from tenure.errors import TenureError

#: The version this side speaks, and the oldest it still understands.
WIRE: Final = 2
OLDEST_WIRE: Final = 1

#: Reports by the name under which agents queue them. ``device`` is never queued: it is superseded by the next look.
REPORTS: Final[Mapping[str, type[Any]]] = {
    "started": cmd.ReportStarted,
    "refused": cmd.ReportRefused,
    "ended": cmd.ReportEnded,
    "use": cmd.ReportUse,
    "notice": cmd.ReportNotice,
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
            "invalid_request", f"{getattr(cls, '__name__', cls)}: {where}: {first['msg']}", facts={"field": where}
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


def left(body: Mapping[str, Any]) -> str:
    """What jobs left on the agent's host. It supersedes the one before; a controller that does not know it goes on."""
    return dumps({"type": "left", "body": body})


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


def welcome(wire: int, controller: str, floors: Mapping[str, int]) -> str:
    """The controller's first frame. ``floors``: device UUID -> the highest token that may not come again."""
    return dumps({"type": "welcome", "wire": wire, "controller": controller, "floors": floors})


def read_floors(frame: Mapping[str, Any]) -> dict[str, int]:
    """The floors of a welcome; none from a controller of version 1."""
    return read(dict[str, int], frame.get("floors") or {})


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


#: Bytes of an output that were not stored where it was written: stream, how many, cause, UTC time of the first.
Lost: TypeAlias = tuple[int, int, str, float]
#: Why: the disk refused them, or the attempt's quota was used up.
CAUSES: Final = ("disk", "quota", "unknown")


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """Bytes of an attempt's output as read, starting at ``offset``.

    ``runs`` cuts ``data`` into pieces of one stream: (stream 1 or 2, length, UTC time it was read). ``lost`` is what
    was lost between the byte before ``offset`` and the one at it.
    """

    job: str
    attempt: int
    offset: int
    runs: tuple[tuple[int, int, float], ...]
    data: bytes
    lost: tuple[Lost, ...] = ()

    def to_bytes(self) -> bytes:
        """The binary frame."""
        head: dict[str, Any] = {"job": self.job, "attempt": self.attempt, "offset": self.offset, "runs": self.runs}
        if self.lost:
            head["lost"] = self.lost
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + self.data

    @classmethod
    def from_bytes(cls, frame: bytes) -> OutputChunk:
        """Reads a binary frame; raises ``invalid_request`` where head and bytes disagree."""
        head, _, data = frame.partition(b"\n")
        try:
            body = json.loads(head, parse_constant=_no_number)
            runs = tuple((int(s), int(n), float(t)) for s, n, t in body["runs"])
            lost = tuple((int(s), int(n), str(why), float(t)) for s, n, why, t in body.get("lost", ()))
            chunk = cls(str(body["job"]), int(body["attempt"]), int(body["offset"]), runs, data, lost)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise TenureError("invalid_request", f"an output frame that cannot be read: {error}") from error
        if (
            chunk.attempt < 1
            or chunk.offset < 0
            or any(s not in (1, 2) or n < 1 or not isfinite(t) for s, n, t in runs)
            or any(s not in (1, 2) or not 1 <= n < 1 << 32 or not isfinite(t) for s, n, _, t in lost)
            or (lost and not runs)
        ):
            raise TenureError("invalid_request", "an output frame with an attempt, offset or run that cannot be")
        if sum(length for _, length, _ in chunk.runs) != len(data):
            raise TenureError("invalid_request", "an output frame whose runs do not add up to its bytes")
        return chunk
