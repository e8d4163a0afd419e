"""The plot of a run as SVG, with nothing but the standard library: every sample a dot, every median a bar.

One panel a measure, a logarithmic axis each, since products differ by hundreds of times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from bench.report import in_classes
from bench.rows import Measure, Row
from bench.stats import figure

WIDE, LEFT, RIGHT, LINE, HEAD = 1080, 400, 90, 17, 46
COLORS = {"tenure": "#0b6e4f", "slurm": "#b5541c", "task-spooler": "#5a4fa2", "limit": "#666666"}
FONT = "font-family='DejaVu Sans, Helvetica, Arial, sans-serif'"


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """The powers of ten, as exponents, that hold all positive values; at least one decade."""
    positive = [value for value in values if value > 0]
    if not positive:
        return 0.0, 1.0
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return float(low), float(max(high, low + 1))


def place(value: float, low: float, high: float) -> float:
    """Where a value lies across the panel, in pixels; what is not positive lies at its left end."""
    share = (math.log10(value) - low) / (high - low) if value > 0 else 0.0
    return LEFT + min(max(share, 0.0), 1.0) * (WIDE - LEFT - RIGHT)


def svg(measures: Sequence[Measure], title: str) -> str:
    """The whole picture."""
    parts, top = [_text(16, 26, title, 15)], 44.0
    for measure in measures:
        rows = [row for row in in_classes(measure.rows) if row.summary() is not None]
        if rows:
            panel, top = _panel(measure, rows, top)
            parts += panel
    size = f"width='{WIDE}' height='{top:.0f}' viewBox='0 0 {WIDE} {top:.0f}'"
    back = f"<rect width='{WIDE}' height='{top:.0f}' fill='white'/>"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size} {FONT}>\n{back}\n" + "\n".join(parts) + "\n</svg>\n"


def _panel(measure: Measure, rows: Sequence[Row], top: float) -> tuple[list[str], float]:
    low, high = bounds([value for row in rows for samples in row.samples.values() for value in samples])
    parts = [_text(16, top + 18, f"{measure.title} [{rows[0].unit}, {rows[0].better} is better]", 12, weight="bold")]
    first, last = top + 30, top + 30 + LINE * len(rows)
    for power in range(int(low), int(high) + 1):
        x = place(10.0**power, low, high)
        parts.append(f"<line x1='{x:.1f}' y1='{first:.1f}' x2='{x:.1f}' y2='{last:.1f}' stroke='#ddd'/>")
        parts.append(_text(x, last + 11, figure(10.0**power) if power > -3 else f"1e{power}", 9, anchor="middle"))
    for number, row in enumerate(rows):
        parts += _row(row, first + LINE * number + LINE / 2, low, high)
    return parts, last + HEAD - 16


def _row(row: Row, y: float, low: float, high: float) -> list[str]:
    found = row.summary()
    assert found is not None, "rows without samples are left out"
    color = COLORS.get(row.product, "black")
    kept = f" ({row.durability})" if row.durability != "none" else ""
    parts = [_text(LEFT - 10, y + 4, f"{row.name}{kept}", 10, anchor="end", color=color)]
    for samples in row.samples.values():
        for value in filter(None, samples):
            x = place(value, low, high)
            parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.2' fill='{color}' fill-opacity='0.3'/>")
    parts.append(_text(WIDE - RIGHT + 10, y + 4, figure(found.p50), 10, color=color))
    if found.p50 <= 0:
        return parts  # such an axis has no place for nothing
    x = place(found.p50, low, high)
    bar = f"x1='{x:.1f}' y1='{y - 6:.1f}' x2='{x:.1f}' y2='{y + 6:.1f}'"
    parts.append(f"<line {bar} stroke='{color}' stroke-width='2.5'/>")
    return parts


def _text(
    x: float, y: float, words: str, size: int, *, anchor: str = "start", color: str = "#222", weight: str = "normal"
) -> str:
    style = f"font-size='{size}' text-anchor='{anchor}' fill='{color}' font-weight='{weight}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(words)}</text>"
