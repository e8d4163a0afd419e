"""What got worse between two test runs: by name and mode, never by counts or ordinals.

Modes, worst first: crash (abort and timeout are the same), failed, skipped (or not run), passed. Only a new name that
does not pass, or a move to a worse mode, is a regression. A name that left the list is better only when it was seen to
pass; a test that is skipped now has stopped being measured, which is neither.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum


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
    before: Mapping[str, Mode],
    after: Mapping[str, Mode],
    absent_instrument: Collection[str] = (),
    *,
    listed_before: Collection[str] | None = None,
) -> Comparison:
    """Compares two runs. ``after`` holds every name that was seen, passed ones too; what it lacks was not seen.

    ``absent_instrument`` names tests of ``after`` that lack a tool: they say nothing about the code. A name that
    ``before`` does not hold is taken to be new, or to have passed where ``listed_before`` (all names then) has it.
    """
    known = set(before) if listed_before is None else set(listed_before) | set(before)
    groups: dict[str, list[str]] = {
        key: [] for key in ("arrivals", "mode_worse", "mode_improved", "departures", "unexplained", "stopped", "absent")
    }
    for name in sorted(set(before) | set(after)):
        groups_of = _place(name, before, after, known, name in absent_instrument)
        if groups_of is not None:
            groups[groups_of].append(name)
    return Comparison(
        arrivals=tuple(groups["arrivals"]),
        mode_worse=tuple(groups["mode_worse"]),
        mode_improved=tuple(groups["mode_improved"]),
        departures_seen_passed=tuple(groups["departures"]),
        unexplained_departures=tuple(groups["unexplained"]),
        stopped_being_measured=tuple(groups["stopped"]),
        absent_instrument=tuple(groups["absent"]),
    )


def _place(
    name: str, before: Mapping[str, Mode], after: Mapping[str, Mode], known: Collection[str], absent: bool
) -> str | None:
    old = before.get(name, Mode.PASSED if name in known else None)
    new = after.get(name)
    if new is None:
        return "unexplained" if old in (Mode.FAILED, Mode.CRASH) else None
    if absent and new is not Mode.PASSED:
        return "absent"
    if old is None:
        return "arrivals" if new in (Mode.FAILED, Mode.CRASH) else None
    if new > old:
        return "mode_worse"
    if new is Mode.SKIPPED and old > new:
        return "stopped"
    if new is Mode.PASSED and old in (Mode.FAILED, Mode.CRASH):
        return "departures"
    return "mode_improved" if new < old and new is not Mode.PASSED else None
