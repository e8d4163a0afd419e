"""What a device allows its jobs: defaults where an option is left out, and ceilings that no job may go beyond.

They are facts of the device, set on its host. A job that asks for more is refused, never cut down to what is allowed:
it would end earlier than its owner was told. ``0`` is off, which a ceiling does not allow.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from tenure.domain.bounds import Limits, spell
from tenure.domain.job import JobSpec

#: The names in the settings and in a device's facts; all but the last are seconds.
NAMES = ("max_runtime", "max_runtime_ceiling", "idle_timeout", "idle_ceiling", "require_max_runtime")
_TEXT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Of one device, seconds; None where nothing is set. ``max_runtime_s`` and ``idle_timeout_s`` are the defaults."""

    max_runtime_s: float | None = None
    max_runtime_ceiling_s: float | None = None
    idle_timeout_s: float | None = None
    idle_ceiling_s: float | None = None
    require_max_runtime: bool = False

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Ceilings:
        """As a device's facts say them. What a newer agent says in another way is not understood, and left out."""
        told = facts.get("bounds")
        if not told or not isinstance(told, Mapping):
            return _NONE
        runtime, runtime_ceiling, idle, idle_ceiling = (_number(told.get(name)) for name in NAMES[:4])
        return cls(runtime, runtime_ceiling, idle, idle_ceiling, told.get("require_max_runtime") is True)

    @property
    def facts(self) -> dict[str, Any]:
        """What is set, as a device's facts say it."""
        values = (
            self.max_runtime_s,
            self.max_runtime_ceiling_s,
            self.idle_timeout_s,
            self.idle_ceiling_s,
            self.require_max_runtime or None,
        )
        return {name: value for name, value in zip(NAMES, values, strict=True) if value is not None}

    @property
    def default_max_runtime_s(self) -> float:
        """What holds where a job does not say; the ceiling where only that is set; 0 is off."""
        return self.max_runtime_ceiling_s or 0.0 if self.max_runtime_s is None else self.max_runtime_s

    @property
    def default_idle_timeout_s(self) -> float:
        """As ``default_max_runtime_s``."""
        return self.idle_ceiling_s or 0.0 if self.idle_timeout_s is None else self.idle_timeout_s

    @property
    def words(self) -> tuple[str, str]:
        """(max runtime, idle timeout) as people read them."""
        runtime = _words(self.default_max_runtime_s, self.max_runtime_ceiling_s)
        if self.require_max_runtime:
            runtime = f"to be given with --max-runtime{_at_most(self.max_runtime_ceiling_s)}"
        return runtime, _words(self.default_idle_timeout_s, self.idle_ceiling_s)


_NONE = Ceilings()


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a device does not allow a job's bounds: the words follow its name; ``do`` is what to type."""

    words: str
    do: str
    facts: Mapping[str, Any]


def allows(ceilings: Ceilings, max_runtime_s: float | None, idle_timeout_s: float | None) -> bool:
    """Whether a device with these ceilings allows the bounds. A bound left out (None) is its default."""
    if ceilings.require_max_runtime and not max_runtime_s:
        return False
    asked = ((max_runtime_s, ceilings.max_runtime_ceiling_s), (idle_timeout_s, ceilings.idle_ceiling_s))
    return all(bound is None or ceiling is None or 0 < bound <= ceiling for bound, ceiling in asked)


def least_ceiling(asked: float | None, among: Sequence[float]) -> float | None:
    """The lowest of the ceilings (in ascending order) that allows what was asked for, infinity where none does.

    To every device with one of them the two are the same. None (left out) and 0 (off) stay what they are.
    """
    if not asked:
        return asked
    at = bisect_left(among, asked)
    return among[at] if at < len(among) else inf


