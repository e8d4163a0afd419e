"""``rc jobs``: the history of jobs."""

from __future__ import annotations

import sys

from tenure.cli import session
from tenure.cli.options import Command, Given, Option, usage_error
from tenure.cli.ps import where
from tenure.cli.text import ago, command_line, paint, say, table, terminal_columns, whole
from tenure.sdk.transport import query

_STATES = ("open", "queued", "starting", "running", "stopping", "ended")


def _utc(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not abs(seconds) < float("inf"):
        raise ValueError("a time here is seconds since 1970, as date +%s prints them")
    return seconds


COMMAND = Command(
    "jobs",
    "",
    "List jobs, newest first, the ended ones too.",
    (
        Option("--state", "STATE", "only these: " + ", ".join(_STATES), choices=_STATES),
        Option("--owner", "USER", "only this user's"),
        Option("-d --device", "DEVICE", "only those that were on this device"),
        Option("-n --limit", "N", "at most so many, up to 1000 (50)", read=whole),
        Option("--kept", "", "list the scratch folders that were kept instead, with size, age and path"),
        Option("--before", "UTC", "only those submitted before this time (seconds since 1970)", read=_utc),
    ),
)


def main(given: Given) -> int:
    """Exit status 0 where a controller answers."""
    keys = ("state", "owner", "device", "limit", "before")
    if given.flag("kept"):
        if any(given.value(key) is not None for key in keys):
            raise usage_error(COMMAND, "--kept lists every scratch that is kept, and takes no filter")
        from tenure.cli import scratches  # only for who asks

        return scratches.show_kept(given)
    told = session.transport().call("GET", f"/v1/jobs{query({key: given.value(key) for key in keys})}")
    if given.json:
        from json import dumps

        sys.stdout.write(dumps(told) + "\n")
        return 0
    if not told["jobs"]:
        say("no job fits" if any(given.value(key) for key in keys) else "no job was ever submitted")
        return 0
    rows = []
    for j in told["jobs"]:
        verdict = (j["use"] or {}).get("label") or (j["use"] or {}).get("verdict") or "-"
        code = "-" if j["exit_status"] is None else j["exit_status"]
        row = [j["id"], j["owner"], j["label"] or "-", ago(j["submitted_at"]), code, verdict, where(j), j["words"]]
        rows.append([*row, command_line(j["argv"])])
    head = ["JOB", "OWNER", "LABEL", "AGO", "EXIT", "USE", "DEVICES", "STATE", "COMMAND"]
    say(paint(table(head, rows, last=terminal_columns())))
    return 0
