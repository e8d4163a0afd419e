"""Cases of measurement validity: clock windows, pairs of arms, summaries, chances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.domain import clocks as clk
from tenure.domain.clock_files import samples_from_dict, window_from_dict
from tenure.domain.pairing import judge_pair
from tenure.testing.replay.cases import Case, name_of


def pair(case: Mapping[str, Any], number: int) -> Case:
    """Two arms and whether they may be divided. Reasons and caveats are sets: their order says nothing."""
    first, second = (window_from_dict(arm).window for arm in case["arms"])
    found = judge_pair(first, second, case.get("waive", ()))
    got = {
        "spread_pct": [None if arm is None else arm.spread_pct for arm in found.arms],
        "verdict": found.verdict,
        "reasons": sorted(found.reasons),
        "caveats": sorted(found.caveats),
    }
    right = {k: sorted(v) if k in ("reasons", "caveats") else v for k, v in case["right"].items()}
    return Case(name_of(case, number), right, got)


def summary(case: Mapping[str, Any], number: int) -> Case:
    """The figures of all samples, and the extremes of what a plot would draw."""
    samples = samples_from_dict(case["summary_of"])
    values = [sample.sm_mhz for sample in samples if sample.sm_mhz is not None]
    found = clk.summarise(values)
    got: dict[str, Any] = {"throttled_samples": sum(1 for s in samples if (s.throttle_bits or 0) & ~clk.BENIGN)}
    if found is not None:
        drawn = [value for _, value in clk.plot_points(values, case.get("plot_points", 100))]
        got |= {
            "count": found.count,
            "min": found.minimum,
            "median": found.median,
            "max": found.maximum,
            "mean": found.mean,
            "spread_pct": found.spread_pct,
            "plot_min": min(drawn),
            "plot_max": max(drawn),
        }
    return Case(name_of(case, number), case["right"], got)


def chances(case: Mapping[str, Any], number: int) -> Case:
    """The chance that windows of so many work items are clean, or how many a window may hold."""
    chance, items = case["p_event_per_item"], case.get("items", [])
    got: dict[str, Any] = {
        "p_clean": [clk.chance_clean(chance, n) for n in items]
        if isinstance(items, list)
        else clk.chance_clean(chance, items)
    }
    if "at_least" in case:
        got["items"] = clk.items_for(chance, case["at_least"])
    return Case(name_of(case, number), case["right"], got)
