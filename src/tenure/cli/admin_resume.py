"""``rc admin resume``: put drained devices back into service."""

from __future__ import annotations

from tenure.cli import operate
from tenure.cli.options import Given

COMMAND = operate.command("resume", "Put drained devices back into service.")


def main(given: Given) -> int:
    """Exit status 0 where it was done on every device."""
    return operate.run("resume", given)
