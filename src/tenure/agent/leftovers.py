"""Looks what jobs leave on this worker, and keeps which job left what.

One look when the agent comes up, one after a job's end, one now and then where nothing happens: all in the background,
by a child at the lowest priority, so that neither a start nor a release waits. Jobs that are short and many share a
look, and what it finds is then said of one of them.

Which attempts ran since the last look is in the journal, from before their command starts until a look that began
after their end is on disk. So an agent that is killed between an end and its look leaves nothing out: the next one
looks, and asks the same attempts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.agent import leftovers_file
from tenure.agent import records as r
from tenure.agent.leftovers_file import Kept
from tenure.agent.waiting import until_set
from tenure.domain import leftovers as domain
from tenure.domain import leftovers_words as words
from tenure.domain.reading import Reading, Unavailable, Value
from tenure.probes.fingerprint import VERSIONS, FingerprintProbe, Look, Read, Roots, root_identity
from tenure.wire import frames

if TYPE_CHECKING:
    from tenure.agent.shell import Shell

log = logging.getLogger("tenure.agent.leftovers")

#: Parts of a fingerprint in which nothing is a leftover: what is in them is told in another way.
_ASIDE = frozenset({"versions", "scratch"})
#: How long to wait after a look that failed in a way nobody thought of.
AFTER_FAILURE_S = 60.0
#: Jobs that a start's account names.
MOST_NAMED = 8


class Leftovers:
    """What is known of this worker. ``run`` looks until cancelled; everything else is quick."""

    def __init__(self, shell: Shell) -> None:
        options = shell.options
        self._shell = shell
        self._roots = Roots(
            root=options.leftovers_root or "/",
            home=options.leftovers_home,
            versions=VERSIONS if options.leftovers_versions else (),
            attempts=str(shell.layout.attempts),
        )
        self._probe = FingerprintProbe(self._roots)
        self.file: Path = shell.layout.agent / "leftovers.json"
        self.kept: Kept | None = None
        self.looks = 0
        self._read: dict[str, Read] = {}
        self._scratch: Reading[domain.Listing] | None = None
        self._took: tuple[float, float] | None = None
        self._problem = ""
        self._after: deque[str] = deque(maxlen=words.MAX_TOLD)
        self._wake = asyncio.Event()

    def ended(self) -> None:
        """An attempt is over: a look is due."""
        self._wake.set()

    async def run(self) -> None:
        """Looks, again and again, until cancelled."""
        options = self._shell.options
        if not options.leftovers:
            await asyncio.Event().wait()
        loop = asyncio.get_running_loop()
        while True:
            began, pause = loop.time(), options.leftovers_idle_s
            self._wake.clear()
            try:
                await self.look()
            except Exception:
                log.exception("the look at what jobs left failed")
                pause = AFTER_FAILURE_S
            await asyncio.sleep(max(0.0, began + options.leftovers_every_s - loop.time()))
            if not await until_set(self._wake, max(0.001, began + pause - loop.time())):
                continue

    async def look(self) -> None:
        """One look: finds what changed, keeps it durably, and then tells of it."""
        state = self._shell.state
        if self.kept is None:
            await asyncio.to_thread(self._load)
        over = frozenset(
            key for key in state.unlooked if key not in state.attempts or state.attempts[key].phase == "ended"
        )
        began = time.time()
        seen = await self._probe.look(self._read)
        ran, more = self._ran(), state.unlooked_more  # now: whoever began meanwhile may have been seen at it
        changed = await asyncio.to_thread(self._take, seen, (began, time.time()), ran, more, over)
        self._shell.tell(r.WorkerLooked(over))
        self.looks += 1
        self._after.extend(dict.fromkeys(job for job, _ in over))
        if changed:
            assert self.kept is not None
            log.info("looked at this worker: %d leftovers (%.3f s)", len(self.kept.worker.leftovers), seen.took_s)
        self.tell()

    def _ran(self) -> list[str]:
        """The jobs of which anything may have run since the last look began, up to now."""
        state, covered = self._shell.state, self.kept.covered if self.kept is not None else frozenset()
        running = [key for key, attempt in state.attempts.items() if attempt.phase != "ended"]
        keys = dict.fromkeys((*state.unlooked, *running))
        return [job for job, attempt in keys if (job, attempt) not in covered]

    def _load(self) -> None:
        """What an earlier agent kept of this very worker. What cannot be read is moved aside and said."""
        identity = self._identity()
        try:
            kept = leftovers_file.load(self.file)
        except (OSError, ValueError) as error:
            self._problem = f"{self.file} could not be read ({error}); what there is now is taken for the image"
            log.error("%s", self._problem)
            kept = None
            self._set_aside()
        if kept is not None and kept.identity != identity:
            log.info(
                "this worker is another than before (%s, was %s): its image is taken afresh", identity, kept.identity
            )
            kept = None
            self._set_aside()
        if kept is not None and self._shell.options.image not in ("", kept.declared):
            log.info("the image is declared anew: %s", self._shell.options.image)
            kept = None
            self._set_aside()
        self.kept = kept

    def _set_aside(self) -> None:
        if self.file.exists():
            self.file.replace(self.file.with_name("leftovers.before.json"))

    def _identity(self) -> str:
        """What this worker is known by: the machine (whose folder this is), and its root file system."""
        root = Path(self._roots.root)
        inode = root.stat().st_ino
        if self._roots.root != "/":
            return f"folder {inode}"
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
        except OSError:
            mounts = ""
        return root_identity(mounts, self._shell.identity.boot_id, inode)

    def _take(self, seen: Look, span: tuple[float, float], ran: list[str], more: int, over: frozenset[r.Key]) -> bool:
        """Works a look into what is known, durably before anybody is told of it. Gives whether anything changed."""
        self._took = (seen.took_s, sum(seen.parts_s.values()))
        known = self.kept is not None
        found = {
            part: _listing(reading)
            for part, reading in seen.parts.items()
            if part not in _ASIDE and not (known and part in seen.same)
        }
        self._read = {part: each.value for part, each in seen.parts.items() if isinstance(each, Value)}
        if "scratch" in seen.parts:
            self._scratch = _listing(seen.parts["scratch"])
        before = self.kept
        if before is None:
            worker = domain.fresh(found, span[0], ran)
            kept = Kept(self._identity(), worker, self._shell.options.image, over)
        else:
            worker = domain.looked(before.worker, found, *span, ran, more)
            same = replace(worker, looked_at=before.worker.looked_at) == before.worker
            kept = replace(before, worker=worker, covered=before.covered if same else over)
            if same:
                self.kept = kept
                return False
        leftovers_file.save(self.file, kept)
        self.kept = kept
        return True

    # -- telling

    @property
    def versions(self) -> dict[str, str]:
        """Path -> version of the tools whose version is asked."""
        read = self._read.get("versions")
        items = read.listing.items if read is not None else {}
        return {path: what.rpartition(" ")[2] for path, what in items.items() if not what.endswith(" ")}

    def told(self) -> dict[str, Any] | None:
        """What the controller is told; None before the first look."""
        if self.kept is None:
            return None
        body = words.told(self.kept.worker, self.versions, str(self.file))
        body["image"] |= {"worker": self.kept.identity, "declared": self.kept.declared}
        body["looks"] = {
            "count": self.looks,
            "took_s": self._took[0] if self._took else None,
            "reading_s": self._took[1] if self._took else None,
            "every_s": self._shell.options.leftovers_every_s,
        }
        body["looked_after"] = list(self._after)
        body["scratch"] = self._scratch_body()
        body["problem"] = self._problem
        return body

    def _scratch_body(self) -> dict[str, Any]:
        if self._scratch is None or isinstance(self._scratch, Unavailable):
            reason = "not looked at yet" if self._scratch is None else str(self._scratch.reason)
            return {"unknown": reason}
        found: list[dict[str, Any]] = []
        for name, told in self._scratch.value.items.items():
            size, _, kept = told.partition(" ")
            job, _, attempt = name.rpartition(".")
            found.append({"job": job or name, "attempt": attempt, "bytes": int(size), "kept": bool(kept)})
        found.sort(key=lambda each: -each["bytes"])
        return {
            "bytes": sum(each["bytes"] for each in found),
            "kept_bytes": sum(each["bytes"] for each in found if each["kept"]),
            "attempts": len(found),
            "largest": found[: words.MAX_TOLD],
            "unread": dict(list(self._scratch.value.blind.items())[: words.NAMED]),
        }

    def tell(self) -> None:
        """Tells the controller, if there is one on the line; the next welcome says it again."""
        told = self.told()
        if told is not None:
            self._shell.connection.send_text(frames.left(told))

    def at_start(self, key: r.Key) -> dict[str, Any]:
        """What was there, that no image had, when an attempt started: for its record."""
        if self.kept is None:
            return {"unknown": "nobody had looked at this worker yet"}
        worker, versions = self.kept.worker, self.versions
        found = domain.there_at_start(worker, key[0])
        pending = list(dict.fromkeys(job for job in self._ran() if job != key[0]))
        first = sorted(found, key=lambda each: (each.item not in versions, each.part, each.item))[: words.NAMED]
        return {
            "count": len(found),
            "words": words.start_words(found, versions, pending),
            "first": [words.thing(each, versions) for each in first],
            "from": sorted({job for each in found for job in each.by.jobs})[:MOST_NAMED],
            "not_looked_after": pending[:MOST_NAMED],
            "not_looked_after_count": len(pending),
            "looked_at": worker.looked_at,
        }

    def close(self) -> None:
        """Nothing of it is left behind but a child that hangs, if any."""
        self._probe.close()


def _listing(reading: Reading[Read]) -> Reading[domain.Listing]:
    if isinstance(reading, Unavailable):
        return reading
    return Value(reading.value.listing, reading.at, reading.instrument, reading.scope)
