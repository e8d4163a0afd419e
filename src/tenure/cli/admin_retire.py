"""``rc admin retire``: take devices that no host offers any more off the books."""

from __future__ import annotations

from tenure.cli import operate
from tenure.cli.options import Given

COMMAND = operate.command(
    "retire",
    "Take devices that no host offers any more off the books.",
    more="Where a job still holds one, this is the declaration that the job is gone: it ends as lost, on your word.\n"
    "A host that comes back is told to end what is left of it before its devices are offered again.",
)


def main(given: Given) -> int:
    """Exit status 0 where it was done on every device."""
    return operate.run("retire", given)
