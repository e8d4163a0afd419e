"""Is a threshold that kills or refuses sound? Only where the predicted operating point clears it with its uncertainty.

A memory watchdog at 12,000 MB once killed a healthy server whose own configuration predicts 12,223 MB free: the guard
lay inside the server's operating range, and its trip read as a finding about the server.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

#: Share of the prediction that is taken as its uncertainty where none is given.
DEFAULT_UNCERTAINTY = Fraction(1, 20)


class Soundness(StrEnum):
    """What can be said of a floor before it is used."""

    SOUND = "sound"
    UNSOUND = "unsound"
    NOT_ESTABLISHED = "not_established"


@dataclass(frozen=True, slots=True)
class GuardVerdict:
    """A floor, the operating point it was held against, and what follows; all quantities in one unit.

    ``margin`` is how far the low end of the prediction lies above the floor (``None`` without a prediction).
    """

    floor: float
    predicted: float | None
    uncertainty: float | None
    margin: float | None
    verdict: Soundness
    words: str


def judge_floor(floor: float, predicted: float | None, uncertainty: float | None = None) -> GuardVerdict:
    """Whether a floor is sound: predicted - uncertainty > floor, decided on the decimals as given, unrounded.

    ``uncertainty`` is in the unit of the prediction; left out it is 5 % of it. Without a prediction, or with one that
    is no finite number, nothing is established. Raises ValueError where the floor or the uncertainty is no such number,
    or the uncertainty is negative.
    """
    if not math.isfinite(floor):
        raise ValueError(f"the floor {floor} is no finite number")
    if uncertainty is not None and not (math.isfinite(uncertainty) and uncertainty >= 0):
        raise ValueError(f"the uncertainty {uncertainty} is no finite number of 0 or more")
    evidence = "until then a trip is evidence about the guard"
    if predicted is None or not math.isfinite(predicted):
        words = f"floor {_n(floor)}: nothing predicts the operating point, so nothing is established; {evidence}"
        return GuardVerdict(floor, None, None, None, Soundness.NOT_ESTABLISHED, words)
    expected = Fraction(repr(predicted))
    spread = abs(expected) * DEFAULT_UNCERTAINTY if uncertainty is None else Fraction(repr(uncertainty))
    low = expected - spread
    margin = low - Fraction(repr(floor))
    sound = margin > 0
    given = "" if uncertainty is not None else " (5 % assumed)"
    words = (
        f"predicted {_n(predicted)} less uncertainty {_n(spread)}{given} is {_n(low)}, "
        f"{'above' if sound else 'at or below'} the floor of {_n(floor)}: "
        + ("the guard is sound" if sound else "a healthy run may trip it; a trip is evidence about the guard")
    )
    verdict = Soundness.SOUND if sound else Soundness.UNSOUND
    return GuardVerdict(floor, predicted, float(spread), float(margin), verdict, words)


def _n(value: float | Fraction) -> str:
    return f"{float(value):.12g}"
