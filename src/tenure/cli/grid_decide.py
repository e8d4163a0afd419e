"""``rc grid decide``: the deviation, what follows from it, and the width, by arithmetic on measured cost."""

from __future__ import annotations

import sys

from tenure.cli.files import bad, read_object
from tenure.cli.options import Command, Given
from tenure.cli.text import clean, say, table
from tenure.domain import remedy
from tenure.domain.deviation import Tripped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tenure.domain.remedy import Answer

COMMAND = Command(
    "grid decide",
    "FILE",
    "Say what is to be done about a component that runs over its plan, and show the arithmetic.",
    least=1,
    most=1,
    more="""FILE is JSON or TOML (- is standard input), hours and whole units; what is not known is left out:
  planned_wall_h, projected_wall_h, or ratio        the deviation; 2.0 and over must be dealt with
  signature, or telemetry {gpu_busy, utilisation (0 to 1), cores, units_per_launch}
  fix_rounds_done, units_independent, checkpoints_live, relaunch_under_way
  units_remaining (or units_total, units_done), unit_cost_h_measured, width, candidates [4, 8, 12], max_width
  overhead_h {stay, widen}: hours, or hours by name such as {provision, stage, restore}
  or, for unequal devices: unit_cost_h_by_device {name: hours}, candidate_sets [[present], [other], ...],
  overhead_h_stay, overhead_h_widen
  proposed, with arithmetic_on_record, arithmetic_shows_staying_wins, no_more_width, quantified_finding, ratio_after
Exit status: 0 decided, or the proposal may stand; 1 the proposal is refused; 2 nothing could be established.""",
)
REFUSED, NOT_ESTABLISHED = 1, 2


def main(given: Given) -> int:
    """Exit status 0 decided, 1 a proposal was refused, 2 nothing established."""
    path = given.words[0]
    told = read_object(path)
    try:
        answer = remedy.decide(remedy.read(told))
    except ValueError as error:
        raise bad(path, str(error), "correct that key; rc grid decide --help lists them") from error
    if answer.deviation is None and answer.choice is None and answer.ruling is None and not answer.signature_words:
        raise bad(path, "it holds nothing to decide on", "rc grid decide --help lists the keys")
    code = _code(answer)
    if given.json:
        from json import dumps

        sys.stdout.write(dumps({**to_dict(answer), "exit": code}) + "\n")
    else:
        _show(answer)
    return code


def _code(answer: Answer) -> int:
    if answer.ruling is not None:
        return 0 if answer.ruling.accepted else REFUSED
    unread = answer.deviation is not None and answer.deviation.tripped is Tripped.NOT_ESTABLISHED
    return NOT_ESTABLISHED if unread and answer.action is None else 0


def to_dict(answer: Answer) -> dict[str, Any]:
    """The answer as JSON holds it."""
    d, c, w, r = answer.deviation, answer.course, answer.choice, answer.ruling
    return {
        "deviation": d
        and {
            "component": d.component,
            "planned_wall_h": d.planned_h,
            "projected_wall_h": d.projected_h,
            "ratio": d.ratio,
            "basis": d.basis,
            "tripped": str(d.tripped),
            "recorded": d.recorded,
        },
        "signature": None if answer.signature is None else str(answer.signature),
        "signature_words": answer.signature_words or None,
        "width_evaluation": None if c is None or c.evaluation is None else str(c.evaluation),
        "why": c and c.why,
        "candidates": w
        and [
            {
                "devices": list(one.devices),
                "width": one.width,
                "stays": one.stays,
                "split": dict(one.split),
                "compute_h": one.compute_h,
                "overhead_h": one.overhead_h,
                "wall_h": one.wall_h,
                "box_hours": one.box_hours,
                "chosen": one is w.chosen,
            }
            for one in w.candidates
        ],
        "saved_h": w and w.saved_h,
        "arithmetic": w and w.words,
        "action": answer.action,
        "proposal": r and {"accepted": r.accepted, "why": r.why},
        "assumed": list(answer.assumed),
    }


def _show(answer: Answer) -> None:
    if answer.deviation is not None:
        say(clean(f"deviation: {answer.deviation.recorded}"))
    if answer.signature is not None:
        say(clean(f"signature: {answer.signature} ({answer.signature_words})"))
    if answer.course is not None and answer.course.evaluation is not None:
        say(clean(f"width: {answer.course.evaluation} ({answer.course.why})"))
    elif answer.course is not None and answer.course.action is not None:
        say(clean(answer.course.why))
    if answer.choice is not None:
        rows = [
            [
                one.width,
                "stays" if one.stays else "",
                max(one.split.values(), default=0),
                f"{one.compute_h:.6g}",
                f"{one.overhead_h:.6g}",
                f"{one.wall_h:.6g}",
                f"{one.box_hours:.6g}",
                "chosen" if one is answer.choice.chosen else "",
            ]
            for one in answer.choice.candidates
        ]
        say("")
        say(table(["WIDTH", "", "UNITS/DEVICE", "COMPUTE H", "OVERHEAD H", "WALL H", "BOX-HOURS", ""], rows))
        say(clean(answer.choice.words))
        split = answer.choice.chosen.split
        if max(split.values()) - min(split.values()) > 1 and len(split) <= 32:  # unequal devices: who gets what matters
            say(clean("split: " + ", ".join(f"{name} {n}" for name, n in split.items())))
    if answer.assumed:
        say(clean("assumed, because the file does not say: " + "; ".join(answer.assumed)))
    say(clean(f"action: {answer.action or 'none'}"))
    if answer.ruling is not None:
        say(clean(f"proposal: {'accepted' if answer.ruling.accepted else 'REFUSED'}: {answer.ruling.why}"))
