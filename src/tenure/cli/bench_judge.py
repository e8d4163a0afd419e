"""``rc bench judge``: may the results of two clock windows be divided? PAIR or DISCARD, with every reason."""

from __future__ import annotations

import sys

from tenure.cli.files import NotJudged, read_text
from tenure.cli.options import Command, Given, Option
from tenure.cli.text import clean, number, say, table
from tenure.domain import clocks
from tenure.domain.clock_files import window_from_csv, window_from_dict
from tenure.domain.pairing import WAIVABLE, judge_pair
from tenure.errors import TenureError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tenure.domain.clock_files import WindowFile
    from tenure.domain.pairing import PairVerdict


def _positive(text: str) -> float:
    found = number(text)
    if found <= 0:
        raise ValueError("a number over 0 is needed")
    return found


COMMAND = Command(
    "bench judge",
    "A B",
    "Judge two clock windows: only a PAIR may be divided.",
    (
        Option("--waive", "REASON", "take this reason as a caveat on record", many=True, choices=sorted(WAIVABLE)),
        Option("--period", "SECONDS", "the sampling period of CSV files (their median gap)", read=_positive),
        Option("--a", "NUMBER", "the result of A: shown, and divided where the windows are a PAIR", read=number),
        Option("--b", "NUMBER", "the result of B", read=number),
    ),
    least=2,
    most=2,
    more="""A and B are JSON (name, driver, boot_id, persistence, max_sm_mhz, sm_mhz, throttle_bits, throttle_bits_at,
busy_cycle, coverage, contended) or CSV with a header and a row a sample: at (seconds), sm_mhz, throttle_bits, busy or
utilisation, name, driver, boot_id, persistence, max_sm_mhz; the names that nvidia-smi --query-gpu prints do as well.
Exit status: 0 PAIR; 1 DISCARD; 2 the files cannot be judged.""",
)


def main(given: Given) -> int:
    """Exit status 0 PAIR, 1 DISCARD, 2 cannot be judged."""
    arms = [_read(path, given.value("period")) for path in given.words]
    found = judge_pair(arms[0].window, arms[1].window, given.many("waive"))
    results = [given.value("a"), given.value("b")]
    ratio = None if None in results else found.ratio(results[0], results[1])
    if given.json:
        from json import dumps

        said = {
            "verdict": found.verdict,
            "reasons": list(found.reasons),
            "caveats": list(found.caveats),
            "arms": [_arm(path, arm) for path, arm in zip(given.words, arms, strict=True)],
            "results": results,
            "ratio": ratio,
        }
        sys.stdout.write(dumps(said) + "\n")
    else:
        _show(given.words, arms, found, results, ratio)
    return 0 if found.paired else 1


def _read(path: str, period: float | None) -> WindowFile:
    try:
        text = read_text(path)
        if text.lstrip().startswith(("{", "[")):
            from json import loads

            return window_from_dict(loads(text))
        return window_from_csv(text, period=period)
    except TenureError as error:
        raise NotJudged(error.code, error.message, do=error.do, facts=error.facts) from error
    except OSError as error:
        raise NotJudged("io_error", f"{path}: {error.strerror}", do="check that the file is there") from error
    except (ValueError, RecursionError) as error:
        do = "correct the file; rc bench judge --help says what it holds"
        raise NotJudged("invalid_request", f"{path}: {error}", do=do, facts={"path": path}) from error


def _arm(path: str, arm: WindowFile) -> dict[str, Any]:
    window = arm.window
    found = clocks.busy_summary(window)
    bits = 0
    for sample in window.samples:
        bits |= sample.throttle_bits or 0
    of_maximum = 100 * found.median / window.max_sm_mhz if found is not None and window.max_sm_mhz else None
    return {
        "file": path,
        "samples": len(window.samples),
        "busy": sum(1 for sample in window.samples if sample.busy),
        "sm_mhz": found
        and {
            "count": found.count,
            "min": found.minimum,
            "median": found.median,
            "max": found.maximum,
            "mean": found.mean,
            "spread_pct": found.spread_pct,
        },
        "max_sm_mhz": window.max_sm_mhz,
        "median_of_maximum_pct": of_maximum,
        "throttle": list(clocks.throttle_names(bits)),
        "coverage": window.coverage,
        "persistence": window.persistence or None,
        "boot_id": window.boot_id or None,
        "name": window.name or None,
        "driver": window.driver or None,
        "reasons": list(clocks.gate(window)),
        "assumed": list(arm.assumed),
    }


def _show(
    paths: list[str], arms: list[WindowFile], found: PairVerdict, results: list[float | None], ratio: float | None
) -> None:
    told = [_arm(path, arm) for path, arm in zip(paths, arms, strict=True)]
    rows = []
    for label, one in zip("AB", told, strict=True):
        sm = one["sm_mhz"]
        figures = [f"{sm[key]:.6g}" for key in ("min", "median", "max", "mean")] if sm else ["-"] * 4
        spread = f"{sm['spread_pct']:.2f} %" if sm else "-"
        share = "-" if one["median_of_maximum_pct"] is None else f"{one['median_of_maximum_pct']:.1f} %"
        rows.append([label, one["samples"], one["busy"], *figures, spread, share, " ".join(one["throttle"]) or "none"])
    say(
        table(["ARM", "SAMPLES", "BUSY", "MIN", "MEDIAN", "MAX", "MEAN", "SPREAD", "OF MAXIMUM", "THROTTLE BITS"], rows)
    )
    for label, one in zip("AB", told, strict=True):
        if one["reasons"]:
            say(clean(f"{label} by itself: {', '.join(one['reasons'])}"))
        if one["assumed"]:
            say(clean(f"{label}: assumed, because the file does not say: {'; '.join(one['assumed'])}"))
    say(found.verdict + (": " + clean(", ".join(found.reasons)) if found.reasons else ""))
    if found.caveats:
        say(f"caveats, waived: {clean(', '.join(found.caveats))}")
    for label, value in zip("AB", results, strict=True):
        if value is not None:
            say(f"{label}: {value:.12g}")
    if ratio is not None:
        say(f"A / B: {ratio:.6g}")
    elif None not in results:
        say("no ratio: " + ("B is 0" if found.paired else "these windows are no pair"))
