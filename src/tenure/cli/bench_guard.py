"""``rc bench guard``: is a floor that kills or refuses sound, held against the predicted operating point?"""

from __future__ import annotations

import sys

from tenure.cli.options import Command, Given, Option, usage_error
from tenure.cli.text import number, say
from tenure.domain.guard import Soundness, judge_floor


def _not_negative(text: str) -> float:
    found = number(text)
    if found < 0:
        raise ValueError("an uncertainty is not below 0")
    return found


COMMAND = Command(
    "bench guard",
    "--floor N [--predicted N [--uncertainty N]]",
    "Say whether a floor is sound: predicted - uncertainty > floor. All figures in one unit.",
    (
        Option("--floor", "N", "the threshold below which something is killed or refused", read=number),
        Option("--predicted", "N", "what the configuration predicts for a healthy run", read=number),
        Option("--uncertainty", "N", "of the prediction (5 % of it)", read=_not_negative),
    ),
    more="Exit status: 0 sound; 1 unsound; 2 not established.",
)
CODES = {Soundness.SOUND: 0, Soundness.UNSOUND: 1, Soundness.NOT_ESTABLISHED: 2}


def main(given: Given) -> int:
    """Exit status 0 sound, 1 unsound, 2 not established."""
    if given.value("floor") is None:
        raise usage_error(COMMAND, "--floor N is what is to be judged")
    if given.value("uncertainty") is not None and given.value("predicted") is None:
        raise usage_error(COMMAND, "--uncertainty goes with --predicted")
    found = judge_floor(given.value("floor"), given.value("predicted"), given.value("uncertainty"))
    if given.json:
        from json import dumps

        said = {
            "verdict": str(found.verdict),
            "floor": found.floor,
            "predicted": found.predicted,
            "uncertainty": found.uncertainty,
            "margin": found.margin,
            "words": found.words,
        }
        sys.stdout.write(dumps(said) + "\n")
    else:
        say(f"{str(found.verdict).replace('_', ' ')}: {found.words}")
    return CODES[found.verdict]
