"""The table and the JSON of a run. Rows of one durability class stand together; across classes nothing is ranked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from bench.aims import aim
from bench.rows import CLASSES, Measure, Row
from bench.stats import columns, figure, ratio

HEAD = ("", "what", "kept", "n", "p50", "p95", "rounds' medians", "aim", "note")
BUSY = "The machine was busy: these figures are not to be quoted."


def busy(loads: list[float], cores: int) -> bool:
    """Whether the load before and after the rounds says that others used the machine too.

    The benches themselves put about one runnable process a core on it.
    """
    return bool(loads) and max(loads) > 1.5 * cores


def table(measures: list[Measure], facts: dict[str, Any], fdatasync_ms: float) -> list[str]:
    """The whole report as lines of text."""
    lines = ["Tenure beside its peers and beside the limits of this machine", ""]
    lines += columns([[f"{name}:", _words(value)] for name, value in facts.items()])
    lines += ["", "Kept, that is, when what was answered is on the disk:"]
    lines += columns([[f"  {name}", words] for name, words in CLASSES.items()])
    for measure in measures:
        unit = measure.rows[0].unit if measure.rows else ""
        lines += ["", f"{measure.title} [{unit}]"]
        cells = [list(HEAD)] + [_cells(row, fdatasync_ms) for row in in_classes(measure.rows)]
        lines += columns(cells, right=(3, 4, 5))
        for reference, compared in pairs(measure.rows):
            lines += [f"  as a multiple of {reference.name}, by round:"]
            lines += columns([["   ", *words] for words in compared], right=(2,))
        absent = [row for row in measure.rows if row.absent]
        lines += [f"  no figure for {row.name}: {row.absent}" for row in absent]
    return lines


def in_classes(rows: list[Row]) -> list[Row]:
    """The rows by durability class; within one as they were given."""
    classes = list(CLASSES)
    return sorted(rows, key=lambda row: classes.index(row.durability))


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _cells(row: Row, fdatasync_ms: float) -> list[str]:
    found = row.summary()
    kept = row.durability if row.durability != "none" else "-"
    wanted = aim(row.measure, row.product, row.client, fdatasync_ms)
    if found is None:
        return ["  -", row.name, kept, "0", "-", "-", "-", wanted, row.note]
    spread = f"{figure(found.low)} .. {figure(found.high)} ({found.rounds})"
    return ["  ", row.name, kept, str(found.n), figure(found.p50), figure(found.p95), spread, wanted, row.note]


def pairs(rows: list[Row]) -> Iterator[tuple[Row, list[list[str]]]]:
    """For each group of rows the first of Tenure's, and every peer's and limit's ratio to it by round.

    A ratio across durability classes compares different work; its line says so.
    """
    for group in dict.fromkeys(row.group for row in rows if row.group):
        these = [row for row in rows if row.group == group and row.samples]
        ours = [row for row in these if row.product == "tenure"]
        compared = []
        for row in (row for row in these if row.product != "tenure" and ours):
            found = ratio(row.samples, ours[0].samples)
            if found is not None:
                differs = (
                    "" if row.durability == ours[0].durability else f"({row.durability} against {ours[0].durability})"
                )
                spread = f"{figure(found.low)} .. {figure(found.high)}"
                compared.append([row.name, figure(found.median), spread, differs])
        if compared:
            yield ours[0], compared


def as_json(measures: list[Measure], facts: dict[str, Any], fdatasync_ms: float) -> dict[str, Any]:
    """Everything of the table, for programs; samples are in raw.jsonl."""
    rows = [
        {
            "measure": row.measure,
            "product": row.product,
            "client": row.client,
            "durability": row.durability,
            "unit": row.unit,
            "better": row.better,
            "note": row.note,
            "absent": row.absent,
            "aim": aim(row.measure, row.product, row.client, fdatasync_ms),
            "summary": None if (found := row.summary()) is None else asdict(found),
        }
        for measure in measures
        for row in measure.rows
    ]
    return {"version": 1, "facts": facts, "fdatasync_ms": fdatasync_ms, "rows": rows}
