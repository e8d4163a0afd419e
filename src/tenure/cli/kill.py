"""``rc kill``: end jobs. What waits is cancelled; what runs gets TERM, its grace, then KILL for its whole tree."""

from __future__ import annotations

import sys

from tenure.cli import session
from tenure.cli.options import Command, Given, Option
from tenure.cli.text import clean, say
from tenure.cli.wait import until_over
from tenure.errors import TenureError
from tenure.sdk.transport import quote

COMMAND = Command(
    "kill",
    "JOB...",
    "End jobs: at once where they wait; TERM, the job's grace, then KILL for the whole tree where they run.",
    (
        Option("--reason", "TEXT", "kept with the job"),
        Option("--wait", "", "return when they are over, not when that is accepted"),
    ),
    least=1,
    most=None,
)


def main(given: Given) -> int:
    """Exit status 0 where every job was told to end; else that of the first one that was not."""
    connection = session.transport()
    failed: TenureError | None = None
    told = []
    for name in given.words:
        try:
            job = connection.call("POST", f"/v1/jobs/{quote(name)}/stop", {"reason": given.text("reason")})
        except TenureError as error:
            if failed is not None:
                sys.stderr.write(f"rc: {clean(error.message)}\n")
            failed = failed or error
            continue
        if given.flag("wait") and job["state"] != "ended":
            job = until_over(job["id"])
        told.append(job)
        if not given.json:
            say(f"job {job['id']}: {clean(job['words'])}")
    if given.json and (told or failed is None):
        from json import dumps

        sys.stdout.write(dumps({"jobs": told}) + "\n")
    if failed is not None:
        raise failed
    return 0
