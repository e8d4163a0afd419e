"""The one source of what units and workers are doing. A worker's state is the units it holds, and nothing else.

Keys are (unit, attempt); whoever follows several grids keeps a tracker for each. An event clears only the attempt it
names; what arrives late, twice or out of order changes nothing else. A panel once showed busy workers idle, because the
late end of an old job cleared the flag that the new one had set: here there is no flag to clear.

Within an attempt the furthest stage seen counts, so events may come in any order. Of two different ends the first to
arrive stands, as a terminal state is written once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum


class Stage(IntEnum):
    """How far an attempt is; it never goes back. The last three are over."""

    PREPARING = 1
    PREPARED = 2
    GPU = 3
    FINALISING = 4
    LOST = 5
    FAILED = 6
    DONE = 7

    @property
    def over(self) -> bool:
        """Whether nothing of the attempt runs any more."""
        return self >= Stage.LOST


_STAGES = {
    "start": Stage.PREPARING,
    "prepared": Stage.PREPARED,
    "gpu": Stage.GPU,
    "kernel_end": Stage.FINALISING,
    "lost": Stage.LOST,
}
_ENDS = {"ok": Stage.DONE, "failed": Stage.FAILED}


@dataclass(frozen=True, slots=True)
class UnitEvent:
    """Something that happened to one attempt of a unit. ``worker`` comes with ``start``."""

    unit: str
    attempt: int
    stage: Stage
    worker: str | None = None


def parse_event(text: str) -> UnitEvent:
    """Reads ``start u1#1 w0``, ``gpu u1#1``, ``kernel_end u1#1``, ``end u1#1 ok|failed``, ``lost u1#1``.

    Raises ValueError with the text that cannot be read.
    """
    words = text.split()
    try:
        kind, (unit, attempt) = words[0], words[1].rsplit("#", 1)
        if not unit or not (attempt.isascii() and attempt.isdigit()):
            raise ValueError
        if kind == "end":
            (outcome,) = words[2:]
            return UnitEvent(unit, int(attempt), _ENDS[outcome])
        worker = words[2] if kind == "start" else None
        if len(words) != (3 if worker else 2):
            raise ValueError
        return UnitEvent(unit, int(attempt), _STAGES[kind], worker)
    except (IndexError, KeyError, ValueError) as error:
        raise ValueError(f"no unit event: {text[:80]!r}") from error


@dataclass(slots=True)
class Attempt:
    """What is known of one attempt; ``began`` is the number of the event that told its worker, while it ran."""

    stage: Stage
    worker: str | None = None
    began: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent view after ``version`` events.

    ``age_s``: seconds since the newest event, ``None`` where events came without times. ``workers``: the attempts each
    holds, the newest first. ``units``: the state each shows. ``counts`` derive from the units. ``reported``:
    contradictions and events of workers that nobody registered.
    """

    version: int
    age_s: float | None
    workers: dict[str, tuple[str, ...]]
    units: dict[str, str]
    counts: dict[str, int]
    ignored: int
    reported: tuple[str, ...]


@dataclass(slots=True)
class Tracker:
    """Folds unit events. ``registered`` are the workers known beforehand; ``None`` accepts whoever appears."""

    registered: frozenset[str] | None = None
    units: dict[str, dict[int, Attempt]] = field(default_factory=dict)
    workers: dict[str, None] = field(default_factory=dict)
    version: int = 0
    ignored: int = 0
    newest_at: float | None = None
    reported: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.workers.update(dict.fromkeys(sorted(self.registered or ())))

    def expect(self, units: Iterable[str]) -> None:
        """Units that are to run and have not begun: they show as ``pending``."""
        for unit in units:
            self.units.setdefault(unit, {})

    def apply(self, event: UnitEvent, at: float | None = None) -> bool:
        """Takes one event; ``False`` where it changed nothing. ``at``: when it came, on the clock of ``snapshot``."""
        self.version += 1
        if at is not None:
            self.newest_at = at if self.newest_at is None else max(at, self.newest_at)
        if event.worker is not None:
            self.workers.setdefault(event.worker)
            if self.registered is not None and event.worker not in self.registered:
                self.reported[f"unregistered worker {event.worker}"] = None
        attempts = self.units.setdefault(event.unit, {})
        known = attempts.get(event.attempt)
        changed = self._advance(attempts, known, event)
        if not changed:
            self.ignored += 1
        return changed

    def _advance(self, attempts: dict[int, Attempt], known: Attempt | None, event: UnitEvent) -> bool:
        if known is None:
            attempts[event.attempt] = Attempt(event.stage, event.worker, self.version)
            return True
        if event.worker is not None and known.worker not in (None, event.worker):
            self.reported[f"{event.unit}#{event.attempt} is claimed by {known.worker} and {event.worker}"] = None
        told = event.worker is not None and known.worker is None
        if told:
            known.worker, known.began = event.worker, self.version
        if known.stage.over:
            return False
        advanced = event.stage > known.stage
        if advanced:
            known.stage = event.stage
        return told or advanced

    def state_of(self, unit: str) -> str:
        """What a unit shows: done once any attempt was, else what its newest live attempt is, else its newest one.

        Live ones first: a unit that a worker holds must not show as pending or failed beside it.
        """
        attempts = self.units.get(unit, {})
        if any(attempt.stage is Stage.DONE for attempt in attempts.values()):
            return "done"
        if not attempts:
            return "pending"
        live = [number for number, attempt in attempts.items() if not attempt.stage.over]
        newest = attempts[max(live or attempts)]
        return "pending" if newest.stage is Stage.LOST else newest.stage.name.lower()

    def snapshot(self, now: float | None = None) -> Snapshot:
        """The view now, with every contradiction in it."""
        held: dict[str, list[tuple[int, str]]] = {worker: [] for worker in self.workers}
        told = dict(self.reported)
        for unit, attempts in self.units.items():
            live = sorted(number for number, attempt in attempts.items() if not attempt.stage.over)
            for number in live:
                attempt = attempts[number]
                if attempt.worker is not None:
                    held.setdefault(attempt.worker, []).append((attempt.began, f"{unit}#{number}"))
                else:
                    told[f"{unit}#{number} runs and no worker is known to hold it"] = None
            if len(live) > 1:
                told[f"{unit} runs in attempts {', '.join(map(str, live))} at once"] = None
            if live and any(attempt.stage is Stage.DONE for attempt in attempts.values()):
                told[f"{unit} is done and still runs in attempt {live[0]}"] = None
        shown = {unit: self.state_of(unit) for unit in self.units}
        workers = {worker: tuple(name for _, name in sorted(units, reverse=True)) for worker, units in held.items()}
        age = None if now is None or self.newest_at is None else max(now - self.newest_at, 0.0)
        return Snapshot(self.version, age, workers, shown, dict(Counter(shown.values())), self.ignored, tuple(told))
