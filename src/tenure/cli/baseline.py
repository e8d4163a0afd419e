"""``rc baseline``: what got worse between two test runs."""

from __future__ import annotations

from tenure.cli.options import Group

COMMAND = Group(
    "baseline",
    "What got worse between two test runs, by name and mode.",
    {"compare": "two result files: regressions, improvements, what was not seen"},
)
