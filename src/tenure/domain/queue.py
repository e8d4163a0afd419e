"""The waiting jobs, grouped into classes that ask for the same thing.

A class is one requirement (named device or selector, and a count) with a heap of its waiting jobs and a heap of the
ready devices that fit. Nothing is ever scanned: a submission touches its own class, a device that becomes ready
touches the classes it fits. A job's order is fixed when it is submitted (time of submission less priority x
``AGEING_S``), so waiting alone overtakes every later submission: a job of the lowest priority waits for at most
20 x ``AGEING_S`` worth of later ones.

Entries are dropped lazily, but only by ``remove`` and ``unready``, so that whoever only reads always finds a live
head. Rejected: a sorted list of everything (every removal is a scan), and re-sorting as priorities age (the bound
on the wait could then not be stated at submission).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TypeAlias

#: Seconds of waiting that outweigh one step of priority.
AGEING_S = 600.0

Order: TypeAlias = tuple[float, int]


def order_of(arrival: float, priority: int, sequence: int) -> Order:
    """The queue key: smaller goes first. ``arrival`` never runs backwards; ``sequence`` breaks ties."""
    return (arrival - priority * AGEING_S, sequence)


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a class of jobs asks for: one named device, or ``count`` devices of one host that fit a selector.

    The bounds asked for (None: the device's default) are part of it, since a device may not allow them; in a class they
    stand for all that the same devices allow (``FleetState.class_of``). So is the oldest wire version whose agents keep
    all that is asked.
    """

    device: str | None
    select: str
    count: int
    max_runtime_s: float | None = None
    idle_timeout_s: float | None = None
    wire: int = 1


@dataclass(slots=True)
class QueueClass:
    """The jobs that share a requirement, and the devices that fit it. Only ``Queue`` changes it."""

    need: Requirement
    fits: set[str]
    waiting: dict[str, Order] = field(default_factory=dict)
    heap: list[tuple[Order, str]] = field(default_factory=list)
    ready: set[str] = field(default_factory=set)
    ready_heap: list[str] = field(default_factory=list)

    @property
    def head(self) -> tuple[Order, str] | None:
        """The next job of this class, or ``None``."""
        return self.heap[0] if self.heap else None

    @property
    def first_ready(self) -> str | None:
        """The ready device of the smallest name that fits, or ``None``."""
        return self.ready_heap[0] if self.ready_heap else None


class Queue:
    """Indexes over waiting jobs and ready devices. Written by ``evolve`` alone; deciding only reads."""

    def __init__(self) -> None:
        self.classes: dict[Requirement, QueueClass] = {}
        self.of_device: dict[str, set[Requirement]] = {}
        self.ready: set[str] = set()
        self.wide: set[Requirement] = set()
        self.length = 0

    # -- classes ---------------------------------------------------------------------------------------------------

    def has(self, need: Requirement) -> bool:
        """Whether a class for this requirement exists, so that its devices need not be matched again."""
        return need in self.classes

    def open(self, need: Requirement, fits: set[str]) -> QueueClass:
        """The class of a requirement; ``fits`` are the devices that match it, computed by the caller."""
        found = self.classes.get(need)
        if found is None:
            found = self.classes[need] = QueueClass(need, fits)
            for name in fits:
                self.of_device.setdefault(name, set()).add(need)
                if name in self.ready:
                    found.ready.add(name)
            found.ready_heap = sorted(found.ready)
        return found

    def forget_empty(self, keep: int) -> None:
        """Drops classes without waiting jobs while there are more than ``keep`` of them."""
        if len(self.classes) <= keep:
            return
        for need in [need for need, found in self.classes.items() if not found.waiting]:
            for name in self.classes.pop(need).fits:
                self.of_device[name].discard(need)

    def refit(self, name: str, needs: set[Requirement]) -> None:
        """A device's labels changed: ``needs`` are the open requirements that it fits now."""
        before = self.of_device.get(name, set())
        for need in before - needs:
            found = self.classes[need]
            found.fits.discard(name)
            self._drop_ready(found, name)
        for need in needs - before:
            found = self.classes[need]
            found.fits.add(name)
            if name in self.ready:
                self._push_ready(found, name)
        self.of_device[name] = set(needs)

    # -- jobs ------------------------------------------------------------------------------------------------------

    def add(self, job: str, order: Order, need: Requirement) -> None:
        """A job waits; its class must be open."""
        found = self.classes[need]
        if job not in found.waiting:
            self.length += 1
            found.waiting[job] = order
            heapq.heappush(found.heap, (order, job))
            if need.count > 1:
                self.wide.add(need)

    def remove(self, job: str, need: Requirement) -> None:
        """A job no longer waits."""
        found = self.classes[need]
        if found.waiting.pop(job, None) is not None:
            self.length -= 1
            if not found.waiting:
                self.wide.discard(need)
        while found.heap and found.waiting.get(found.heap[0][1]) != found.heap[0][0]:
            heapq.heappop(found.heap)
        if len(found.heap) > 2 * len(found.waiting) + 64:
            found.heap = sorted((order, name) for name, order in found.waiting.items())

    # -- devices ---------------------------------------------------------------------------------------------------

    def set_ready(self, name: str, is_ready: bool) -> None:
        """A device became free, or is free no longer."""
        if is_ready == (name in self.ready):
            return
        if is_ready:
            self.ready.add(name)
            for need in self.of_device.get(name, ()):
                self._push_ready(self.classes[need], name)
        else:
            self.ready.discard(name)
            for need in self.of_device.get(name, ()):
                self._drop_ready(self.classes[need], name)

    @staticmethod
    def _push_ready(found: QueueClass, name: str) -> None:
        if name not in found.ready:
            found.ready.add(name)
            heapq.heappush(found.ready_heap, name)

    @staticmethod
    def _drop_ready(found: QueueClass, name: str) -> None:
        found.ready.discard(name)
        while found.ready_heap and found.ready_heap[0] not in found.ready:
            heapq.heappop(found.ready_heap)
        if len(found.ready_heap) > 2 * len(found.ready) + 64:
            found.ready_heap = sorted(found.ready)