def objection(ceilings: Ceilings, max_runtime_s: float | None, idle_timeout_s: float | None) -> Objection | None:
    """Why a device with these ceilings does not allow the bounds, or None where it does."""
    if allows(ceilings, max_runtime_s, idle_timeout_s):
        return None
    if ceilings.require_max_runtime and not max_runtime_s:
        ceiling = ceilings.max_runtime_ceiling_s
        said = "none was given" if max_runtime_s is None else "0 is none"
        facts = {"bound": "max_runtime", "asked": max_runtime_s, "ceiling": ceiling, "required": True}
        return Objection(
            f"requires a max runtime, and {said}", f"--max-runtime {_typed(ceiling) if ceiling else 'TIME'}", facts
        )
    return _above("max_runtime", "max runtime", max_runtime_s, ceilings.max_runtime_ceiling_s) or _above(
        "idle_timeout", "idle timeout", idle_timeout_s, ceilings.idle_ceiling_s
    )


def _above(bound: str, name: str, asked: float | None, ceiling: float | None) -> Objection | None:
    if asked is None or ceiling is None or 0 < asked <= ceiling:
        return None
    facts = {"bound": bound, "asked": asked, "ceiling": ceiling, "required": False}
    what = f"allows a {name} of at most {spell(ceiling)}" if bound == "max_runtime" else ""
    what = what or f"allows an {name} of at most {spell(ceiling)}"
    said = f"{spell(asked)} was asked for" if asked else "0 is no bound"
    option = bound.replace("_", "-")
    return Objection(f"{what}, and {said}", f"--{option} {_typed(ceiling)}", facts)


def limits_of(spec: JobSpec, devices: Iterable[Ceilings]) -> Limits:
    """What holds for a job on these devices: what it asked for, else the strictest of their defaults."""
    among = list(devices)
    runtimes = [one.default_max_runtime_s for one in among if one.default_max_runtime_s > 0]
    idles = [one.default_idle_timeout_s for one in among if one.default_idle_timeout_s > 0]
    return Limits(
        min(runtimes, default=0.0) if spec.max_runtime_s is None else spec.max_runtime_s,
        min(idles, default=0.0) if spec.idle_timeout_s is None else spec.idle_timeout_s,
        spec.idle_signal,
    )


def ceilings_from(settings: Mapping[str, Any]) -> Ceilings:
    """From settings as people write them: seconds, or a text such as ``4h``. Raises ``ValueError`` naming the key."""
    unknown = sorted(settings.keys() - set(NAMES))
    if unknown:
        raise ValueError(f"has no {unknown[0]!r}; it may have {', '.join(NAMES)}")
    required = settings.get("require_max_runtime", False)
    if not isinstance(required, bool):
        raise ValueError(f"has require_max_runtime {required!r}, which is neither true nor false")
    runtime, runtime_ceiling, idle, idle_ceiling = (_seconds(name, settings.get(name)) for name in NAMES[:4])
    found = Ceilings(runtime, runtime_ceiling, idle, idle_ceiling, required)
    pairs = (
        ("max_runtime", found.max_runtime_s, found.max_runtime_ceiling_s),
        ("idle_timeout", found.idle_timeout_s, found.idle_ceiling_s),
    )
    for name, default, ceiling in pairs:
        if ceiling == 0:
            raise ValueError(f"has a ceiling of 0 for {name}; leave it out for none")
        if default is not None and ceiling is not None and not 0 < default <= ceiling:
            raise ValueError(f"has {name} {default:g}, which its own ceiling of {ceiling:g} s does not allow")
    return found


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    seconds = -1.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and (found := _TEXT.fullmatch(value)) is not None:
        seconds = float(found[1]) * _UNITS[found[2]]
    if not 0 <= seconds <= 10 * 365 * 86_400:
        raise ValueError(f"has {name} {value!r}, which is no length of time: seconds, or a text such as 90s or 2h")
    return seconds


def _number(told: Any) -> float | None:
    return float(told) if isinstance(told, int | float) and not isinstance(told, bool) else None


def _words(default_s: float, ceiling_s: float | None) -> str:
    return (f"{spell(default_s)} by default" if default_s else "none by default") + _at_most(ceiling_s)


def _at_most(ceiling_s: float | None) -> str:
    return f", at most {spell(ceiling_s)}" if ceiling_s is not None else ""


def _typed(seconds: float) -> str:
    """A length of time as an option takes it."""
    for unit in ("d", "h", "m"):
        if seconds >= _UNITS[unit] and seconds % _UNITS[unit] == 0:
            return f"{int(seconds // _UNITS[unit])}{unit}"
    return f"{seconds:g}s"
