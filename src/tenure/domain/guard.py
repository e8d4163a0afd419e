"""Is a threshold that kills or refuses sound? Only where the predicted operating point clears it with its uncertainty.

A memory watchdog at 12,000 MB once killed a healthy server whose own configuration predicts 12,223 MB free: the guard
lay inside the server's operating range, and its trip read as a finding about the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: Share of the prediction that is taken as its uncertainty where none is given.
DEFAULT_UNCERTAINTY = 0.05


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
    """Whether a floor is sound: predicted - uncertainty > floor. Without a prediction nothing is established.

    ``uncertainty`` is in the unit of the prediction; left out it is 5 % of it.
    """
    if predicted is None:
        words = f"floor {floor:g}: nothing predicts the operating point, so nothing is established about it"
        return GuardVerdict(floor, None, None, None, Soundness.NOT_ESTABLISHED, words)
    spread = DEFAULT_UNCERTAINTY * predicted if uncertainty is None else uncertainty
    margin = predicted - spread - floor
    sound = margin > 0
    given = "" if uncertainty is not None else " (5 % assumed)"
    words = (
        f"predicted {predicted:g} less uncertainty {spread:g}{given} is {predicted - spread:g}, "
        f"{'above' if sound else 'at or below'} the floor of {floor:g}: "
        + ("the guard is sound" if sound else "a healthy run may trip it; a trip is evidence about the guard")
    )
    return GuardVerdict(floor, predicted, spread, margin, Soundness.SOUND if sound else Soundness.UNSOUND, words)
