"""``rc attach``: follow a job as if it had been started here; Ctrl-C lets go of it again."""

from __future__ import annotations

from tenure.cli import session, streaming
from tenure.cli.options import Command, Given, Option
from tenure.cli.text import let_go, whole
from tenure.sdk.following import Following

COMMAND = Command(
    "attach",
    "JOB",
    "Show a job's output from its beginning, follow it to its end and exit as it did. Ctrl-C lets go of it.",
    (
        Option("--offset", "N", "begin at this byte of its output (0)", read=whole),
        streaming.STRICT,
        Option("-q --quiet", "", "leave out the two lines at the end"),
    ),
    least=1,
    most=1,
)


def main(given: Given) -> int:
    """Exit status: the job's own; 130 after Ctrl-C."""
    offset = given.value("offset", 0)
    screen = streaming.Screen(stdout=2 if given.json else 1, whole=not offset)
    following = Following(
        session.transport(), job=given.words[0], offset=offset, revive=session.revive, trouble=screen.trouble
    )
    try:
        record = streaming.show(following, screen)
        quiet, strict = given.flag("quiet"), given.flag("strict")
        return streaming.finish(record, quiet=quiet, json=given.json, strict=strict, screen=screen)
    except KeyboardInterrupt:
        job = following.job or given.words[0]
        let_go(f"detached from job {job}; attach again with: rc attach {job} --offset {following.offset}")
        return 130
