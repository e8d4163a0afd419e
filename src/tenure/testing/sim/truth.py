"""What is really so in the simulation, which no part of the system may look at."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.agent import records as r


class Violation(AssertionError):
    """A guarantee did not hold."""


def check(holds: bool, invariant: str, story: str) -> None:
    """Raises with the invariant's name where it does not hold."""
    if not holds:
        raise Violation(f"{invariant}: {story}")


@dataclass
class Process:
    """A job's process tree on a host.

    ``tokens`` are those it runs under, by device UUID. ``namespace`` is the PID namespace it lives in: an agent of
    another one does not see it. ``supervised`` turns false when its supervisor died without it; ``stopping`` once it
    was told to end.
    """

    job: str
    attempt: int
    tokens: dict[str, int]
    namespace: int = 1
    supervised: bool = True
    stopping: bool = False

    @property
    def key(self) -> r.Key:
        """(job, attempt)."""
        return (self.job, self.attempt)

    @property
    def run(self) -> tuple[r.Key, int]:
        """This very run: after a restored ledger an attempt's number may come again, under a higher token."""
        return self.key, max(self.tokens.values())


def run_of(attempt: r.Attempt) -> tuple[r.Key, int]:
    """The run that an attempt on record stands for."""
    return attempt.key, max(grant.token for grant in attempt.grants)


def bare(record: object) -> str:
    """A record as text without the number of the event that last changed it (its ``__repr__`` leaves that out)."""
    return repr(record)
