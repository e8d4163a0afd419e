"""``rc logs``: a job's output, exactly."""

from __future__ import annotations

import sys

from tenure.cli import session, streaming
from tenure.cli.options import Command, Given, Option
from tenure.cli.text import moment, whole
from tenure.sdk.following import Following
from tenure.sdk.transport import query, quote, unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

COMMAND = Command(
    "logs",
    "JOB",
    "Print a job's output as it is now, each of its two streams on the one it was written to; then its host's notices.",
    (
        Option("-f --follow", "", "go on until the job is over"),
        Option("--since", "TIME", "begin with what was read at this time: 10m (ago), or a UTC time", read=moment),
        Option("--offset", "N", "begin at this byte of the whole output (0)", read=whole),
        Option("--stream", "WHICH", "both, stdout or stderr", choices=("both", "stdout", "stderr")),
    ),
    least=1,
    most=1,
    more="With -o json each piece is one line of JSON with its offset, stream, time and bytes in base64, each gap one\n"
    "with how many bytes are missing there and why, and at the end one with what was written, stored and shown.",
)


def main(given: Given) -> int:
    """Exit status 0 once everything that is there was printed."""
    offset, since = given.value("offset", 0), given.value("since")
    screen = streaming.Screen(only=given.text("stream", "both"), whole=not offset and since is None)
    if given.json:
        return _json(given, screen)
    job: dict[str, Any] = {}
    if given.flag("follow"):
        following = Following(
            session.transport(),
            job=given.words[0],
            offset=offset,
            since=since,
            revive=session.revive,
            trouble=screen.trouble,
        )
        job = streaming.show(following, screen)
    else:
        from binascii import a2b_base64

        try:
            for event in _events(given, "output"):
                match event["type"]:
                    case "job":
                        job = event["job"]
                    case "output":
                        screen.write(event["stream"], a2b_base64(event["data"]))
                    case "gap":
                        screen.gap(event)
                    case "end":
                        screen.held = event.get("held")
        finally:
            screen.flush()
        streaming.notices(job, [], screen)
    if job.get("state") == "ended":
        streaming.differences(job, screen)
    return 0


def _events(given: Given, way: str) -> Iterator[dict[str, Any]]:
    """The lines of the controller's answer; raises ``controller_unreachable`` where it breaks off."""
    connection = session.transport()
    asked = query({"offset": given.value("offset", 0), "since": given.value("since")})
    try:
        yield from connection.lines("GET", f"/v1/jobs/{quote(given.words[0])}/{way}{asked}")
    except ConnectionError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise unreachable(connection.path, str(error)) from error


def _json(given: Given, screen: streaming.Screen) -> int:
    from binascii import a2b_base64
    from json import dumps

    job: dict[str, Any] = {}
    for event in _events(given, "follow" if given.flag("follow") else "output"):
        job, stream = event.get("job") or job, event.get("stream")
        screen.held = event.get("held")
        if event["type"] == "beat" or (stream is not None and stream not in screen.shown):
            continue
        if event["type"] == "output":
            screen.shown[event["stream"]] += len(a2b_base64(event["data"]))
        elif event["type"] == "gap":
            screen.keep_gap(event)
        sys.stdout.write(dumps(event) + "\n")
        sys.stdout.flush()
    if job.get("state") == "ended":
        sys.stdout.write(dumps({"type": "account", **screen.account(job)}) + "\n")
    return 0
