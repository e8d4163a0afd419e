"""What is on a worker that its image did not have, and which job left it there. Pure.

A fingerprint is what one look at a worker found, part by part: each part a listing, or the reason why nobody could
look. The image is the first fingerprint of a worker; everything that differs from it is a leftover.

Nobody watches a job write. What a look finds new was made at some moment since the look before, so whoever ran in
between may have made it: one job made it, or one of several did, or nobody's did. What could not be read before or now
is unknown: it is neither new nor gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tenure.domain.reading import Reading, Unavailable

#: Leftovers that are gone and are still told of; the oldest are forgotten first.
MAX_CLOSED = 200
#: Earlier makers of one leftover that are kept.
MAX_EARLIER = 4
#: Possible makers that a line names; the rest are counted.
NAMED = 4


@dataclass(frozen=True, slots=True)
class Listing:
    """What one part has: name -> identity, two of which are equal only where nothing was changed.

    ``blind``: prefix -> why nobody could look at what lies under it. The empty prefix covers the whole part.
    """

    items: Mapping[str, str]
    blind: Mapping[str, str] = field(default_factory=dict)


Fingerprint: TypeAlias = Mapping[str, Reading[Listing]]
"""Part -> what one look found there."""


@dataclass(frozen=True, slots=True)
class Maker:
    """Who made a change, as far as that was observed.

    ``kind``: ``job`` (the only one that ran), ``one_of`` (several did), ``outside`` (none did) or ``unknown`` (nobody
    could look before; ``why`` says it). ``more``: how many jobs there were beyond the ones named.
    """

    kind: str
    jobs: tuple[str, ...] = ()
    more: int = 0
    why: str = ""

    @property
    def words(self) -> str:
        """As people read it."""
        match self.kind:
            case "job":
                return self.jobs[0]
            case "one_of":
                rest = max(0, len(self.jobs) - NAMED) + self.more
                return f"one of {', '.join(self.jobs[:NAMED])}" + (f" and {rest} more" if rest else "")
            case "outside":
                return "outside any job"
        return f"unknown ({self.why})"


OUTSIDE = Maker("outside")


def made_by(jobs: Iterable[str], more: int = 0) -> Maker:
    """The maker of what was found new, by the jobs of which anything ran since the look before."""
    named = tuple(dict.fromkeys(jobs))
    if not named and not more:
        return OUTSIDE
    return Maker("job" if len(named) == 1 and not more else "one_of", named, more)


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that is not as the image had it.

    ``image`` and ``now`` are identities, None where there is nothing. ``by`` made the latest change, at some time
    between ``since`` and ``found`` (UTC seconds), and ``earlier`` the ones before it. ``gone`` and ``gone_by``: when it
    was found to be as in the image again. ``unseen`` says why the last look could not see it.
    """

    part: str
    item: str
    image: str | None
    now: str | None
    by: Maker
    since: float
    found: float
    earlier: tuple[Maker, ...] = ()
    gone: float | None = None
    gone_by: Maker | None = None
    unseen: str = ""

    @property
    def how(self) -> str:
        """``added``, ``changed`` or ``removed``, compared with the image."""
        return "added" if self.image is None else "removed" if self.now is None else "changed"

    @property
    def jobs(self) -> tuple[str, ...]:
        """Every job that made it or may have."""
        return tuple(dict.fromkeys(job for maker in (self.by, *self.earlier) for job in maker.jobs))


@dataclass(frozen=True, slots=True)
class Part:
    """What is known of a part: items as last read, and what no look has ``never`` read, or not the last (``blind``)."""

    items: Mapping[str, str]
    blind: Mapping[str, str] = field(default_factory=dict)
    never: Mapping[str, str] = field(default_factory=dict)


Item: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Worker:
    """All that is known of one worker.

    ``image_at`` (UTC seconds) is when its image was taken; ``image_jobs`` ran before or while it was, so what they had
    changed by then reads as image. ``unsure``: part -> prefix -> why it could not be read then, and so nobody knows
    whether what was found there later is image. ``looked_at`` is when the last look began.
    """

    image_at: float
    image_jobs: tuple[str, ...]
    parts: Mapping[str, Part]
    looked_at: float
    unsure: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    leftovers: Mapping[Item, Leftover] = field(default_factory=dict)
    closed: Sequence[Leftover] = ()


def covering(prefixes: Mapping[str, str], item: str) -> str | None:
    """The prefix that an item lies under; None where there is none."""
    for prefix in prefixes:
        if not prefix or item == prefix or item.startswith(prefix.rstrip("/") + "/"):
            return prefix
    return None


