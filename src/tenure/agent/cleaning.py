"""Which scratch folders lie on this host, and removing those that no job needs: asked for by the controller.

An attempt that is on record and not over owns its scratch, and nothing here touches it. Of one that is not on record
its own files must say that nothing of it runs; where they do not, it is left, and said.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.agent import adopt, folders, scratch
from tenure.agent import records as r
from tenure.errors import TenureError
from tenure.wire import frames

if TYPE_CHECKING:
    from tenure.agent.shell import Shell

log = logging.getLogger("tenure.agent.cleaning")

#: Folders that one answer tells of, and seconds that working out all their sizes may take.
MOST, SIZES_S = 1000, 20.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be removed besides what no job owns: kept scratches, all or of these jobs, ended for so long."""

    kept: bool = False
    jobs: tuple[str, ...] = ()
    older_than_s: float = 0.0
    dry_run: bool = False


@dataclass(slots=True)
class Found:
    """What was removed (or would be), and what was left with its reason. Entries are plain values."""

    removed: list[dict[str, Any]] = field(default_factory=list)
    left: list[dict[str, Any]] = field(default_factory=list)


class Cleaner:
    """The scratch folders below ``attempts``. ``on_record`` gives the attempts as they are now; from any thread."""

    def __init__(
        self,
        attempts: Path,
        on_record: Callable[[], Mapping[r.Key, r.Attempt]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._attempts = attempts
        self._on_record = on_record
        self._clock = clock
        self._sizes_end = 0.0

    def kept(self) -> list[dict[str, Any]]:
        """Every scratch that is kept, with size and age."""
        self._sizes_end = time.monotonic() + SIZES_S
        found: list[dict[str, Any]] = []
        for folder, place, ended_at in scratch.kept(self._attempts):
            if len(found) < MOST and not self._runs(folder):
                found.append(self._told(folder, place, ended_at))
        return found

    def clean(self, wish: Wish) -> Found:
        """Removes what is wished, or only says what would be."""
        self._sizes_end = time.monotonic() + SIZES_S
        done = Found()
        for folder in sorted(self._attempts.iterdir()):
            if len(done.removed) + len(done.left) >= MOST:
                break
            try:
                self._clean_one(folder, wish, done)
            except (OSError, ValueError) as error:  # one that cannot be looked at must not keep the others
                done.left.append({"path": str(folder), "why": str(error)})
        return done

    def _clean_one(self, folder: Path, wish: Wish, done: Found) -> None:
        if self._runs(folder):
            return
        place, ended_at = scratch.place_of(folder), scratch.ended_at(folder)
        if scratch.is_kept(folder):
            job = folder.name.rpartition(".")[0]
            old = ended_at is not None and self._clock() - ended_at >= wish.older_than_s
            if not wish.kept or (wish.jobs and job not in wish.jobs) or not old:
                return
        there = [path for path in (place, *scratch.remains(folder)) if path.exists()]
        if not there:
            return
        unsure = _may_run(folder)
        if unsure:
            done.left += [{"path": str(path), "why": unsure} for path in there]
            return
        told = [self._told(folder, path, ended_at) for path in there]
        if not wish.dry_run:
            if self._runs(folder):
                return
            left = [one for path in there for one in scratch.remove(path)]
            if left:
                done.left += [{"path": one.path, "why": one.why} for one in left]
                return
            scratch.forget(folder)
            if folders.key_of(folder) not in self._on_record():
                folders.discard(folder)
        done.removed += told

    def _runs(self, folder: Path) -> bool:
        key = folders.key_of(folder)
        attempt = self._on_record().get(key) if key is not None else None
        return attempt is not None and attempt.phase != "ended"

    def _told(self, folder: Path, path: Path, ended_at: float | None) -> dict[str, Any]:
        job, _, attempt = folder.name.rpartition(".")
        within = min(scratch.SIZE_S, max(self._sizes_end - time.monotonic(), 0.05))
        return {
            "job": job,
            "attempt": int(attempt) if attempt.isdecimal() else None,
            "path": str(path),
            "bytes": scratch.size_of(path, within),
            "ended_at": ended_at,
        }


def _may_run(folder: Path) -> str:
    """Why something of an attempt may still run; empty where its own files say that nothing does."""
    if (folder / "exit.json").exists():
        return ""
    try:
        body = json.loads((folder / "supervisor.json").read_bytes())
    except FileNotFoundError:
        return "no supervisor's record is there, and none of its end"
    if body.get("sealed") or body.get("boot_id") != adopt.here()[0]:
        return ""
    return "there is no record of its end: whether something of it runs is not known"


async def answer(shell: Shell, frame: Mapping[str, Any]) -> None:
    """Does what the controller asks and sends the answer, or why there is none. A question that is not known is
    answered so."""
    body: dict[str, Any] = {}
    try:
        cleaner = Cleaner(shell.layout.attempts, lambda: shell.state.attempts)
        asked = frame.get("body") or {}
        if frame.get("what") == "scratch_kept":
            body = {"kept": await asyncio.to_thread(cleaner.kept)}
        elif frame.get("what") == "scratch_clean":
            wish = Wish(
                kept=bool(asked.get("kept")),
                jobs=tuple(map(str, asked.get("jobs") or ())),
                older_than_s=float(asked.get("older_than_s") or 0.0),
                dry_run=bool(asked.get("dry_run")),
            )
            done = await asyncio.to_thread(cleaner.clean, wish)
            body = {"removed": done.removed, "left": done.left}
        else:
            body = {"error": TenureError("invalid_request", f"nothing is known of {frame.get('what')!r}").to_dict()}
    except (OSError, ValueError, TypeError) as error:
        log.exception("a question could not be answered")
        body = {"error": TenureError("io_error", f"the agent could not look: {error}").to_dict()}
    shell.connection.send_text(frames.dumps({"type": "answer", "id": frame.get("id"), "body": body}))
