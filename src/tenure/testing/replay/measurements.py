"""Cases of measurement validity: clock windows, pairs of arms, summaries, chances."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from tenure.domain import clocks as clk
from tenure.domain.pairing import judge_pair
from tenure.testing.replay.cases import Case


def clocks(body: Mapping[str, Any]) -> Iterator[Case]:
    """Clock windows and what may be concluded from them."""
    for case in body["cases"]:
        if "arms" in case:
            yield Case(case["name"], _sets(case["right"]), _sets(_pair(case)))
        elif "summary_of" in case:
            yield Case(case["name"], case["right"], _summary(case))
        else:
            chances = [clk.chance_clean(case["p_event_per_item"], items) for items in case["items"]]
            yield Case(case["name"], case["right"], {"p_clean": chances})


def _sets(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Reasons and caveats are sets: their order says nothing."""
    return {key: sorted(value) if key in ("reasons", "caveats") else value for key, value in answer.items()}


def _pair(case: Mapping[str, Any]) -> dict[str, Any]:
    first, second = (_window(arm) for arm in case["arms"])
    found = judge_pair(first, second, case.get("waive", ()))
    return {
        "spread_pct": [None if arm is None else arm.spread_pct for arm in found.arms],
        "verdict": found.verdict,
        "reasons": list(found.reasons),
        "caveats": list(found.caveats),
    }


def _window(arm: Mapping[str, Any]) -> clk.ClockWindow:
    return clk.ClockWindow(
        samples=tuple(_samples(arm)),
        name=arm.get("name", ""),
        driver=arm.get("driver", ""),
        max_sm_mhz=arm.get("max_sm_mhz"),
        boot_id=arm.get("boot_id", ""),
        persistence=str(arm.get("persistence", "")),
        coverage=arm.get("coverage", 1.0),
        contended=bool(arm.get("contended", False)),
    )


def _samples(arm: Mapping[str, Any]) -> Iterator[clk.ClockSample]:
    given = arm["sm_mhz"]
    values = given[0] * given[1] if given and isinstance(given[0], list) else given
    cycle = itertools.cycle(arm.get("busy_cycle", [True]))
    everywhere = arm.get("throttle_bits", 0)
    at = {int(index): bits for index, bits in arm.get("throttle_bits_at", {}).items()}
    for index, (value, busy) in enumerate(zip(values, cycle, strict=False)):
        yield clk.ClockSample(value, at.get(index, everywhere), busy)


def _summary(case: Mapping[str, Any]) -> dict[str, Any]:
    samples = list(_samples(case["summary_of"]))
    found = clk.summarise([sample.sm_mhz for sample in samples])
    plotted = clk.plot_points([sample.sm_mhz for sample in samples], case.get("plot_points", 100))
    throttled = sum(1 for sample in samples if sample.throttle_bits & ~clk.BENIGN)
    if found is None:
        return {"throttled_samples": throttled}
    return {
        "count": found.count,
        "min": found.minimum,
        "median": found.median,
        "max": found.maximum,
        "mean": found.mean,
        "throttled_samples": throttled,
        "plot_min": min(value for _, value in plotted),
        "plot_max": max(value for _, value in plotted),
    }