def listing_of(reading: Reading[Listing]) -> Listing:
    """A reading as a listing: one that is not there covers the whole part."""
    if isinstance(reading, Unavailable):
        return Listing({}, {"": f"{reading.reason}: {reading.detail}" if reading.detail else str(reading.reason)})
    return reading.value


def fresh(seen: Fingerprint, began: float, jobs: Iterable[str] = ()) -> Worker:
    """The worker at its first look: what is there is its image. ``jobs`` ran before the look's end."""
    parts, unsure = {}, {}
    for name, reading in seen.items():
        found = listing_of(reading)
        parts[name] = Part(_readable(found), dict(found.blind), dict(found.blind))
        if found.blind:
            unsure[name] = dict(found.blind)
    return Worker(began, tuple(dict.fromkeys(jobs)), parts, began, unsure)


def looked(worker: Worker, seen: Fingerprint, began: float, ended: float, jobs: Iterable[str], more: int = 0) -> Worker:
    """The worker after another look, from ``began`` to ``ended`` (UTC seconds).

    ``jobs``: of which anything may have run between the beginning of the look before and the end of this one. A part
    that no look had before is taken in as nobody knows it: it was not asked for then.
    """
    step = _Step(worker, ended, made_by(jobs, more))
    parts = dict(worker.parts)
    unsure = dict(worker.unsure)
    for name, reading in seen.items():
        found, before = listing_of(reading), worker.parts.get(name)
        if before is None:
            before = Part({}, {"": "not looked at before"}, {"": "not looked at before"})
            unsure[name] = dict(before.never)
        parts[name] = step.part(name, before, found)
    closed = (*worker.closed, *step.closed)[-MAX_CLOSED:]
    return replace(worker, parts=parts, unsure=unsure, leftovers=step.leftovers, closed=closed, looked_at=began)


class _Step:
    """One look being worked into what is known."""

    def __init__(self, worker: Worker, at: float, by: Maker) -> None:
        self._worker = worker
        self._at = at
        self._by = by
        self.leftovers = dict(worker.leftovers)
        self.closed: list[Leftover] = []

    def part(self, name: str, before: Part, found: Listing) -> Part:
        items = dict(before.items)
        readable = _readable(found)
        removed = {item for part, item in self.leftovers if part == name}
        for item in sorted(before.items.keys() | readable.keys() | removed):
            hidden = covering(found.blind, item)
            if hidden is not None:
                self._unseen(name, item, found.blind[hidden])
                continue
            self._unseen(name, item, "")
            was, now = before.items.get(item), readable.get(item)
            if was == now:
                continue
            if now is None:
                del items[item]
            else:
                items[item] = now
            if was is None and covering(before.never, item) is not None:
                continue  # read for the first time: nobody knows since when it is there
            blind = covering(before.blind, item)
            by = self._by if blind is None else Maker("unknown", why=f"could not look before: {before.blind[blind]}")
            self._change(name, item, was, now, by)
        # Of what was never read, that stays so which this look could not read either.
        never = {p: why for p, why in found.blind.items() if covering(before.never, p) is not None}
        never |= {p: why for p, why in before.never.items() if covering(found.blind, p) is not None}
        return Part(items, dict(found.blind), never)

    def _unseen(self, part: str, item: str, why: str) -> None:
        known = self.leftovers.get((part, item))
        if known is not None and known.unseen != why:
            self.leftovers[part, item] = replace(known, unseen=why)

    def _change(self, part: str, item: str, was: str | None, now: str | None, by: Maker) -> None:
        known = self.leftovers.pop((part, item), None)
        image = known.image if known is not None else was
        if now == image:
            assert known is not None  # what was as in the image and changed is not as in the image
            self.closed.append(replace(known, gone=self._at, gone_by=by))
            return
        earlier = () if known is None else (known.by, *known.earlier)[:MAX_EARLIER]
        since = self._worker.looked_at
        self.leftovers[part, item] = Leftover(part, item, image, now, by, since, self._at, earlier)


def _readable(found: Listing) -> dict[str, str]:
    """The items that lie under nothing that could not be read."""
    return {item: what for item, what in found.items.items() if covering(found.blind, item) is None}


def left_by(worker: Worker, job: str) -> list[Leftover]:
    """What a job left or may have left, as it is now."""
    return [each for each in worker.leftovers.values() if job in each.jobs]


def there_at_start(worker: Worker, job: str) -> list[Leftover]:
    """The leftovers that were seen before any of a job ran: all of which it is no possible maker."""
    return [each for each in worker.leftovers.values() if job not in each.by.jobs]
