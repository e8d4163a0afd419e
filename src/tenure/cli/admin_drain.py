"""``rc admin drain``: take devices out of service: what runs on them runs on, and nothing new begins."""

from __future__ import annotations

from tenure.cli import operate
from tenure.cli.options import Given

COMMAND = operate.command(
    "drain",
    "Take devices out of service: what runs on them runs on, and nothing new begins.",
    more="A drained device comes back with: rc admin resume",
)


def main(given: Given) -> int:
    """Exit status 0 where it was done on every device."""
    return operate.run("drain", given)
