"""The agent's journal: every event of its core, durable before anything follows from it.

One decision is one frame. Its events stand or fall together: an end without the report that tells of it would leave
the controller waiting for ever. The journal is compacted into a snapshot once it has grown past its limit.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from tenure.agent import core
from tenure.agent import records as r
from tenure.domain.instructions import Instruction
from tenure.durable import FramedLog, Torn
from tenure.errors import TenureError
from tenure.wire import frames

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(r.AgentEvent)}

#: Events that may be lost to a power cut without harm: what they took off the list is sent again, and taken again.
#: What follows from forgetting (the output is deleted) waits until it is ``durable``.
#: Without ``JobsUnlooked`` the next look counts from an earlier one, and says so.
_MAY_BE_LATE = (r.ReportAcked, r.OutputAcked, r.AttemptForgotten, r.JobsUnlooked)

#: Kinds that a version before them does not know and can do without. Each travels inside an event of the first version
#: that changes nothing (an acknowledgement of nothing), so that an agent may be put back to that version.
_LATER = (r.JobsUnlooked,)
_CARRIER, _CARRIED = r.ReportAcked.__name__, "more"

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def encode(events: Sequence[r.AgentEvent]) -> bytes:
    """One decision's events as the payload of one frame."""
    return _encode([_written(event) for event in events]).encode()


def _written(event: r.AgentEvent) -> list[Any]:
    own = [type(event).__name__, frames.plain(event)]
    return [_CARRIER, {"seq": 0, _CARRIED: own}] if isinstance(event, _LATER) else own


def decode(payload: bytes) -> list[r.AgentEvent]:
    """The events that ``encode`` wrote; raises ``ValueError`` or ``TenureError`` for anything else."""
    events: list[r.AgentEvent] = []
    for name, body in json.loads(payload):
        if name == _CARRIER and _CARRIED in body:
            name, body = body[_CARRIED]
            if name not in _KINDS:
                continue  # a newer version's, who can do without
        if name not in _KINDS:
            raise ValueError(f"an event of unknown kind {name!r}")
        events.append(frames.read(_KINDS[name], body))
    return events


class Journal:
    """The open journal. ``recovered`` says what opening had to cut off a torn tail."""

    def __init__(self, log: FramedLog, limit_bytes: int) -> None:
        self._log = log
        self._limit = limit_bytes
        self.recovered: Torn | None = log.recovered

    @classmethod
    def open(
        cls, path: Path, state: core.AgentState, *, limit_bytes: int = 8 << 20, attempts: Path | None = None
    ) -> Journal:
        """Replays the journal into a fresh state and opens it for appending.

        A torn tail that was never durable is cut off; bytes that had been durable and changed since raise
        ``damaged_state``, as does an event that this version cannot read. Then nothing may be started: the highest
        tokens accepted here would not be known. So does an empty journal beside folders in ``attempts``: each was on
        record here before its folder was made. A journal that is not there at all was moved aside, and begins anew.
        """
        _refuse_emptied(path, attempts)
        log = FramedLog.open(path)
        try:
            if log.end == 0:
                log.append(encode([]))  # from now on an empty file is one that lost what it held
                log.sync()
            for frame in log.frames():
                try:
                    for event in decode(frame.payload):
                        core.evolve(state, event)
                except (ValueError, TypeError, KeyError, TenureError) as error:
                    raise TenureError(
                        "damaged_state",
                        f"{path} holds an event at byte {frame.offset} that cannot be read: {error}.",
                        do="Nothing was changed. If a newer version wrote it, start that version; else put a backup "
                        "in its place, or start without it once you know that no job runs on this host: "
                        f"mv {shlex.quote(str(path))} {shlex.quote(str(path) + '.damaged')}",
                        facts={"path": str(path), "offset": frame.offset},
                    ) from error
        except BaseException:
            log.close()
            raise
        return cls(log, limit_bytes)

    def record(self, events: Sequence[r.AgentEvent]) -> None:
        """Makes events durable. Raises ``LogFailed``; its ``usable`` says whether another try can succeed."""
        self._log.append(encode(events))
        if not all(isinstance(event, _MAY_BE_LATE) for event in events):
            self._log.sync()

    def sync(self) -> None:
        """Makes durable what was left for later. Raises ``LogFailed``."""
        self._log.sync()

    @property
    def durable(self) -> bool:
        """Whether nothing was left for later."""
        return self._log.synced == self._log.end

    def compact(self, state: core.AgentState) -> bool:
        """Replaces the history by a snapshot where it has outgrown the limit, and doubles a limit that is too low."""
        if self._log.end <= self._limit:
            return False
        self._log.replace([encode([event]) for event in core.snapshot(state)])  # all or nothing, however many frames
        self._limit = max(self._limit, 2 * self._log.end)
        return True

    @property
    def size(self) -> int:
        """Bytes in the journal."""
        return self._log.end

    def close(self) -> None:
        """Syncs what may have been left for later, and closes."""
        try:
            self._log.sync()
        finally:
            self._log.close()


def _refuse_emptied(path: Path, attempts: Path | None) -> None:
    if attempts is None or not path.is_file() or path.stat().st_size or not any(attempts.iterdir()):
        return
    raise TenureError(
        "damaged_state",
        f"{path} is empty, and there are attempts of jobs in {attempts} that it had on record.",
        do="Nothing was changed. Put a backup in its place, or start without it once you know that no job runs on this "
        f"host: mv {shlex.quote(str(path))} {shlex.quote(str(path) + '.damaged')}",
        facts={"path": str(path), "offset": 0},
    )


def warm() -> None:
    """Makes every validator ahead of the first job, which would otherwise wait for it. Run in a thread."""
    for kind in (*_KINDS.values(), *get_args(Instruction)):
        frames.adapter(kind)
