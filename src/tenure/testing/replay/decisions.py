"""Cases of decisions: ends of lost jobs, guards, trackers, widths, baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tenure.domain import baseline, width
from tenure.domain.deviation import Signature, Tripped, assess
from tenure.domain.ends import Identity, name_end
from tenure.domain.guard import judge_floor
from tenure.domain.tracker import Tracker, parse_event
from tenure.testing.replay.cases import Case

_NO_CONTACT = "no_contact"


def ends(body: Mapping[str, Any]) -> Iterator[Case]:
    """How interrupted jobs are named; a device of a host that says nothing is unknown."""
    for number, case in enumerate(body["cases"], 1):
        before, after = (Identity(*(case[key][index] for key in ("boot", "namespace", "agent"))) for index in (0, 1))
        named = name_end(before, after, case.get("supervisor_alive"))
        name = case.get("name", f"interrupted job {number}")
        if "device" in case:
            right = {"end": case["right"], "device": case["device"]}
            yield Case(name, right, {"end": named, "device": "unknown" if named == _NO_CONTACT else "known"})
        else:
            yield Case(name, case["right"], named)


def guards(body: Mapping[str, Any]) -> Iterator[Case]:
    """Whether floors are sound."""
    for case in body["cases"]:
        found = judge_floor(case["floor_mb"], case.get("predicted_free_mb"), case.get("uncertainty_mb"))
        yield Case(case["name"], case["right"], str(found.verdict))


def tracker(body: Mapping[str, Any]) -> Iterator[Case]:
    """What shows after events in the order they arrived."""
    for case in body["cases"]:
        registered = case.get("registered")
        fold = Tracker(frozenset(registered) if registered is not None else None)
        shown: set[str] = set()
        for text in case["events"]:
            fold.apply(parse_event(text))
            shown |= set(fold.snapshot().units.values())
        view = fold.snapshot()
        right = case["right"]
        got: dict[str, Any] = {
            "workers": {worker: list(view.workers.get(worker, ())) for worker in view.workers},
            "units": view.units,
            "ignored": view.ignored,
            "reported": list(view.reported),
        }
        if "never_shown" in right:
            got["never_shown"] = right["never_shown"] if right["never_shown"] not in shown else "shown"
        yield Case(case["name"], right, got)


def widths(body: Mapping[str, Any]) -> Iterator[Case]:
    """Deviations, courses, widths and proposals."""
    for case in body["cases"]:
        yield Case(case["name"], case["right"], _width(case))


def _width(case: Mapping[str, Any]) -> dict[str, Any]:
    got: dict[str, Any] = {}
    measured = case.get("unit_cost_h_measured")
    if measured is not None:
        got["unit_cost_h_used"] = measured
    if {"planned_wall_h", "ratio"} & set(case):
        got |= _course(case)
    choice = _choice(case)
    if choice is not None:
        got["wall_h"] = {
            ("+".join(c.devices) if "candidate_sets" in case else str(c.width)): c.wall_h for c in choice.candidates
        }
        got |= {
            "saved_h": choice.saved_h,
            "action": choice.action,
            "split": dict(choice.chosen.split),
            "arithmetic_on_record": bool(choice.words),
        }
    if "proposed" in case:
        ruling = width.rule_on(
            case["proposed"],
            case["ratio"],
            arithmetic_on_record=case.get("arithmetic_on_record", False),
            staying_wins=case.get("arithmetic_shows_staying_wins", False),
            no_more_width=case.get("no_more_width", False),
            quantified_finding=case.get("quantified_finding", False),
            ratio_after=case.get("ratio_after"),
        )
        got["accepted"] = ruling.accepted
    return got


def _course(case: Mapping[str, Any]) -> dict[str, Any]:
    deviation = assess(case.get("planned_wall_h"), case.get("projected_wall_h"), ratio=case.get("ratio"))
    said = {Tripped.YES: True, Tripped.NO: False}.get(deviation.tripped, "not_established")
    got: dict[str, Any] = {"ratio": deviation.ratio, "deviation": said}
    if deviation.tripped is Tripped.NOT_ESTABLISHED:
        got["recorded"] = deviation.recorded.split(":", 1)[0]
    course = width.course(
        deviation,
        Signature(case["signature"]) if "signature" in case else None,
        fix_rounds_done=case.get("fix_rounds_done", 0),
        units_independent=case.get("units_independent", True),
        movable=bool(case.get("checkpoints_live") or case.get("relaunch_under_way")),
    )
    got["action"] = course.action
    got["width_evaluation"] = None if course.evaluation is None else str(course.evaluation)
    return got


def _hours(value: Any) -> float:
    return float(sum(value.values()) if isinstance(value, Mapping) else value)


def _choice(case: Mapping[str, Any]) -> width.WidthChoice | None:
    found = []
    if "candidate_sets" in case:
        for index, names in enumerate(case["candidate_sets"]):
            costs = {name: case["unit_cost_h_by_device"][name] for name in names}
            overhead = _hours(case.get("overhead_h_stay", 0.0)) if index == 0 else _hours(case["overhead_h_widen"])
            found.append(width.candidate(case["units_remaining"], costs, overhead, stays=index == 0))
    elif "candidates" in case:
        remaining = case.get("units_remaining", case.get("units_total", 0) - case.get("units_done", 0))
        most = case.get("max_width", max(case["candidates"]))
        for count in case["candidates"]:
            stays = count == case["width"]
            if count > most and not stays:
                continue
            overhead = _hours(case["overhead_h"]["stay" if stays else "widen"])
            costs = width.equal_devices(count, case["unit_cost_h_measured"])
            found.append(width.candidate(remaining, costs, overhead, stays=stays))
    return width.choose(found) if found else None


def baselines(body: Mapping[str, Any]) -> Iterator[Case]:
    """What got worse between two runs."""
    before, after = body["before"], body["after"]
    found = baseline.compare(_modes(before), _modes(after), after.get("absent_instrument", {}))
    yield Case(
        body.get("name", "two runs of a suite"),
        body["right"],
        {
            "arrivals": list(found.arrivals),
            "absent_instrument": list(found.absent_instrument),
            "departures_seen_passed": list(found.departures_seen_passed),
            "mode_improved": list(found.mode_improved),
            "mode_worse": list(found.mode_worse),
            "regression": found.regression,
            "exit": found.exit,
        },
    )
    for case in body.get("more", ()):
        found = baseline.compare(
            {name: baseline.mode_of(word) for name, word in case["before"].items()},
            {name: baseline.mode_of(word) for name, word in case["after"].items()},
            case.get("absent_instrument", {}),
        )
        reported = (
            "stopped_being_measured"
            if found.stopped_being_measured
            else "unexplained_departure"
            if found.unexplained_departures
            else None
        )
        got = {"regression": found.regression, "improved": found.improved, "exit": found.exit, "reported": reported}
        yield Case(case["name"], case["right"], got)


def _modes(run: Mapping[str, Any]) -> dict[str, baseline.Mode]:
    modes = {name: baseline.mode_of(word) for name, word in run.get("not_passed", {}).items()}
    modes |= dict.fromkeys(run.get("skipped", ()), baseline.Mode.SKIPPED)
    return modes | dict.fromkeys(run.get("seen_passed", ()), baseline.Mode.PASSED)
