"""Labels of a device: what a probe detected or a person declared, or that it is unknown and why.

A label is text with its source and the time it was observed. Text that a tool prints instead of a value (``[N/A]``,
``Not Supported``, ``ERR!``, a blank) is never kept as text: ``vram!=80G`` would otherwise match a device of which
nothing is known. Which text counts as that is decided in one place here, ``unknown_reason``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from tenure.domain.reading import Reason

Source: TypeAlias = Literal["detected", "declared"]

KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
"""A label's key, to be matched in full."""

VALUE_LIMIT: Final = 256
"""The most characters a label's value may have; anything longer is no label but output gone astray."""

_UNIT = r"(?:[KMGT](?:i?B)?(?:/s)?|B|%|[KMG]?Hz|m?W|C|F|m?V|m?J|m?s|RPM)"
_PRINTED_UNKNOWN = re.compile(
    rf"\[?(?P<word>N/A|Not Supported|Not Available|Not Found|ERR!|Unknown(?: Error)?|Insufficient Permissions?"
    rf"|GPU is lost|GPU requires reset|18446744073709551615)\]?\s*{_UNIT}?",
    re.IGNORECASE,
)
_BARE_UNIT = re.compile(_UNIT)
_REASON_OF_WORD: Final[Mapping[str, Reason]] = {
    "n/a": Reason.NOT_SUPPORTED,
    "not supported": Reason.NOT_SUPPORTED,
    "not available": Reason.NOT_SUPPORTED,
    "insufficient permission": Reason.NO_PERMISSION,
    "insufficient permissions": Reason.NO_PERMISSION,
    "gpu is lost": Reason.GPU_LOST,
    "gpu requires reset": Reason.GPU_LOST,
    "18446744073709551615": Reason.OUT_OF_RANGE,
}


@dataclass(frozen=True, slots=True)
class Label:
    """A known value. ``at`` is UTC seconds of the observation; ``stale``: the probe failed since, this is its last."""

    value: str
    source: Source
    at: float
    stale: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The label as it travels and is stored; the module's ``from_dict`` reads it back."""
        body: dict[str, Any] = {"value": self.value, "source": self.source, "at": self.at}
        return body | {"stale": True} if self.stale else body


@dataclass(frozen=True, slots=True)
class UnknownLabel:
    """The probe answered, but not with a value. ``reason`` is a ``Reason`` or, from a drop-in probe, its own word."""

    reason: str
    source: Source
    at: float
    stale: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The unknown as it travels and is stored; the module's ``from_dict`` reads it back."""
        body: dict[str, Any] = {"unknown": self.reason, "source": self.source, "at": self.at}
        return body | {"stale": True} if self.stale else body


AnyLabel: TypeAlias = Label | UnknownLabel
Labels: TypeAlias = Mapping[str, AnyLabel]


def unknown_reason(text: str, source: Source = "detected") -> str | None:
    """Why ``text`` is not a value although it was printed as one; None when it is a value.

    A unit with nothing before it (``M``, ``MiB``) is a blank that somebody appended a unit to, but only where a
    program wrote it: a person who declares ``size=M`` means M. Control characters, or more than ``VALUE_LIMIT``
    characters, are no value either: they would have to be shown and typed.
    """
    bare = text.strip()
    if not bare or len(bare) > VALUE_LIMIT or not bare.isprintable():
        return Reason.UNPARSEABLE
    if source == "detected" and _BARE_UNIT.fullmatch(bare):
        return Reason.UNPARSEABLE
    printed = _PRINTED_UNKNOWN.fullmatch(bare)
    return _REASON_OF_WORD.get(printed["word"].lower(), Reason.UNPARSEABLE) if printed else None


def read_label(value: object, source: Source, at: float) -> AnyLabel:
    """The label for what a probe or a person gave: text, number, truth value, None, or ``{"unknown": reason}``.

    Never raises. What cannot be a label (nested values, not-a-number) is unknown as ``unparseable``. A truth value
    becomes ``true`` or ``false``.
    """
    if isinstance(value, bool):
        return Label("true" if value else "false", source, at)
    if isinstance(value, Mapping) and set(value) == {"unknown"}:
        return UnknownLabel(printable(str(value["unknown"]), 80) or Reason.UNPARSEABLE, source, at)
    if isinstance(value, str):
        text = value.strip()
    elif isinstance(value, int) and abs(value) < 10**40:  # beyond it no reading, and int to text has a limit of its own
        text = str(value)
    elif isinstance(value, float) and value - value == 0.0:  # neither infinite nor not-a-number
        text = repr(value)
    else:
        return UnknownLabel(Reason.UNPARSEABLE, source, at)
    reason = unknown_reason(text, source)
    return Label(text, source, at) if reason is None else UnknownLabel(reason, source, at)


def effective(detected: Labels, declared: Labels) -> dict[str, AnyLabel]:
    """The labels that selectors are held against: detected wins over declared.

    A detected unknown is no value that could win, so a declared value stands in for it and keeps its source: that is
    how a unified-memory machine, whose memory columns read ``[N/A]``, gets a ``vram`` at all.
    """
    result = {key: _settled(label) for key, label in declared.items()}
    for key, label in detected.items():
        settled = _settled(label)
        if isinstance(settled, Label) or not isinstance(result.get(key), Label):
            result[key] = settled
    return result


def marked_stale(labels: Labels) -> dict[str, AnyLabel]:
    """The last labels of a probe that failed just now: kept as they were, with their times, marked stale."""
    return {key: replace(label, stale=True) for key, label in labels.items()}


def to_dict(labels: Labels) -> dict[str, dict[str, Any]]:
    """All labels of a device as they travel and are stored."""
    return {key: label.to_dict() for key, label in labels.items()}


def from_dict(body: Mapping[str, Any]) -> dict[str, AnyLabel]:
    """Reads what ``to_dict`` wrote. Never raises: one bad label takes neither the others nor their worker down.

    An entry that is no label is unknown as ``unparseable`` with the time 0.0; text that prints as unknown comes back
    as an ``UnknownLabel``, whoever wrote it.
    """
    return {key: _read_entry(entry) for key, entry in body.items()}


def printable(text: str, limit: int = 80) -> str:
    """``text`` for a line of words: control characters escaped, cut to ``limit`` characters with the cut shown."""
    head = text[: limit + 1]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in head)
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def _settled(label: AnyLabel) -> AnyLabel:
    """``label``, or the unknown that its text amounts to."""
    if isinstance(label, Label):
        reason = unknown_reason(label.value, label.source)
        if reason is not None:
            return UnknownLabel(reason, label.source, label.at, label.stale)
    return label


def _read_entry(entry: object) -> AnyLabel:
    if not isinstance(entry, Mapping):
        return UnknownLabel(Reason.UNPARSEABLE, "detected", 0.0)
    source, at = entry.get("source"), entry.get("at")
    stale = entry.get("stale") is True
    if source not in ("detected", "declared") or isinstance(at, bool) or not isinstance(at, int | float):
        return UnknownLabel(Reason.UNPARSEABLE, "detected", 0.0, stale)
    checked: Source = "declared" if source == "declared" else "detected"
    if isinstance(entry.get("unknown"), str):
        return UnknownLabel(entry["unknown"], checked, at, stale)
    if isinstance(entry.get("value"), str):
        return _settled(Label(entry["value"], checked, at, stale))
    return UnknownLabel(Reason.UNPARSEABLE, checked, at, stale)
