"""``python -m bench``: Tenure, its peers and the limits of the machine, side by side in one run."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from bench import machine, plot, report
from bench.rows import Measure, Row
from bench.runner import Runner
from bench.world import World

RESULTS = Path(__file__).with_name("results")
MEASURES = {
    "limit": "The disk under all of them: one fdatasync",
    "start": "Submission to process start",
    "command": "Whole commands, warm",
    "cold": "Whole commands, with nothing running",
    "rate": "Jobs per second",
    "ledger": "Lifecycles through deciding and synced commits, ledger alone",
    "cancel": "Cancel to free, beyond the grace, of a job that ignores SIGTERM",
    "memory": "Memory of the standing processes, no jobs",
    "watch": "Cost of watching jobs that do nothing",
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    made.add_argument("what", nargs="?", choices=["all", "hops"], default="all", help="hops: where a start's time goes")
    made.add_argument("--quick", action="store_true", help="about two minutes: fewer samples, rounds and jobs")
    made.add_argument("--only", default="", help=f"some of {','.join(MEASURES)}, comma between")
    made.add_argument("--without", default="", help="leave out slurm, task-spooler, comma between")
    made.add_argument("--rounds", type=int, default=0, help="rounds of every measure (its own number)")
    made.add_argument("--cores", default="", help="pin everything alike to these cores, such as 0,1 (no pinning)")
    made.add_argument("--minutes", type=float, default=0, help="begin no further round after so long (15; quick 2)")
    made.add_argument("--folder", type=Path, help="put the state of all products on this disk (the temporary folder's)")
    made.add_argument("--out", type=Path, help=f"where results go ({RESULTS.name}/DATE beside the benches)")
    made.add_argument("--no-install", action="store_true", help="do not install peers that are missing")
    return made


def chosen(text: str, known: set[str], what: str) -> set[str]:
    """The words of a list with commas; ends the program where one of them is not known."""
    words = {word.strip() for word in text.split(",") if word.strip()}
    if words - known:
        raise SystemExit(f"no such {what}: {', '.join(sorted(words - known))}; there are {', '.join(sorted(known))}")
    return words


def plan(world: World, only: set[str], rounds: int) -> Iterator[tuple[Measure, float]]:
    """The measures in the order in which they are taken, each with the seconds that those after it need for one round.

    A measure's rows are made when its turn comes: some bring up something of their own.
    """
    from bench import cancelling, lifecycles, rates, starting, weighing, whole

    quick = world.quick
    # key, rows, rounds (quick), warm-up, seconds of a round (quick)
    steps: list[tuple[str, Callable[[World], list[Row]], int, bool, float]] = [
        ("limit", whole.limit_rows, 2 if quick else 5, True, 1),
        ("memory", weighing.memory_rows, 1, False, 2),
        ("start", starting.rows, 2 if quick else 7, True, 8 if quick else 25),
        ("command", whole.rows, 2 if quick else 5, True, 4 if quick else 10),
        ("rate", rates.rows, 1 if quick else 3, False, 25 if quick else 90),
        ("cancel", cancelling.rows, 1 if quick else 3, False, 15),
        ("ledger", lifecycles.rows, 1 if quick else 3, False, 6 if quick else 12),
        ("cold", whole.cold_rows, 1 if quick else 3, True, 10),
        ("watch", weighing.watch_rows, 1, False, 45 if quick else 215),
    ]
    steps = [step for step in steps if not only or step[0] in only]
    for at, (key, rows, count, warm_up, seconds) in enumerate(steps):
        kept = sum(step[4] for step in steps[at + 1 :])
        yield Measure(key, MEASURES[key], rows(world), rounds or count, warm_up, seconds), kept


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 where the run came to its end, whatever it measured."""
    options = parser().parse_args(argv)
    if options.cores:
        os.sched_setaffinity(0, {int(core) for core in options.cores.split(",")})
    signal.signal(signal.SIGTERM, _asked_to_end)
    if options.what == "hops":
        from bench import hops

        return hops.main(quick=options.quick, where=options.folder)
    only = chosen(options.only, set(MEASURES), "measure")
    without = chosen(options.without, {"slurm", "task-spooler"}, "peer")
    out = options.out or RESULTS / time.strftime("%Y-%m-%dT%H%M%SZ", time.gmtime())
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with World(
        quick=options.quick,
        minutes=options.minutes or (2 if options.quick else 15),
        install=not options.no_install,
        where=options.folder,
        without=without,
    ) as world:
        facts = machine.facts(world.folder) | world.versions()
        runner = Runner(world, out / "raw.jsonl")
        try:
            runner.write(facts=facts)
            measures: list[Measure] = []
            try:
                for measure, kept in plan(world, only, options.rounds):
                    measures.append(measure)
                    runner.run(measure, kept)
            finally:
                for note in world.notes:
                    runner.write(note=note)
                facts |= _of_the_run(runner, facts, time.monotonic() - began)
                _show(measures, facts, runner.fdatasync_ms, out)
        finally:
            runner.close()
    return 0


def _of_the_run(runner: Runner, facts: dict[str, Any], seconds: float) -> dict[str, Any]:
    loads = runner.loads
    found: dict[str, Any] = {
        "fdatasync_ms": round(runner.fdatasync_ms, 3),
        "load_least": min(loads, default=0.0),
        "load_most": max(loads, default=0.0),
        "seconds": round(seconds),
        "cut": runner.cut or "nothing",
    }
    if report.busy(loads, int(facts["cores"] or 1)):
        found["beware"] = report.BUSY
    return found


def _show(measures: list[Measure], facts: dict[str, Any], fdatasync_ms: float, out: Path) -> None:
    """Writes table, JSON and plot, and prints the table."""
    text = "\n".join(report.table(measures, facts, fdatasync_ms)) + "\n"
    (out / "table.txt").write_text(text, "utf-8")
    (out / "results.json").write_text(json.dumps(report.as_json(measures, facts, fdatasync_ms), indent=1) + "\n")
    (out / "plot.svg").write_text(plot.svg(measures, f"Tenure and its peers, {facts['at']}"), "utf-8")
    print(f"\n{text}\nin {out}: table.txt, results.json, plot.svg, raw.jsonl", flush=True)


def _asked_to_end(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _program() -> int:
    try:
        return main()
    except KeyboardInterrupt:
        print("interrupted; everything was taken down, and what was taken until then is kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(_program())
