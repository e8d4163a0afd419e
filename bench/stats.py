"""The arithmetic of the figures, apart from everything that takes them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least ``share`` (0 to 1) of all samples do not exceed (nearest rank).

    Never a value between two samples: with 20 of them the 95th percentile is the 19th, with 10 the largest.
    """
    if not samples:
        raise ValueError("no samples, no percentile")
    if not 0 <= share <= 1:
        raise ValueError(f"a share lies between 0 and 1, not at {share}")
    # A share such as 0.95 is no binary fraction: 0.95 x 20 must count as 19, not as the next above it.
    rank = math.ceil(round(share * len(samples), 9))
    return sorted(samples)[max(rank, 1) - 1]


@dataclass(frozen=True, slots=True)
class Summary:
    """``p50`` is the median and ``p95`` the nearest rank over all samples; ``low`` and ``high`` are the smallest and
    largest of the medians of the rounds, which show how far the machine drifted; ``least`` and ``most`` are samples."""

    n: int
    rounds: int
    p50: float
    p95: float
    low: float
    high: float
    least: float
    most: float


def summarize(rounds: Mapping[int, Sequence[float]]) -> Summary | None:
    """The summary of samples by round; ``None`` where there is none. Rounds without samples count for nothing."""
    taken = [list(samples) for samples in rounds.values() if samples]
    if not taken:
        return None
    everything = [value for samples in taken for value in samples]
    medians = [statistics.median(samples) for samples in taken]
    return Summary(
        len(everything),
        len(taken),
        statistics.median(everything),
        percentile(everything, 0.95),
        min(medians),
        max(medians),
        min(everything),
        max(everything),
    )


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times the first is the second: the median of the ratios of the rounds, and their range.

    From the rounds that both have, since samples of one round were taken under the same load.
    """

    median: float
    low: float
    high: float
    rounds: int


def ratio(first: Mapping[int, Sequence[float]], second: Mapping[int, Sequence[float]]) -> Ratio | None:
    """The ratio of two rows; ``None`` where no round has both, or a median of the second is zero."""
    found = []
    for number in sorted(first.keys() & second.keys()):
        if first[number] and second[number]:
            below = statistics.median(second[number])
            if below == 0:
                return None
            found.append(statistics.median(first[number]) / below)
    return Ratio(statistics.median(found), min(found), max(found), len(found)) if found else None


def figure(value: float) -> str:
    """A number with three significant digits, and never fewer digits than its whole part has."""
    if value == 0:
        return "0"
    digits = max(2 - math.floor(math.log10(abs(value))), 0)
    rounded = round(value, digits)
    if rounded != 0:
        digits = 2 - math.floor(math.log10(abs(rounded)))  # 9.999 became 10.0
    return f"{rounded:,.{max(digits, 0)}f}"


def columns(lines: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Lines of cells set in columns two blanks apart; the columns in ``right`` are flushed right."""
    if not lines:
        return []
    count = max(map(len, lines))
    cells = [list(line) + [""] * (count - len(line)) for line in lines]
    wide = [max(len(line[at]) for line in cells) for at in range(count)]
    return [
        "  ".join(
            cell.rjust(wide[at]) if at in right else cell.ljust(wide[at]) for at, cell in enumerate(line)
        ).rstrip()
        for line in cells
    ]
