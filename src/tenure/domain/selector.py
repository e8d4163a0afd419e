"""Selectors: which devices a job may run on, and for every other device the reason why not.

``key=value``, ``!=``, ``>=``, ``<=``, ``>``, ``<``, ``key in (a,b)``; a comma means AND. A device without the label
never matches, ``!=`` included, and an unknown label counts as none: a device of which nothing is known must not be
handed out because of it. How values compare is told in ``quantity``.

A value may contain blanks and balanced parentheses (``gpu_model=NVIDIA H100 80GB HBM3``) but no comma and none of
``= < >``; those are what a forgotten comma looks like. There is no quoting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final, Literal, TypeAlias, cast

from tenure.domain.label import KEY, VALUE_LIMIT, Label, Labels, Source, UnknownLabel, printable, unknown_reason
from tenure.domain.quantity import Comparable, comparable, equal, order

Operator: TypeAlias = Literal["=", "!=", ">=", "<=", ">", "<", "in"]

CONDITION_LIMIT: Final = 64
LIST_LIMIT: Final = 256
EXAMPLE: Final = "vram>=40G,class=train"

_OPERATOR = re.compile(r">=|<=|!=|=|>|<|in(?![A-Za-z0-9_.-])")
_KEY_GOES_ON = re.compile(r"[A-Za-z0-9_.-]")
_NOT_IN_A_VALUE = re.compile(r"[=<>]")


class SelectorError(ValueError):
    """A selector that cannot be read. ``position`` counts characters from 0; the message is bounded and printable."""

    def __init__(self, text: str, position: int, expected: str, example: str = EXAMPLE) -> None:
        found = f"found {text[position]!r}" if position < len(text) else "it ends"
        before = printable(text[max(0, position - 24) : position], 48)
        where = f" after {before!r}" if before else ""
        super().__init__(
            f"the selector cannot be read at character {position + 1}{where}: {found}, expected {expected}; "
            f"for example {example}"
        )
        self.position, self.expected, self.example = position, expected, example


class Outcome(StrEnum):
    """How one condition fared on one device. Only ``matches`` lets the device through."""

    MATCHES = "matches"
    DIFFERS = "differs"
    ABSENT = "absent"
    UNKNOWN = "unknown"
    NOT_COMPARABLE = "not_comparable"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. ``values`` are in normal form (24576M is 24G), ``written`` is what was typed, for words.

    Conditions that mean the same are equal: ``vram=24G``, ``vram=24576M`` and ``vram in (24G)``.
    """

    key: str
    operator: Operator
    values: tuple[str, ...]
    written: str = field(compare=False)
    wanted: tuple[Comparable, ...] = field(compare=False, repr=False)

    @property
    def canonical(self) -> str:
        """The condition in its one normal spelling."""
        if self.operator == "in":
            return f"{self.key} in ({','.join(self.values)})"
        return f"{self.key}{self.operator}{self.values[0]}"


@dataclass(frozen=True, slots=True, eq=False)
class Selector:
    """Conditions that must all hold, in the order typed, without repeats; none at all means any device.

    Two selectors are equal, and share a hash, when their ``canonical`` text is the same: conditions sorted, values
    in normal form. ``parse(s.canonical) == s``.
    """

    conditions: tuple[Condition, ...] = ()
    canonical: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "canonical", ",".join(sorted({c.canonical for c in self.conditions})))

    @classmethod
    def any(cls) -> Selector:
        """The selector that every device matches."""
        return cls()

    def __eq__(self, other: object) -> bool:
        return self.canonical == other.canonical if isinstance(other, Selector) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.canonical)

    def __str__(self) -> str:
        return self.canonical


