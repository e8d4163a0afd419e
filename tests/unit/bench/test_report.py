"""What a run says: rows by class, ratios among like rows alone, absent peers by name, aims beside figures."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from bench.__main__ import chosen, parser
from bench.aims import aim
from bench.plot import bounds, place, svg
from bench.report import as_json, busy, in_classes, pairs, table
from bench.rows import Measure, Row, order
from bench.traced import SUPERVISOR

ROOT = Path(__file__).resolve().parents[3]


def row(product: str, client: str, kept: str, *values: float, group: str = "start", absent: str = "") -> Row:
    made = Row("start", product, client, kept, "ms", list, group=group, absent=absent)
    if values:
        made.samples = dict(enumerate(([value] for value in values), 1))
    return made


def measures() -> list[Measure]:
    rows = [
        row("limit", "fork+exec", "none", 1.0, 2.0),
        row("task-spooler", "tsp", "memory", 3.0, 6.0),
        row("tenure", "SDK, simulated <GPU>", "durable", 10.0, 20.0),
        row("slurm", "sbatch", "later", absent="not installed: slurmctld"),
    ]
    return [Measure("start", "Submission to process start", rows, 2)]


def test_durable_rows_stand_together_and_first() -> None:
    assert [each.product for each in in_classes(measures()[0].rows)] == ["tenure", "slurm", "task-spooler", "limit"]


def test_the_table_names_what_is_absent_and_why_and_gives_it_no_figure() -> None:
    text = "\n".join(table(measures(), {"kernel": "6"}, 0.25))
    assert "no figure for slurm: sbatch: not installed: slurmctld" in text
    line = next(line for line in text.splitlines() if "slurm: sbatch" in line)
    assert line.split()[:2] == ["-", "slurm:"]
    assert "0" in line.split()


def test_a_ratio_across_classes_says_so() -> None:
    ((reference, compared),) = pairs(measures()[0].rows)
    assert reference.product == "tenure"
    assert compared == [
        ["limit: fork+exec", "0.100", "0.100 .. 0.100", "(none against durable)"],
        ["task-spooler: tsp", "0.300", "0.300 .. 0.300", "(memory against durable)"],
    ]


def test_rows_that_do_different_things_are_not_compared() -> None:
    one = row("tenure", "1 device", "durable", 1.0, group="one")
    assert not list(pairs([one, row("slurm", "4 devices", "later", 2.0, group="four")]))


def test_the_aim_of_a_start_follows_the_disk_of_the_run() -> None:
    assert aim("start", "tenure", "SDK, kept connection; CPU device", 0.25).startswith("<= 8.75 ")
    assert aim("start", "slurm", "sbatch", 0.25) == ""
    assert aim("rate", "tenure", "SDK, 1 client; 1 simulated GPU", 0.25) == ""
    assert aim("watch", "tenure", "8 jobs x 25 processes; supervisors", 0.25) == ""


def test_every_round_begins_with_another_row() -> None:
    rows = measures()[0].rows
    assert [next(iter(order(rows, number))) for number in range(4)] == rows
    assert list(order(rows, 2)) == [*rows[2:], *rows[:2]]
    assert not list(order([], 3))


def test_results_for_programs_hold_every_row() -> None:
    found = as_json(measures(), {}, 0.25)
    assert [each["client"] for each in found["rows"]] == ["fork+exec", "tsp", "SDK, simulated <GPU>", "sbatch"]
    assert found["rows"][3]["summary"] is None
    assert found["rows"][2]["summary"]["p50"] == 15.0


def test_the_plot_is_well_formed_and_shows_every_sample() -> None:
    picture = ElementTree.fromstring(svg(measures(), "a & b"))
    dots = picture.findall("{http://www.w3.org/2000/svg}circle")
    assert len(dots) == 6
    words = [element.text or "" for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "tenure: SDK, simulated <GPU> (durable)" in words


def test_the_axis_holds_every_value() -> None:
    assert bounds([0.3, 40.0]) == (-1.0, 2.0)
    assert bounds([10.0]) == (1.0, 2.0)
    assert bounds([0.0]) == (0.0, 1.0)
    assert place(10.0, 0, 2) - place(1.0, 0, 2) == pytest.approx(place(100.0, 0, 2) - place(10.0, 0, 2))
    assert place(0.0, 0, 2) == place(1.0, 0, 2)


def test_a_load_beyond_the_benches_own_is_called_busy() -> None:
    assert busy([1.0, 3.1], 2)
    assert not busy([2.9], 2)
    assert not busy([], 2)


def test_lists_on_the_command_line_name_what_is_not_known() -> None:
    assert chosen("start, rate,", {"start", "rate", "cold"}, "measure") == {"start", "rate"}
    with pytest.raises(SystemExit, match="no such measure: speed"):
        chosen("speed", {"start"}, "measure")


def test_every_command_of_the_page_can_be_given() -> None:
    page = (ROOT / "docs/how-to/measure.md").read_text()
    lines = [line.partition("#")[0] for line in page.splitlines() if line.startswith("    ")]
    shown = [line.split() for line in lines if "python -m bench" in line]
    assert len(shown) >= 4
    for words in shown:
        parser().parse_args(words[words.index("bench") + 1 :])


def test_the_traced_supervisor_is_a_program() -> None:
    compile(SUPERVISOR.format(file="/tmp/hops", source="/tmp/supervisor.py"), "supervisor", "exec")
