"""``rc admin clear``: end the quarantine of devices by hand, on your word that its cause is gone."""

from __future__ import annotations

from tenure.cli import operate
from tenure.cli.options import Given

COMMAND = operate.command(
    "clear",
    "End the quarantine of devices by hand, on your word that its cause is gone.",
    more="Never under a live lease: what holds it may be alive. A look at the device decides then whether it is free.",
)


def main(given: Given) -> int:
    """Exit status 0 where it was done on every device."""
    return operate.run("clear", given)
