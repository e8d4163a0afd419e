"""``rc logs``: a job's output, exactly."""

from __future__ import annotations

import sys

from tenure.cli import session, streaming
from tenure.cli.options import Command, Given, Option
from tenure.cli.text import note, whole
from tenure.sdk.following import Following
from tenure.sdk.transport import query, quote, unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COMMAND = Command(
    "logs",
    "JOB",
    "Print a job's output as it is now, each of its two streams on the one it was written to; then its host's notices.",
    (
        Option("-f --follow", "", "go on until the job is over"),
        Option("--offset", "N", "begin at this byte of the whole output (0)", read=whole),
        Option("--stream", "WHICH", "both, stdout or stderr", choices=("both", "stdout", "stderr")),
    ),
    least=1,
    most=1,
    more="With -o json each piece is one line of JSON with its offset, stream, time and bytes in base64.",
)


def main(given: Given) -> int:
    """Exit status 0 once everything that is there was printed."""
    name, offset = given.words[0], given.value("offset", 0)
    connection = session.transport()
    if given.json:
        return _json(given, name, offset)
    screen = streaming.Screen(only=given.text("stream", "both"))
    if given.flag("follow"):
        following = Following(connection, job=name, offset=offset, revive=session.revive, trouble=streaming.trouble)
        streaming.show(following, screen)
        return 0
    from binascii import a2b_base64

    record: dict[str, Any] = {}
    try:
        for event in connection.lines("GET", f"/v1/jobs/{quote(name)}/output{query({'offset': offset})}"):
            if event["type"] == "job":
                record = event["job"]
            elif event["type"] == "output":
                screen.write(event["stream"], a2b_base64(event["data"]))
            elif event["type"] == "gap":
                note(f"{event['bytes']} bytes from byte {event['offset']} on are missing here: {event['why']}")
    except ConnectionError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise unreachable(connection.path, str(error)) from error
    streaming.notices(record, 0, screen)
    return 0


def _json(given: Given, name: str, offset: int) -> int:
    from json import dumps

    way = "follow" if given.flag("follow") else "output"
    wanted = given.text("stream", "both")
    connection = session.transport()
    try:
        for event in connection.lines("GET", f"/v1/jobs/{quote(name)}/{way}{query({'offset': offset})}"):
            if event["type"] == "beat" or (event["type"] == "output" and wanted not in ("both", event["stream"])):
                continue
            sys.stdout.write(dumps(event) + "\n")
            sys.stdout.flush()
    except ConnectionError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise unreachable(connection.path, str(error)) from error
    return 0
