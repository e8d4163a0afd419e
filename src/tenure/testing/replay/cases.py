"""Finds the shape of a file and turns it into cases with their answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias


class NotBuilt(Exception):
    """A part of the product that a case asks for does not exist yet."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case: the right answer as the file states it, and what the product says for the same keys."""

    name: str
    right: Any
    got: Any

    @property
    def passed(self) -> bool:
        """Whether they agree."""
        return agrees(self.right, self.got)


def agrees(right: Any, got: Any) -> bool:
    """Whether an answer is the right one; a float is compared at as many places as the file states."""
    if isinstance(right, Mapping):
        return isinstance(got, Mapping) and all(key in got and agrees(right[key], got[key]) for key in right)
    if isinstance(right, list | tuple):
        same = isinstance(got, list | tuple) and len(right) == len(got)
        return same and all(agrees(one, other) for one, other in zip(right, got, strict=True))
    if isinstance(right, bool) or isinstance(got, bool) or right is None or got is None:
        return right is got
    if isinstance(right, float) and isinstance(got, int | float):
        places = max(-int(Decimal(repr(right)).as_tuple().exponent), 0)
        return abs(right - got) <= 0.5 * 10.0**-places + 1e-9
    return bool(right == got)


Shape: TypeAlias = Callable[[Mapping[str, Any]], Iterator[Case]]


def shape_of(body: Mapping[str, Any]) -> Shape:
    """The reader for a file of this shape; raises ValueError where none knows its keys."""
    from tenure.testing.replay import decisions, measurements, readings

    cases = body.get("cases")
    keys = {key for case in cases if isinstance(case, Mapping) for key in case} if isinstance(cases, list) else set()
    if "fleet" in body:
        return readings.selectors
    if "before" in body and "after" in body:
        return decisions.baselines
    for wanted, reader in (
        ({"samples"}, readings.use),
        ({"kind", "input"}, readings.instruments),
        ({"events"}, decisions.tracker),
        ({"boot", "namespace"}, decisions.ends),
        ({"floor_mb"}, decisions.guards),
        ({"arms"}, measurements.clocks),
        ({"summary_of"}, measurements.clocks),
        ({"p_event_per_item"}, measurements.clocks),
    ):
        if wanted <= keys:
            return reader
    if keys & {"ratio", "planned_wall_h", "planned_unit_cost_h", "candidate_sets", "units_remaining"}:
        return decisions.widths
    raise ValueError("no case file: none of the known shapes has these keys: " + ", ".join(sorted({*body, *keys})))


def replay_file(path: str | Path) -> list[Case]:
    """Every case of a file with what the product says. Raises OSError, ValueError (no case file) or ``NotBuilt``."""
    body = json.loads(Path(path).read_text("utf-8"))
    if not isinstance(body, dict):
        raise ValueError("a case file is a JSON object")
    return list(shape_of(body)(body))
