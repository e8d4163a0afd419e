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
    following = Following(
        session.transport(),
        job=given.words[0],
        offset=given.value("offset", 0),
        revive=session.revive,
        trouble=streaming.trouble,
    )
    screen = streaming.Screen(stdout=2 if given.json else 1)
    try:
        record = streaming.show(following, screen)
        return streaming.finish(record, quiet=given.flag("quiet"), json=given.json, strict=given.flag("strict"))
    except KeyboardInterrupt:
        job = following.job or given.words[0]
        let_go(f"detached from job {job}; attach again with: rc attach {job} --offset {following.offset}")
        return 130
