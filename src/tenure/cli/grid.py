"""``rc grid``: what units and workers are doing, and what to do about a component that runs over its plan."""

from __future__ import annotations

from tenure.cli.options import Group

COMMAND = Group(
    "grid",
    "Units and workers, and what to do about what runs over its plan.",
    {
        "decide": "what follows from a deviation, a signature and measured unit costs",
        "status": "what units and workers are doing, from one source",
    },
)