@dataclass(frozen=True, slots=True)
class Finding:
    """What one condition met on one device. ``have`` is the label's text where there is one; ``words`` is a line."""

    condition: Condition
    outcome: Outcome
    have: str | None
    words: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a device matches, and if not, its first failing condition in words."""

    outcome: Outcome
    words: str
    finding: Finding | None = None


def parse(text: str | None) -> Selector:
    """Reads a selector; None or blank is ``Selector.any()``. Raises ``SelectorError``."""
    if text is None or not text.strip(" "):
        return Selector.any()
    return _parse_often(text) if len(text) <= 512 else _parse(text)


def matches(selector: Selector, labels: Labels) -> bool:
    """Whether a device with these labels satisfies every condition. The fast path: no words are made."""
    for condition in selector.conditions:
        label = labels.get(condition.key)
        if not isinstance(label, Label):
            return False
        have = _known(label.value, label.source)
        if not isinstance(have, Comparable) or not _holds(condition, have):
            return False
    return True


def check(selector: Selector, labels: Labels) -> tuple[Finding, ...]:
    """A finding for each condition, in the order typed. Never raises, whatever the labels hold."""
    return tuple(_find(condition, labels) for condition in selector.conditions)


def explain(selector: Selector, fleet: Mapping[str, Labels]) -> dict[str, Explanation]:
    """For each device by name: that it matches, or its first failing condition."""
    return {device: _explain_one(selector, labels) for device, labels in fleet.items()}


def _explain_one(selector: Selector, labels: Labels) -> Explanation:
    for condition in selector.conditions:
        finding = _find(condition, labels)
        if finding.outcome is not Outcome.MATCHES:
            return Explanation(finding.outcome, finding.words, finding)
    return Explanation(Outcome.MATCHES, "matches")


def _find(condition: Condition, labels: Labels) -> Finding:
    label = labels.get(condition.key)
    what = printable(condition.written, 120)
    if label is None:
        return Finding(condition, Outcome.ABSENT, None, f"{what}: no such label")
    stale = " (stale: its probe failed since)" if label.stale else ""
    known = label.reason if isinstance(label, UnknownLabel) else _known(label.value, label.source)
    if isinstance(known, str):
        return Finding(condition, Outcome.UNKNOWN, None, f"{what}: unknown ({printable(known)}){stale}")
    have = cast(Label, label).value
    words = f"{what}: here it is {printable(have)}{stale}"
    holds = _holds(condition, known)
    if holds is None:
        return Finding(condition, Outcome.NOT_COMPARABLE, have, f"{words}, which has no order with what is asked")
    return Finding(condition, Outcome.MATCHES if holds else Outcome.DIFFERS, have, words)


@lru_cache(maxsize=16384)
def _known(text: str, source: Source) -> Comparable | str:
    """The value of a label's text, or the reason why it is unknown. Cached: a fleet repeats few values often."""
    return unknown_reason(text, source) or comparable(text.strip())


def _holds(condition: Condition, have: Comparable) -> bool | None:
    """Whether the condition holds of a known value; None where it asks for an order that does not exist."""
    operator = condition.operator
    if operator == "=":
        return equal(have, condition.wanted[0])
    if operator == "in":
        return any(equal(have, want) for want in condition.wanted)
    if operator == "!=":
        return not equal(have, condition.wanted[0])
    above = order(have, condition.wanted[0])
    if above is None:
        return None
    if operator == ">=":
        return above >= 0
    if operator == "<=":
        return above <= 0
    return above > 0 if operator == ">" else above < 0


def _skip(text: str, position: int) -> int:
    while text.startswith(" ", position):
        position += 1
    return position


@lru_cache(maxsize=4096)
def _parse_often(text: str) -> Selector:
    """A fleet asks for the same few selectors again and again; long ones are not worth the memory."""
    return _parse(text)


def _parse(text: str) -> Selector:
    conditions: dict[Condition, None] = {}
    position = 0
    for _ in range(CONDITION_LIMIT):
        condition, position = _parse_condition(text, _skip(text, position))
        conditions.setdefault(condition)
        if position == len(text):
            return Selector(tuple(conditions))
        position += 1  # the comma
    raise SelectorError(text, position, f"at most {CONDITION_LIMIT} conditions")


