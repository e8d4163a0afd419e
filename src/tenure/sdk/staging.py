"""Stages a folder: packs what belongs to it and sends that to the controller, unless it has it already.

The folder is read once for its hash, and a second time only where its content has to be sent. What was sent is what
counts: a file that changed in between is carried as it was then, and named.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tenure.agent import trees
from tenure.domain.tree import TreeError, shown
from tenure.errors import TenureError
from tenure.sdk.gittree import survey
from tenure.sdk.transport import Transport, Unanswered, quote

#: Bytes of one piece of an upload.
PIECE = 4 << 20
#: Seconds for which a controller may be gone in the middle of an upload.
PATIENCE_S = 90.0
_NAMED = 3


@dataclass(slots=True)
class Staged:
    """What was staged: ``stage`` goes into the job's request. ``sent`` is bytes that had to travel; ``notes`` are for
    people."""

    stage: dict[str, Any]
    sent: int = 0
    notes: list[str] = field(default_factory=list)


def stage(
    folder: str,
    connection: Transport,
    *,
    progress: Callable[[str, int, int], object] = lambda doing, done, total: None,
    revive: Callable[[], object] = lambda: None,
) -> Staged:
    """Stages a folder. ``progress`` is told what is done (``packing``, ``sending``) with bytes done and in all;
    ``revive`` is called where no controller answers.

    Raises ``stage_failed`` naming what cannot be packed, ``invalid_request`` and ``disk_full`` as the controller does.
    """
    if not os.path.isdir(folder):  # noqa: PTH112
        what = "is no folder" if os.path.lexists(folder) else "is not there"
        raise TenureError("stage_failed", f"{folder} {what}", do="name a folder that is", facts={"path": folder})
    try:
        found = survey(folder)
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _stage(folder, root, found.names, found, connection, progress, revive)
        finally:
            os.close(root)
    except TreeError as error:
        raise TenureError(
            "stage_failed", f"{folder} cannot be staged: {error}", do="rename it, or have git ignore it"
        ) from error
    except OSError as error:
        if isinstance(error, ConnectionError):
            raise
        raise TenureError(
            "stage_failed",
            f"{folder} cannot be staged: {shown(os.fsencode(error.filename or '?'))}: {error.strerror}",
            do="make it readable, or have git ignore it",
            facts={"path": folder, "errno": error.errno},
        ) from error


def _stage(
    folder: str,
    root: int,
    names: list[bytes],
    found: Any,
    connection: Transport,
    progress: Callable[[str, int, int], object],
    revive: Callable[[], object],
) -> Staged:
    counted = _Counted()
    packed = trees.pack(
        root, names, counted.write, kinds=found.kinds, progress=lambda done: progress("packing", done, 0)
    )
    if not packed.values:
        raise TenureError(
            "stage_failed",
            f"nothing of {folder} is to be staged: it is empty, or git ignores all of it",
            do="look with: git ls-files --cached --others --exclude-standard",
        )
    changed = list(packed.changed)
    sent = 0
    told = _asked(connection, f"/v1/stages/{packed.hash}?announce={counted.size}", revive)
    if told["bytes"] is None:
        upload = _Upload(connection, revive, lambda done: progress("sending", done, counted.size))
        again = trees.pack(root, list(packed.values), upload.write, kinds=found.kinds)
        changed += [name for name in packed.values if packed.values[name] != again.values.get(name)]
        changed += again.changed
        packed = again
        sent = upload.finish(packed.hash)
    notes = list(found.notes)
    notes += _some(sorted(set(changed)), "changed while it was packed; staged is what was read then")
    notes += _some([*found_gone(packed, names)], "is tracked and not there; it was not staged")
    notes += _some(packed.special, "is no file, link or folder; it was not staged")
    about: dict[str, Any] = {
        "hash": packed.hash,
        "bytes": sent or counted.size,
        "size": packed.size,
        "entries": len(packed.values),
        "source": os.fsencode(os.path.abspath(folder)).decode("utf-8", "backslashreplace"),  # noqa: PTH100
        "commit": found.commit,
    }
    if found.dirty is not None:
        about["dirty"] = found.dirty
    return Staged(about, sent, notes)


def found_gone(packed: trees.Packed, names: list[bytes]) -> list[bytes]:
    """The names that were to be packed and are not there."""
    there = set(packed.special)
    return [name for name in names if name not in packed.values and name not in there]


def _some(names: list[bytes], what: str) -> list[str]:
    """One note for many names."""
    if not names:
        return []
    listed = ", ".join(shown(name) for name in names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [f"{listed}{more} {what}"]


class _Counted:
    def __init__(self) -> None:
        self.size = 0

    def write(self, data: bytes) -> None:
        self.size += len(data)


class _Upload:
    """A stream on its way to the controller, in pieces, through breaks of the connection."""

    def __init__(self, connection: Transport, revive: Callable[[], object], progress: Callable[[int], object]) -> None:
        self._connection = connection
        self._revive = revive
        self._progress = progress
        self._name = os.urandom(16).hex()
        self._held = bytearray()
        self._sent = 0

    def write(self, data: bytes) -> None:
        """Takes bytes in, and sends them once there are enough."""
        self._held += data
        while len(self._held) >= PIECE:
            self._send(PIECE)

    def finish(self, tree: str) -> int:
        """Sends the rest, has it taken in under its hash, and gives the bytes of all of it."""
        if self._held:
            self._send(len(self._held))
        # The controller reads all of it once more before it answers.
        within = 60.0 + self._sent / (20 << 20)
        _insisting(
            lambda: self._connection.call("POST", f"/v1/uploads/{self._name}/finish", {"hash": tree}, timeout_s=within),
            self._revive,
        )
        return self._sent

    def _send(self, size: int) -> None:
        end = self._sent + size
        while self._sent < end:
            target = f"/v1/uploads/{quote(self._name)}?offset={self._sent}"
            ask = partial(self._connection.call, "PUT", target, raw=bytes(self._held[: end - self._sent]))
            have = int(_insisting(ask, self._revive)["received"])
            if not self._sent <= have <= end:
                raise TenureError(
                    "stage_failed",
                    f"the controller has {have} bytes of the upload and {self._sent} were sent: it lost some",
                    do="stage it again",
                )
            del self._held[: have - self._sent]
            self._sent = have
            self._progress(have)


def _asked(connection: Transport, target: str, revive: Callable[[], object]) -> Mapping[str, Any]:
    return _insisting(lambda: connection.call("GET", target), revive)


def _insisting(call: Callable[[], dict[str, Any]], revive: Callable[[], object]) -> dict[str, Any]:
    """A call that is made again while no controller answers, for so long as one may take to come back."""
    end, pause = time.monotonic() + PATIENCE_S, 0.05
    while True:
        try:
            return call()
        except (TenureError, Unanswered) as error:
            gone = isinstance(error, Unanswered) or error.code in ("controller_unreachable", "controller_starting")
            if not gone or time.monotonic() > end:
                raise
        revive()
        time.sleep(pause)
        pause = min(2 * pause, 1.0)
