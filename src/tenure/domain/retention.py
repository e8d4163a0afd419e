"""How long what is no longer needed is kept, for each kind of it. What a job still needs is never cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """Seconds; ``None`` is for ever. Counted from a job's end; of a staged tree from when it was last asked for.

    ``output_s``: the bytes that jobs wrote, on the controller. ``samples_s``: what was measured beside them, on their
    hosts. ``kept_scratch_s``: scratch folders kept by ``--keep``. ``staged_s``: trees, on the controller.
    ``history_s``: that there was a job, how it ended and what it did.
    """

    history_s: float | None = None
    output_s: float | None = 180 * _DAY
    samples_s: float | None = 365 * _DAY
    kept_scratch_s: float | None = 30 * _DAY
    staged_s: float | None = 14 * _DAY

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Retention:
        """From settings; raises ``ValueError`` naming the key at fault."""
        known = {f.name for f in fields(cls)}
        for name, value in body.items():
            if name not in known:
                raise ValueError(f"{name} is no kind of retention; there are: {', '.join(sorted(known))}")
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 <= value <= 1e11):
                raise ValueError(f"{name} is {value!r}, neither a number of seconds nor null (for ever)")
        return cls(**{name: None if value is None else float(value) for name, value in body.items()})

    def to_dict(self) -> dict[str, float | None]:
        """As plain values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


_KINDS = {
    "history_s": "history",
    "output_s": "output",
    "samples_s": "samples",
    "kept_scratch_s": "kept scratch",
    "staged_s": "staged trees",
}


def words(body: Mapping[str, Any]) -> str:
    """One line for people: how long each kind is kept."""
    return ", ".join(f"{said} {span(body[name])}" for name, said in _KINDS.items() if name in body)


def span(seconds: float | None) -> str:
    """A length of time as settings give it: ``180 d``, ``90 s``, ``for ever``."""
    if seconds is None:
        return "for ever"
    for unit, size in (("d", _DAY), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
