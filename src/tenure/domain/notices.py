"""What a job's host had to say beside its output, as it is kept on the job's record: each once, and so many at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

#: Notices kept of one job.
MAX_NOTICES = 64


def with_notice(
    notices: tuple[Mapping[str, Any], ...], notice: Mapping[str, Any]
) -> tuple[Mapping[str, Any], ...] | None:
    """The record with one more notice; None where it holds it already.

    A full record gives up the oldest of the kind it has most of, so that the newest warning is always there, and one
    kind that comes again and again crowds out no other. One older than what was given up is a late repeat.
    """
    if notice in notices:
        return None
    if len(notices) < MAX_NOTICES:
        return (*notices, notice)
    ((most, _),) = Counter(one.get("kind") for one in notices).most_common(1)
    oldest = next(number for number, one in enumerate(notices) if one.get("kind") == most)
    if _at(notice) <= _at(notices[oldest]):
        return None
    return (*notices[:oldest], *notices[oldest + 1 :], notice)


def _at(notice: Mapping[str, Any]) -> float:
    at = notice.get("utc")
    return float(at) if isinstance(at, int | float) else 0.0
