"""Values that can be compared: plain numbers, quantities, dotted versions; everything else is text.

* ``20``, ``-5``: a plain number.
* ``80G``, ``1.5T``: a quantity; K M G T are powers of 1024. It compares with quantities and plain numbers, exactly.
* ``580.173.02``: a version, compared part by part, missing parts being zero (so that of ``<``, ``=``, ``>`` always
  exactly one holds: were 580 and 580.0 different, one could ask for ``>=580,<=580,!=580``). It compares with versions
  and plain numbers. Dots without a suffix always mean a version: ``595.78`` is above ``595.9``, as drivers count. The
  price is that a bare decimal fraction cannot be compared as one; give it a unit.
* A version and a quantity do not compare, and text compares with nothing; both can still be equal or not.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_DIGITS, _DECIMALS, _PARTS = 24, 12, 8
_NUMBER = re.compile(rf"-?[0-9]{{1,{_DIGITS}}}")
_QUANTITY = re.compile(rf"(-?)([0-9]{{1,{_DIGITS}}})(?:\.([0-9]{{1,{_DECIMALS}}}))?([KMGT])")
_VERSION = re.compile(rf"[0-9]{{1,{_DIGITS}}}(?:\.[0-9]{{1,{_DIGITS}}}){{1,{_PARTS - 1}}}")
_UNITS: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SCALE: Final = 10**_DECIMALS
_LONGEST: Final = (_DIGITS + 1) * _PARTS


class Comparable(NamedTuple):
    """A value as comparisons need it.

    ``number`` is an exact count of 10^-12 of one, for numbers and quantities; ``version`` the parts without trailing
    zeros, for versions and plain numbers; ``text`` the normal form: equal values of one kind have the same.
    """

    number: int | None
    version: tuple[int, ...] | None
    text: str

    @property
    def is_text(self) -> bool:
        """Whether the value has no order."""
        return self.number is None and self.version is None


def comparable(text: str) -> Comparable:
    """What ``text`` (without blanks around it) is; never raises. Numbers too long to be measurements are text."""
    if len(text) > _LONGEST:
        return Comparable(None, None, text)
    if _NUMBER.fullmatch(text):
        value = int(text)
        return Comparable(value * _SCALE, (value,), str(value))
    quantity = _QUANTITY.fullmatch(text)
    if quantity:
        sign, whole, decimals, unit = quantity.groups()
        scaled = int(whole + (decimals or "").ljust(_DECIMALS, "0")) * _UNITS[unit]
        scaled = -scaled if sign else scaled
        return Comparable(scaled, None, _normal_quantity(scaled))
    if _VERSION.fullmatch(text):
        parts = [int(part) for part in text.split(".")]
        while len(parts) > 2 and not parts[-1]:
            parts.pop()
        normal = ".".join(map(str, parts))
        return Comparable(None, tuple(parts if parts[-1] else parts[:-1]), normal)
    return Comparable(None, None, text)


def order(have: Comparable, want: Comparable) -> int | None:
    """Negative, zero or positive as ``have`` is below, equal to or above ``want``; None where they do not compare."""
    if have.number is not None and want.number is not None:
        return (have.number > want.number) - (have.number < want.number)
    if have.version is not None and want.version is not None:
        return (have.version > want.version) - (have.version < want.version)
    return None


def equal(have: Comparable, want: Comparable) -> bool:
    """Whether the two are the same value; values that do not compare are equal only as the same text."""
    return have.text == want.text or order(have, want) == 0


def _normal_quantity(scaled: int) -> str:
    """The one way to write a quantity: fewest decimals, then the largest unit, within what ``comparable`` reads.

    What was typed is itself within those bounds, so there is always a way.
    """
    if not scaled:
        return "0K"
    sign, magnitude = ("-" if scaled < 0 else ""), abs(scaled)
    best: tuple[int, str] | None = None
    for unit in "TGMK":
        # How many of this unit: magnitude / (scale * size), written with as many decimals as it exactly needs.
        size = _UNITS[unit]
        whole, rest = divmod(magnitude, size)
        if rest:
            continue  # would need more decimals than are read
        number, fraction = divmod(whole, _SCALE)
        decimals = f"{fraction:0{_DECIMALS}d}".rstrip("0")
        if number < 10**_DIGITS and (best is None or len(decimals) < best[0]):
            best = (len(decimals), f"{sign}{number}{'.' if decimals else ''}{decimals}{unit}")
    if best is None:
        raise AssertionError(f"no way to write the quantity {scaled}")
    return best[1]
