"""Finds the shape of a file and of each of its cases, and turns them into answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias


class NotBuilt(Exception):
    """A part of the product that a case asks for does not exist yet."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case: the right answer as the file states it, and what the product says for the same keys.

    ``missing`` names the part that is not built, where that is why there is no answer.
    """

    name: str
    right: Any
    got: Any
    missing: str = ""

    @property
    def passed(self) -> bool:
        """Whether they agree."""
        return not self.missing and agrees(self.right, self.got)


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
    if isinstance(right, int) and isinstance(got, float):  # a whole number is meant exactly, but for a float's last bit
        return abs(right - got) <= 1e-9 * max(1.0, abs(right))
    return bool(right == got)


def name_of(case: Mapping[str, Any], number: int) -> str:
    """What a case is called; by its place where the file gives no name."""
    return str(case.get("name", case.get("id", f"case {number}")))


CaseReader: TypeAlias = Callable[[Mapping[str, Any], int], Case]
FileReader: TypeAlias = Callable[[Mapping[str, Any]], Iterable[Case]]

_WIDTH_KEYS = {
    "ratio",
    "planned_wall_h",
    "projected_wall_h",
    "planned_unit_cost_h",
    "unit_cost_h_measured",
    "unit_cost_h_by_device",
    "candidate_sets",
    "candidates",
    "units_remaining",
    "units_total",
    "signature",
    "telemetry",
    "proposed",
    "fix_rounds_done",
    "units_independent",
}


def reader_of(keys: set[str]) -> CaseReader | None:
    """The reader of a case with these keys; ``None`` where they are of no shape that is known."""
    from tenure.testing.replay import decisions, measurements, readings

    for wanted, reader in (
        ({"samples"}, readings.use),
        ({"kind", "input"}, readings.instrument),
        ({"events"}, decisions.tracker),
        ({"floor_mb"}, decisions.guard),
        ({"arms"}, measurements.pair),
        ({"summary_of"}, measurements.summary),
        ({"p_event_per_item"}, measurements.chances),
        ({"before", "after"}, decisions.two_runs),
    ):
        if wanted <= keys:
            return reader
    if keys & {"boot", "namespace", "agent", "supervisor_alive"}:
        return decisions.ends
    return decisions.width if keys & _WIDTH_KEYS else None


def replay(body: Mapping[str, Any]) -> Iterator[Case]:
    """Every case of a file's body. Raises ValueError where it is no case file, or a case cannot be read."""
    from tenure.testing.replay import decisions, readings

    whole: FileReader | None = None
    if isinstance(body.get("fleet"), Mapping):
        whole = readings.selectors
    elif ("before" in body and "after" in body) or isinstance(body.get("more"), list):
        whole = decisions.baselines
    if whole is not None:
        try:
            yield from whole(body)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(_told(error)) from error
        return
    cases = body.get("cases")
    if not isinstance(cases, list):
        raise ValueError(f"no case file: it has neither cases nor one of the known shapes, but {_listed(body)}")
    known = {key for case in cases if isinstance(case, Mapping) for key in case}
    for number, case in enumerate(cases, 1):
        if not isinstance(case, Mapping):
            raise ValueError(f"case {number} is no JSON object")
        reader = reader_of(set(case)) or reader_of(known)
        if reader is None:
            raise ValueError(f"no case file: no known shape has the keys of case {number}: {_listed(case)}")
        yield _one(reader, case, number)


def _one(reader: CaseReader, case: Mapping[str, Any], number: int) -> Case:
    name = name_of(case, number)
    try:
        return reader(case, number)
    except NotBuilt as error:
        return Case(name, case.get("right"), None, missing=str(error))
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
        raise ValueError(f"case {number} ({name}) {_told(error)}") from error


def _told(error: Exception) -> str:
    return f"lacks {error}" if isinstance(error, KeyError) else f"cannot be read: {error}"


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(sorted(keys)) or "nothing"


def replay_file(path: str | Path) -> list[Case]:
    """Every case of a file with what the product says. Raises OSError, ValueError (no case file)."""
    try:
        body = json.loads(Path(path).read_text("utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(body, dict):
        raise ValueError("a case file is a JSON object")
    found = list(replay(body))
    if not found:
        raise ValueError("it holds no case")
    return found
