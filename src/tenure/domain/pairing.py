"""May two arms be divided? PAIR or DISCARD, with every reason; a ratio exists only for PAIR."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tenure.domain.clocks import ClockWindow, Summary, busy_summary, gate

#: Two arms must have run at the same clock: median and mean within this many percent.
MAX_CROSS_PCT = 1.0
WAIVABLE = frozenset({"boot"})


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """``reasons`` make it a DISCARD; ``caveats`` are reasons that were waived, on record. ``arms``: clock summaries."""

    verdict: str
    reasons: tuple[str, ...]
    caveats: tuple[str, ...]
    arms: tuple[Summary | None, ...]

    @property
    def paired(self) -> bool:
        """Whether the two may be divided."""
        return self.verdict == "PAIR"

    def ratio(self, first: float, second: float) -> float | None:
        """first / second for a PAIR; ``None`` for anything else."""
        return first / second if self.paired and second else None


def judge_pair(one: ClockWindow, other: ClockWindow, waive: Collection[str] = ()) -> PairVerdict:
    """Both windows' own gates, then what must agree across them. A waiver is for ``boot`` alone and stays a caveat."""
    found: dict[str, None] = dict.fromkeys((*gate(one), *gate(other)))
    summaries = (busy_summary(one), busy_summary(other))
    first, second = summaries
    if first is not None and second is not None:
        if _apart(first.median, second.median):
            found["cross_arm_median"] = None
        if _apart(first.mean, second.mean):
            found["cross_arm_mean"] = None
    for field in ("name", "driver", "max_sm_mhz", "max_mem_mhz"):
        fields = getattr(one, field), getattr(other, field)
        if fields[0] != fields[1]:
            found[f"static:{field}"] = None
        elif not fields[0] and field != "max_mem_mhz":  # unified memory has no clock of its own to tell
            found[f"static_unknown:{field}"] = None
    if not one.boot_id or not other.boot_id:
        found["boot_unknown"] = None
    elif one.boot_id != other.boot_id:
        found["boot"] = None
    waived = tuple(reason for reason in found if reason in waive and reason in WAIVABLE)
    reasons = tuple(reason for reason in found if reason not in waived)
    return PairVerdict("DISCARD" if reasons else "PAIR", reasons, waived, summaries)


def _apart(one: float, other: float) -> bool:
    low, high = sorted((one, other))
    return low <= 0 or 100.0 * (high - low) / low > MAX_CROSS_PCT
