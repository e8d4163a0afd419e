"""Versions as programs and packages state them: found in what they print, and held against a bound."""

from __future__ import annotations

import re

from tenure.domain.quantity import comparable, order

_DOTTED = re.compile(
    r"(?<![\w.])[vV]?([0-9]{1,9}(?:\.[0-9]{1,9}){1,7})(-?(?:a|b|rc|alpha|beta|dev|pre|\.dev)[0-9.]*\b)?"
)
_LONE = re.compile(r"\bversion [vV]?([0-9]{1,9})\b")
_LEADING = re.compile(
    r"[vV]?([0-9]{1,9}(?:\.[0-9]{1,9}){0,7})([-.]?(?:a|b|c|rc|alpha|beta|dev|pre)[0-9.]*(?![A-Za-z]))?"
)


def said_version(output: str) -> str | None:
    """The version in what ``TOOL --version`` printed: the first number with dots outside parentheses (those hold a
    packager's), else the whole number behind the word ``version``; None where there is neither."""
    text = re.sub(r"\([^()]*\)", " ", output[:4000])
    found = _DOTTED.search(text)
    if found is not None:
        return found[1] + (found[2] or "")
    lone = _LONE.search(text)
    return lone[1] if lone is not None else None


def reaches(have: str, least: str) -> bool | None:
    """Whether a version is at or above a bound; None where it cannot be compared. ``2.1.0+cu121`` counts as ``2.1.0``;
    a pre-release (``2.1.0rc1``) comes before its version."""
    found = _LEADING.match(have)
    if found is None:
        return None
    above = order(comparable(found[1]), comparable(least))
    if above is None:
        return None
    return above > 0 or (above == 0 and not found[2])
