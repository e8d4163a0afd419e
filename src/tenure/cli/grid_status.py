"""``rc grid status``: what units and workers are doing, folded from unit events by the one tracker."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tenure.cli.files import bad, read_text
from tenure.cli.options import Command, Given, Option, usage_error
from tenure.cli.text import clean, say, span, table
from tenure.domain.tracker import Tracker, parse_event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tenure.domain.tracker import Snapshot

COMMAND = Command(
    "grid status",
    "--replay EVENTS",
    "Show what units and workers are doing after the events of a file.",
    (
        Option("--replay", "EVENTS", "unit events, one a line, in the order they came (- is standard input)"),
        Option("--worker", "NAME", "a registered worker (again for more); with any, others are reported", many=True),
        Option("--unit", "NAME", "a unit that is to run, shown as pending until it begins (again for more)", many=True),
    ),
    more="""An event reads: start u1#1 w0 | prepared u1#1 | gpu u1#1 | kernel_end u1#1 | end u1#1 ok | end u1#1 failed
| lost u1#1 (u1#1 is unit u1, attempt 1). Empty lines and lines that begin with # are passed over.
Exit status: 0; 1 where the events contradict each other or come from workers that nobody registered.""",
)


def main(given: Given) -> int:
    """Exit status 0, or 1 where something is reported."""
    path = given.text("replay")
    if not path:
        raise usage_error(COMMAND, "--replay EVENTS says where the events are")
    workers = given.many("worker")
    fold = Tracker(frozenset(workers) if workers else None)
    fold.expect(given.many("unit"))
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                fold.apply(parse_event(line))
            except ValueError as error:
                raise bad(path, f"line {number}: {error}", "rc grid status --help shows how events read") from error
    view = fold.snapshot()
    # Events carry no time; what is known is when their file was last written.
    age = None if path == "-" else max(time.time() - Path(path).stat().st_mtime, 0.0)
    if given.json:
        from json import dumps

        said = {
            "version": view.version,
            "file_age_s": age,
            "workers": {worker: list(held) for worker, held in view.workers.items()},
            "units": view.units,
            "counts": view.counts,
            "ignored": view.ignored,
            "reported": list(view.reported),
        }
        sys.stdout.write(dumps(said) + "\n")
    else:
        _show(view, age)
    return 1 if view.reported else 0


def _show(view: Snapshot, age: float | None) -> None:
    states = ("pending", "preparing", "prepared", "gpu", "finalising", "failed", "done")
    counts = ", ".join(f"{view.counts[state]} {state}" for state in states if state in view.counts)
    written = "" if age is None else f"; the file was last written {span(age)} ago"
    say(f"{len(view.units)} units: {counts or 'none'} (after {view.version} events, {view.ignored} ignored{written})")
    if view.workers:
        say("")
        say(table(["WORKER", "HOLDS"], [[worker, " ".join(held) or "idle"] for worker, held in view.workers.items()]))
    if view.units:
        say(table(["UNIT", "STATE"], list(view.units.items())))
    for told in view.reported:
        say(clean(f"reported: {told}"))
