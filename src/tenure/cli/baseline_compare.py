"""``rc baseline compare``: what got worse between two test runs, by (name, mode) and never by counts."""

from __future__ import annotations

import sys

from tenure.cli.files import bad, one_word, read_object, read_text
from tenure.cli.options import Command, Given, Option, usage_error
from tenure.cli.text import clean, say, table, terminal_columns
from tenure.domain import baseline
from tenure.domain.results import read_results

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from tenure.domain.results import Results

COMMAND = Command(
    "baseline compare",
    "OLD NEW",
    "Compare two test runs: regressions and improvements by name and mode.",
    (
        Option(
            "--absent",
            "NAME=TOOL",
            "this test lacks a tool and says nothing about the code (repeatable)",
            many=True,
        ),
        Option("--entries", "FILE", "what is known of tests: JSON or TOML, a table a name"),
    ),
    least=2,
    most=2,
    more="""OLD and NEW are JUnit XML, what ctest prints, or what pytest prints with -rA or -v. Modes, worst first:
crash (abort, timeout), failed, skipped (not run), passed. A new name that does not pass or a move to a worse mode is
a regression; skipped is not passed. --entries holds for a name: first_assertion, cause, owner, owner_closed, unrun (the
cases behind a crash), flake_rate.
Exit status: 0 no regression; 1 regression; 2 no regression, but tests that lack a tool.""",
)
KINDS = {
    "arrivals": "REGRESSION: new",
    "mode_worse": "REGRESSION: worse",
    "absent_instrument": "lacks a tool",
    "unexplained_departures": "not seen any more",
    "stopped_being_measured": "no longer measured",
    "mode_improved": "improved",
    "departures_seen_passed": "improved: passes now",
}


def main(given: Given) -> int:
    """Exit status 0 no regression, 1 regression, 2 only absent instruments."""
    old, new = (_read(path) for path in given.words)
    absent = one_word(given.many("absent"), "--absent")
    entries = _entries(given.text("entries"))
    found = baseline.compare(old.modes, new.modes, absent)
    strange = [name for name in absent if name not in old.by_name and name not in new.by_name]
    if strange:
        raise usage_error(COMMAND, f"--absent names {strange[0]!r}, which is in neither file")
    if not set(old.by_name) & set(new.by_name):
        what = f"no name of {given.words[0]} ({old.kind}) is among those of it ({new.kind})"
        raise bad(given.words[1], what, "give two runs of one suite, written by the same tool in the same way")
    if given.json:
        from json import dumps

        said: dict[str, Any] = {
            **{kind: [_row(n, old, new, absent, entries) for n in getattr(found, kind)] for kind in KINDS},
            "regression": found.regression,
            "improved": found.improved,
            "unnamed_skips": {"old": old.unnamed_skips, "new": new.unnamed_skips},
            "exit": found.exit,
        }
        sys.stdout.write(dumps(said) + "\n")
    else:
        _show(found, old, new, absent, entries)
    return found.exit


def _read(path: str) -> Results:
    try:
        return read_results(read_text(path, errors="backslashreplace"))
    except ValueError as error:
        raise bad(path, str(error), "give JUnit XML, or the output of ctest or of pytest -rA") from error


def _entries(path: str) -> dict[str, baseline.Entry]:
    if not path:
        return {}
    try:
        return {name: baseline.read_entry(told) for name, told in read_object(path).items()}
    except ValueError as error:
        raise bad(path, str(error), "rc baseline compare --help lists what an entry holds") from error


def _row(
    name: str, old: Results, new: Results, absent: Mapping[str, str], entries: Mapping[str, baseline.Entry]
) -> dict[str, Any]:
    notes = [new.by_name[name].detail] if name in new.by_name else []
    notes += entries[name].notes() if name in entries else ()
    notes += [f"{absent[name]} is not there"] if name in absent else []
    return {
        "name": name,
        "before": _mode(old, name),
        "after": _mode(new, name),
        "notes": list(dict.fromkeys(filter(None, notes))),
    }


def _mode(run: Results, name: str) -> str | None:
    return run.by_name[name].mode.name.lower() if name in run.by_name else None


def _show(
    found: baseline.Comparison,
    old: Results,
    new: Results,
    absent: Mapping[str, str],
    entries: Mapping[str, baseline.Entry],
) -> None:
    rows = []
    for kind, label in KINDS.items():
        for row in (_row(name, old, new, absent, entries) for name in getattr(found, kind)):
            seen = [row["before"] or "not seen", row["after"] or "not seen"]
            rows.append([label, row["name"], *seen, "; ".join(row["notes"])])
    if rows:
        say(table(["WHAT", "NAME", "BEFORE", "AFTER", "NOTES"], rows, last=terminal_columns()))
    for label, run in (("OLD", old), ("NEW", new)):
        if run.unnamed_skips:
            how = "pytest --no-fold-skipped, -v or --junit-xml names them"
            say(
                f"{label} counts {run.unnamed_skips} skipped tests without their names, so they are not compared; {how}"
            )
    same = sum(1 for name, mode in old.modes.items() if new.modes.get(name) is mode)
    verdict = "regression" if found.regression else "no regression"
    lacking = f"; {len(found.absent_instrument)} lack a tool and say nothing" if found.absent_instrument else ""
    say(clean(f"{verdict}: {same} names as before, {len(rows)} changed{lacking}"))
