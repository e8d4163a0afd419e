"""``rc admin clean``: remove scratch folders that no job owns, and kept ones where asked."""

from __future__ import annotations

from tenure.cli import scratches, session
from tenure.cli.options import Command, Given, Option, usage_error
from tenure.cli.text import duration
from tenure.sdk.transport import quote

COMMAND = Command(
    "admin clean",
    "[OPTIONS] [JOB...]",
    "Remove the scratch folders that no job owns, on every host; with --kept those that were kept too.",
    (
        Option("--kept", "", "also kept ones: those of the jobs named, or all"),
        Option("--older-than", "TIME", "of the kept ones only those whose job ended so long ago", read=duration),
        Option("--dry-run", "", "say what would be removed, and remove nothing"),
    ),
    most=None,
    more="What a job that waits, runs or ends still owns is never touched.",
)


def main(given: Given) -> int:
    """Exit status 0 where every host did it; 71 where one did not answer, or something was left."""
    if (given.words or given.value("older-than") is not None) and not given.flag("kept"):
        raise usage_error(COMMAND, "jobs and --older-than are about kept scratches: add --kept")
    connection = session.transport()
    jobs = [connection.call("GET", f"/v1/jobs/{quote(word)}")["id"] for word in given.words]
    body = {
        "kept": given.flag("kept"),
        "jobs": jobs,
        "older_than_s": given.value("older-than", 0.0),
        "dry_run": given.flag("dry-run"),
    }
    told = connection.call("POST", "/v1/scratch/clean", body, timeout_s=320.0)
    return scratches.show_cleaned(given, told)
