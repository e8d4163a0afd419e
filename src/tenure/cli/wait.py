"""``rc wait``: wait for a job and exit as it did."""

from __future__ import annotations

import time

from tenure.cli import session, streaming
from tenure.cli.options import Command, Given, Option
from tenure.cli.text import duration, let_go
from tenure.errors import TenureError
from tenure.sdk.following import NO_OUTPUT, Following

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COMMAND = Command(
    "wait",
    "JOB",
    "Wait until a job is over; exit with its exit status.",
    (
        Option("--timeout", "TIME", "give up after so long (exit status 124)", read=duration),
        streaming.STRICT,
        Option("-q --quiet", "", "leave out the two lines at the end"),
    ),
    least=1,
    most=1,
)


def main(given: Given) -> int:
    """Exit status: the job's own; 124 where it was not over in time, 130 after Ctrl-C."""
    try:
        job = until_over(given.words[0], given.value("timeout"))
    except KeyboardInterrupt:
        let_go(f"no longer waiting for job {given.words[0]}, which goes on (or end it with: rc kill {given.words[0]})")
        return 130
    return streaming.finish(job, quiet=given.flag("quiet"), json=given.json, strict=given.flag("strict"))


def until_over(name: str, timeout_s: float | None = None) -> dict[str, Any]:
    """The record of a job once it is over; raises ``timed_out``."""
    following = Following(
        session.transport(), job=name, offset=NO_OUTPUT, revive=session.revive, trouble=streaming.trouble
    )
    if timeout_s is not None:
        _alarm(max(timeout_s, 0.001))
    began = time.monotonic()
    try:
        for _ in following:
            pass
    except _TooLong:
        job = following.record or {}
        raise TenureError(
            "timed_out",
            f"job {job.get('id', name)} was not over after {time.monotonic() - began:.1f} s; it is {job.get('words')}",
            do=f"wait longer, or look at it with: rc describe {job.get('id', name)}",
            facts={"job": job.get("id", name), "state": job.get("state")},
        ) from None
    finally:
        if timeout_s is not None:
            _alarm(0)
    assert following.record is not None
    return following.record


class _TooLong(Exception):
    """The time allowed is over."""


def _alarm(seconds: float) -> None:
    """A timer that interrupts whatever is waited for; 0 turns it off."""
    import signal

    def over(number: int, frame: object) -> None:
        raise _TooLong

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
