"""``rc bench``: whether what was measured may be compared, and what a window can hold."""

from __future__ import annotations

from tenure.cli.options import Group

COMMAND = Group(
    "bench",
    "Whether what was measured may be compared, and what a window can hold.",
    {
        "judge": "two clock windows: may their results be divided?",
        "guard": "is a floor sound, held against the predicted operating point?",
        "plan": "how many work items a window can hold and still be clean",
    },
)