def _parse_condition(text: str, position: int) -> tuple[Condition, int]:
    """Reads one condition; returns it and the position of the comma or the end behind it."""
    found = KEY.match(text, position)
    if found is None:
        raise SelectorError(text, position, "a label's name (a letter, then letters, digits, _ . -)")
    key, position = found[0], found.end()
    if _KEY_GOES_ON.match(text, position):
        raise SelectorError(text, position, "a label's name of at most 63 characters")
    position = _skip(text, position)
    found = _OPERATOR.match(text, position)
    if found is None:
        hint = "= != >= <= > < or in (there is no not in: write k!=a,k!=b)"
        raise SelectorError(text, position, hint, f"{key}=value")
    operator, position = cast(Operator, found[0]), _skip(text, found.end())
    if operator == "in":
        return _parse_list(text, position, key)
    end = text.find(",", position)
    end = len(text) if end < 0 else end
    if text.startswith("(", position):
        raise SelectorError(text, position, "one value; a list is asked for with in", f"{key} in (a,b)")
    value, want = _value(text, position, end, f"{key}{operator}40G")
    _balanced(text, position, end)
    if want.is_text and operator not in ("=", "!="):
        expected = f"after {operator} a number, a version, or a quantity with K, M, G or T and nothing behind it"
        raise SelectorError(text, position, expected, f"{key}{operator}40G")
    return Condition(key, operator, (want.text,), f"{key}{operator}{value}", (want,)), end


def _parse_list(text: str, position: int, key: str) -> tuple[Condition, int]:
    """Reads what follows ``in``. A list of one value is an equality, so that both spellings are one class."""
    example = f"{key} in (a,b)"
    if not text.startswith("(", position):
        raise SelectorError(text, position, "( and a list of values", example)
    close = text.find(")", position)
    if close < 0:
        raise SelectorError(text, len(text), "a ) at the end of the list", example)
    end = _skip(text, close + 1)
    if end < len(text) and text[end] != ",":
        raise SelectorError(text, end, "a comma or the end", f"{example},class=train")
    typed: list[tuple[str, Comparable]] = []
    start = position + 1
    for piece in text[start:close].split(",", LIST_LIMIT):
        if len(typed) == LIST_LIMIT:
            raise SelectorError(text, start, f"at most {LIST_LIMIT} values in a list", example)
        stop = start + len(piece)
        typed.append(_value(text, start, stop, example))
        if "(" in piece:
            raise SelectorError(text, start + piece.index("("), "a value without parentheses in a list", example)
        start = stop + 1
    wanted = {want.text: want for _, want in typed}
    values = tuple(sorted(wanted))
    operator: Operator = "in" if len(values) > 1 else "="
    written = f"{key} in ({','.join(value for value, _ in typed)})"
    return Condition(key, operator, values, written, tuple(wanted[value] for value in values)), end


def _value(text: str, start: int, end: int, example: str) -> tuple[str, Comparable]:
    """The value between two positions, as typed less the blanks around it, and read; refuses what none may be."""
    value = text[start:end].strip(" ")
    start = _skip(text, start)
    if not value:
        raise SelectorError(text, min(start, end), "a value", example)
    if len(value) > VALUE_LIMIT:
        raise SelectorError(text, start + VALUE_LIMIT, f"a value of at most {VALUE_LIMIT} characters", example)
    stray = _NOT_IN_A_VALUE.search(value)
    if stray is not None:
        raise SelectorError(text, start + stray.start(), "a value without = < >, then a comma", example)
    if not value.isprintable():
        at = next(i for i, character in enumerate(value) if not character.isprintable())
        raise SelectorError(text, start + at, "a value without control characters", example)
    want = comparable(value)
    # Asked of the normal form: 18446744073709551615.0K must not pass, only for its canonical text to be refused.
    if unknown_reason(want.text, "declared") is not None:
        raise SelectorError(text, start, "a value (what is unknown matches nothing and cannot be asked for)", example)
    return value, want


def _balanced(text: str, start: int, end: int) -> None:
    depth = 0
    for position in range(start, end):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth < 0:
            raise SelectorError(text, position, "no ) without its (")
    if depth:
        raise SelectorError(text, end, "a ) for the ( in the value")
