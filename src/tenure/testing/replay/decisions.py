"""Cases of decisions: ends of lost jobs, guards, trackers, widths, baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tenure.domain import baseline, remedy
from tenure.domain.deviation import Tripped
from tenure.domain.ends import Identity, name_end
from tenure.domain.guard import judge_floor
from tenure.domain.tracker import Tracker, parse_event
from tenure.testing.replay.cases import Case, name_of

_NO_CONTACT = "no_contact"


def ends(case: Mapping[str, Any], number: int) -> Case:
    """How an interrupted job is named; a device of a host that says nothing is unknown."""
    known = {key: case.get(key, (None, None)) for key in ("boot", "namespace", "agent")}
    before, after = (Identity(*(known[key][index] for key in known)) for index in (0, 1))
    named = name_end(before, after, case.get("supervisor_alive"))
    name = name_of(case, number)
    if "device" in case:
        right = {"end": case["right"], "device": case["device"]}
        return Case(name, right, {"end": named, "device": "unknown" if named == _NO_CONTACT else "known"})
    return Case(name, case["right"], named)


def guard(case: Mapping[str, Any], number: int) -> Case:
    """Whether a floor is sound."""
    found = judge_floor(case["floor_mb"], case.get("predicted_free_mb"), case.get("uncertainty_mb"))
    return Case(name_of(case, number), case["right"], str(found.verdict))


def tracker(case: Mapping[str, Any], number: int) -> Case:
    """What shows after events in the order they arrived."""
    registered = case.get("registered")
    fold = Tracker(frozenset(registered) if registered is not None else None)
    shown: set[str] = set()
    for text in case["events"]:
        fold.apply(parse_event(text))
        shown |= set(fold.snapshot().units.values())
    view = fold.snapshot()
    right = case["right"]
    got: dict[str, Any] = {
        "workers": {worker: list(held) for worker, held in view.workers.items()},
        "units": view.units,
        "counts": view.counts,
        "ignored": view.ignored,
        "reported": list(view.reported),
    }
    if "never_shown" in right:
        wanted = [right["never_shown"]] if isinstance(right["never_shown"], str) else right["never_shown"]
        got["never_shown"] = "shown: " + ", ".join(sorted(shown)) if shown & set(wanted) else right["never_shown"]
    return Case(name_of(case, number), right, got)


def width(case: Mapping[str, Any], number: int) -> Case:
    """A deviation, a course, widths and a proposal, as far as the case asks for them."""
    question = remedy.read(case)
    answer = remedy.decide(question)
    got: dict[str, Any] = {"unit_cost_h_used": question.unit_cost_h, "action": answer.action}
    if answer.deviation is not None:
        found = answer.deviation
        said = {Tripped.YES: True, Tripped.NO: False}.get(found.tripped, "not_established")
        got |= {"ratio": found.ratio, "deviation": said}
        if found.tripped is Tripped.NOT_ESTABLISHED:
            got["recorded"] = found.recorded.split(":", 1)[0]
    if answer.course is not None:
        got["width_evaluation"] = None if answer.course.evaluation is None else str(answer.course.evaluation)
    got["signature"] = None if answer.signature is None else str(answer.signature)
    if answer.choice is not None:
        choice, named = answer.choice, "candidate_sets" in case
        keyed = [("+".join(c.devices) if named else str(c.width), c) for c in choice.candidates]
        got |= {
            "wall_h": {key: c.wall_h for key, c in keyed},
            "box_hours": {key: c.box_hours for key, c in keyed},
            "saved_h": choice.saved_h,
            "split": dict(choice.chosen.split),
            "arithmetic_on_record": bool(choice.words),
        }
    if answer.ruling is not None:
        got["accepted"] = answer.ruling.accepted
    return Case(name_of(case, number), case["right"], got)


# -- baselines ---------------------------------------------------------------------------------------------------------


def baselines(body: Mapping[str, Any]) -> Iterator[Case]:
    """What got worse between two runs: the file's own pair, then one a case."""
    if "before" in body:
        yield two_runs({"name": "two runs of a suite", **body}, 1)
    more = body.get("more", ())
    if not isinstance(more, Sequence):
        raise ValueError("more is a list of cases")
    for number, case in enumerate(more, 1):
        yield two_runs(case, number)


def two_runs(case: Mapping[str, Any], number: int) -> Case:
    """One pair of runs. Lists of names say nothing by their order."""
    before, after = case["before"], case["after"]
    absent = case.get("absent_instrument", after.get("absent_instrument", {}) if _listed(after) else {})
    found = baseline.compare(_modes(before), _modes(after), absent)
    got: dict[str, Any] = {
        key: sorted(getattr(found, key))
        for key in (
            "arrivals",
            "absent_instrument",
            "departures_seen_passed",
            "mode_improved",
            "mode_worse",
            "stopped_being_measured",
            "unexplained_departures",
        )
    }
    told = {
        "stopped_being_measured": found.stopped_being_measured,
        "unexplained_departure": found.unexplained_departures,
    }
    got["reported"] = next((word for word, names in told.items() if names), None)
    got |= {"regression": found.regression, "improved": found.improved, "exit": found.exit}
    right = {k: sorted(v) if isinstance(v, list) and k in got else v for k, v in case["right"].items()}
    return Case(name_of(case, number), right, got)


def _listed(run: Mapping[str, Any]) -> bool:
    """Whether a run is given by lists of names, and not as one mode for each name."""
    return any(not isinstance(value, str) for value in run.values())


def _modes(run: Mapping[str, Any]) -> dict[str, baseline.Mode]:
    if not _listed(run):
        return {name: baseline.mode_of(word) for name, word in run.items()}
    modes = {name: baseline.mode_of(word) for name, word in run.get("not_passed", {}).items()}
    modes |= dict.fromkeys(run.get("skipped", ()), baseline.Mode.SKIPPED)
    return modes | dict.fromkeys(run.get("seen_passed", ()), baseline.Mode.PASSED)
