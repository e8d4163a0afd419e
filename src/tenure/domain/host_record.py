"""What was sampled of a host beside a job: single samples, and blocks of them that never lose an excursion.

A sample is plain data: ``utc``, ``at`` (monotonic), ``v`` (name -> number) and ``un`` (name -> why there is none). A
name is in one of the two, never in both: a value or the reason. A block sums up samples that lie together: of every
name the count, sum, minimum and maximum, and of what could not be read how often and why last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Sample: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Block:
    """``since`` and ``until`` are UTC seconds of the first and last sample; ``gap`` the longest time between two.

    ``values``: name -> (count, sum, minimum, maximum). ``unavailable``: name -> (count, last reason).
    """

    since: float
    until: float
    samples: int
    gap: float = 0.0
    values: Mapping[str, tuple[int, float, float, float]] = field(default_factory=dict)
    unavailable: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    def lowest(self, name: str) -> float | None:
        """The smallest value of a name; None where it was never read."""
        found = self.values.get(name)
        return found[2] if found else None

    def highest(self, name: str) -> float | None:
        """The largest value of a name; None where it was never read."""
        found = self.values.get(name)
        return found[3] if found else None


def block_of(sample: Sample) -> Block:
    """One sample as a block."""
    values = {name: (1, value, value, value) for name, value in sample["v"].items()}
    return Block(sample["utc"], sample["utc"], 1, 0.0, values, {k: (1, why) for k, why in sample["un"].items()})


def merged(first: Block, then: Block) -> Block:
    """Two blocks, the second the later one, as one."""
    values = dict(first.values)
    for name, (count, total, low, high) in then.values.items():
        had = values.get(name)
        values[name] = (
            (count, total, low, high)
            if had is None
            else (had[0] + count, had[1] + total, min(had[2], low), max(had[3], high))
        )
    unread = dict(first.unavailable)
    for name, (count, why) in then.unavailable.items():
        unread[name] = (unread.get(name, (0, ""))[0] + count, why)
    gap = max(first.gap, then.gap, then.since - first.until)
    return Block(first.since, then.until, first.samples + then.samples, gap, values, unread)


def plain(block: Block) -> dict[str, Any]:
    """A block as stored; ``v`` and ``un`` as in a sample, with lists."""
    return {
        "since": block.since,
        "until": block.until,
        "n": block.samples,
        "gap": block.gap,
        "v": {name: list(figures) for name, figures in block.values.items()},
        "un": {name: list(figures) for name, figures in block.unavailable.items()},
    }


def block_from(body: Mapping[str, Any]) -> Block:
    """The block that ``plain`` wrote."""
    values = {name: (int(n), total, low, high) for name, (n, total, low, high) in body["v"].items()}
    unread = {name: (int(n), str(why)) for name, (n, why) in body["un"].items()}
    return Block(body["since"], body["until"], int(body["n"]), body["gap"], values, unread)


def in_blocks(samples: Iterable[Sample], span_s: float) -> list[Block]:
    """Samples in blocks of at most ``span_s`` seconds each."""
    blocks: list[Block] = []
    for sample in samples:
        one = block_of(sample)
        if blocks and one.until - blocks[-1].since < span_s:
            blocks[-1] = merged(blocks[-1], one)
        else:
            blocks.append(one)
    return blocks


def thinned(blocks: Sequence[Block], most: int) -> list[Block]:
    """At most ``most`` blocks: neighbours of the older half are put together, again and again, until they are."""
    found = list(blocks)
    while len(found) > most:
        half = len(found) // 2 + len(found) // 2 % 2
        older = [merged(found[n], found[n + 1]) if n + 1 < half else found[n] for n in range(0, half, 2)]
        found = older + found[half:]
    return found


def summary(whole: Block, last: Sample) -> dict[str, Any]:
    """What the outcome keeps of it: extremes, the last sample, and what could not be read."""
    low = {name: whole.lowest(name) for name in ("memory_available", "disk_free", "scratch_free")}
    return {
        "samples": whole.samples,
        "since": whole.since,
        "until": whole.until,
        "largest_gap_s": round(whole.gap, 3),
        "lowest": {name: value for name, value in low.items() if value is not None},
        "highest": {name: figures[3] for name, figures in whole.values.items() if name not in low},
        "unavailable": {name: why for name, (_, why) in whole.unavailable.items() if name not in whole.values},
        "last": {"utc": last["utc"], "v": dict(last["v"])},
    }
