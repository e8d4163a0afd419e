"""What is measured: a row is one product with one client under one measure, and a way to take samples of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.stats import Summary, summarize

#: When what was answered is on the disk. Rows of different classes do different work: they are shown apart.
CLASSES = {
    "durable": "answered only after the sync that keeps it (fdatasync or fsync)",
    "later": "answered first, written to disk some seconds afterwards",
    "memory": "never written: lost with the process",
    "none": "nothing to be kept",
}


@dataclass(slots=True, eq=False)
class Row:
    """``take`` gives the samples of one round in ``unit``; ``most`` bounds the rounds where each takes long.

    ``absent`` is why a row has no samples. Rows of one ``group`` do the same thing: ratios are taken among them alone,
    to the first of Tenure's. ``samples`` are by round, warm-up left out.
    """

    measure: str
    product: str
    client: str
    durability: str
    unit: str
    take: Callable[[], list[float]]
    note: str = ""
    better: str = "lower"
    most: int = 1000
    absent: str = ""
    group: str = ""
    samples: dict[int, list[float]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Product and client, which together are one row of a measure."""
        return f"{self.product}: {self.client}"

    def summary(self) -> Summary | None:
        """The figures of the samples so far."""
        return summarize(self.samples)


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing that is measured: its key, what it says in a line, and the rows, side by side.

    ``seconds`` is about how long one round of it takes, for whoever divides the time there is.
    """

    key: str
    title: str
    rows: list[Row]
    rounds: int
    warm_up: bool = True
    seconds: float = 0.0


def order(rows: list[Row], number: int) -> Iterator[Row]:
    """The rows of a round. Each round begins with the next of them, so that none always follows the same other."""
    begin = number % len(rows) if rows else 0
    yield from rows[begin:]
    yield from rows[:begin]


def timed_ms(work: Callable[[], Any]) -> float:
    """How long a call took, in ms."""
    began = time.monotonic_ns()
    work()
    return (time.monotonic_ns() - began) / 1e6
