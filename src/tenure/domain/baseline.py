"""What got worse between two test runs: by name and mode, never by counts or ordinals.

Modes, worst first: crash (abort and timeout are the same), failed, skipped (or not run), passed. Only a new name that
does not pass, or a move to a worse mode, is a regression. A name that left the list is better only when it was seen to
pass; a failing test that is skipped now has stopped being measured, which is neither.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Mode(IntEnum):
    """How a test went; the larger, the worse."""

    PASSED = 0
    SKIPPED = 1
    FAILED = 2
    CRASH = 3


_NAMES = {
    "passed": Mode.PASSED,
    "ok": Mode.PASSED,
    "skipped": Mode.SKIPPED,
    "not run": Mode.SKIPPED,
    "not_run": Mode.SKIPPED,
    "failed": Mode.FAILED,
    "failure": Mode.FAILED,
    "crash": Mode.CRASH,
    "abort": Mode.CRASH,
    "timeout": Mode.CRASH,
    "error": Mode.CRASH,
}


def mode_of(text: str) -> Mode:
    """The mode of a word such as ``failed`` or ``timeout``; raises ValueError naming the words that are known."""
    found = _NAMES.get(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is no mode; known are {', '.join(sorted(_NAMES))}")
    return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """What changed, by name. ``exit`` is 0 without a regression, 1 with one, 2 where only instruments are absent."""

    arrivals: tuple[str, ...]
    mode_worse: tuple[str, ...]
    mode_improved: tuple[str, ...]
    departures_seen_passed: tuple[str, ...]
    unexplained_departures: tuple[str, ...]
    stopped_being_measured: tuple[str, ...]
    absent_instrument: tuple[str, ...]

    @property
    def regression(self) -> bool:
        """Whether something got worse that the code, not a missing tool, accounts for."""
        return bool(self.arrivals or self.mode_worse)

    @property
    def improved(self) -> bool:
        """Whether something was seen to be better."""
        return bool(self.mode_improved or self.departures_seen_passed)

    @property
    def exit(self) -> int:
        """The exit status of a gate."""
        return 1 if self.regression else 2 if self.absent_instrument else 0


def compare(
    before: Mapping[str, Mode], after: Mapping[str, Mode], absent_instrument: Collection[str] = ()
) -> Comparison:
    """Compares two runs. Each holds every name that was seen in it, or all but those that passed before.

    A name that ``before`` lacks is new to the list, whether the test is new or passed: skipped is not passed either. A
    name that ``after`` lacks was not seen. ``absent_instrument`` names tests that lack a tool: where they did not pass
    they say nothing about the code.
    """
    groups: dict[str, list[str]] = {
        key: [] for key in ("arrivals", "mode_worse", "mode_improved", "departures", "unexplained", "stopped", "absent")
    }
    for name in sorted({*before, *after, *absent_instrument}):
        place = _place(before.get(name), after.get(name), name in absent_instrument)
        if place is not None:
            groups[place].append(name)
    return Comparison(
        arrivals=tuple(groups["arrivals"]),
        mode_worse=tuple(groups["mode_worse"]),
        mode_improved=tuple(groups["mode_improved"]),
        departures_seen_passed=tuple(groups["departures"]),
        unexplained_departures=tuple(groups["unexplained"]),
        stopped_being_measured=tuple(groups["stopped"]),
        absent_instrument=tuple(groups["absent"]),
    )


def _place(old: Mode | None, new: Mode | None, absent: bool) -> str | None:
    if absent and new is not Mode.PASSED:
        return "absent"
    if new is None:
        return "unexplained"
    if old is None:
        return None if new is Mode.PASSED else "arrivals"
    if new is old:
        return None
    if new > old:
        return "mode_worse"
    if new is Mode.PASSED:
        return "departures"
    return "stopped" if new is Mode.SKIPPED else "mode_improved"


@dataclass(frozen=True, slots=True)
class Entry:
    """What people know of a test that does not pass. ``None`` and empty: nobody said.

    ``owner`` is a person or a record; ``owner_closed``: that record is closed while the test still does not pass.
    ``unrun``: the cases behind a crash that nobody ran. ``flake_rate``: share of runs (0 to 1) that went otherwise.
    """

    first_assertion: str = ""
    cause: str = ""
    owner: str = ""
    owner_closed: bool = False
    unrun: tuple[str, ...] = ()
    flake_rate: float | None = None

    def notes(self) -> tuple[str, ...]:
        """What to say beside the name, one short text each."""
        found = [self.first_assertion, f"cause: {self.cause}" if self.cause else ""]
        if self.owner:
            found.append(
                f"owner: {self.owner}" + (" (CLOSED, and it still does not pass)" if self.owner_closed else "")
            )
        if self.unrun:
            found.append(f"{len(self.unrun)} cases behind it were not run: {', '.join(self.unrun)}")
        if self.flake_rate is not None:
            found.append(f"flakes in {self.flake_rate:.3g} of its runs")
        return tuple(filter(None, found))


def read_entry(told: Any) -> Entry:
    """An entry from a mapping of its fields. Raises ValueError naming the field that is wrong or that is none."""
    if not isinstance(told, Mapping):
        raise ValueError(f"an entry is a table of fields, not {told!r}")
    kinds: dict[str, type] = {"first_assertion": str, "cause": str, "owner": str, "owner_closed": bool, "unrun": list}
    for key, value in told.items():
        if key == "flake_rate":
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ValueError(f"flake_rate {value!r} is no share from 0 to 1")
        elif key not in kinds:
            raise ValueError(f"an entry has no field {key!r}; there are {', '.join([*kinds, 'flake_rate'])}")
        elif not isinstance(value, kinds[key]) or (key == "unrun" and not all(isinstance(n, str) for n in told[key])):
            raise ValueError(f"{key} {value!r} is no {'list of names' if key == 'unrun' else kinds[key].__name__}")
    fields: dict[str, Any] = {**told, "unrun": tuple(told.get("unrun", ()))}
    return Entry(**fields)
