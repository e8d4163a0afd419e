"""``rc admin quarantine``: take devices out of service until somebody clears them by hand."""

from __future__ import annotations

from tenure.cli import operate
from tenure.cli.options import Given

COMMAND = operate.command(
    "quarantine",
    "Take devices out of service until somebody clears them by hand.",
    more="It comes back with: rc admin clear",
)


def main(given: Given) -> int:
    """Exit status 0 where it was done on every device."""
    return operate.run("quarantine", given)
