"""``rc ps``: jobs that wait or run."""

from __future__ import annotations

import sys

from tenure.cli import session
from tenure.cli.options import Command, Given
from tenure.cli.streaming import devices_of
from tenure.cli.text import ago, command_line, paint, say, table, terminal_columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

COMMAND = Command("ps", "", "List jobs that wait or run, newest first.")


def main(given: Given) -> int:
    """Exit status 0 where a controller answers."""
    told = session.transport().call("GET", "/v1/jobs?state=open&limit=1000")
    if given.json:
        from json import dumps

        sys.stdout.write(dumps(told) + "\n")
        return 0
    if not told["jobs"]:
        say("no job waits or runs")
        return 0
    rows = [
        [j["id"], j["owner"], j["label"] or "-", state(j), where(j), ago(j["started_at"] or j["submitted_at"]), tail(j)]
        for j in told["jobs"]
    ]
    head = ["JOB", "OWNER", "LABEL", "STATE", "DEVICES", "SINCE", "COMMAND"]
    say(paint(table(head, rows, last=terminal_columns())))
    return 0


def state(job: Mapping[str, Any]) -> str:
    """The state, with the place in the queue."""
    return f"queued ({job['position']})" if job["position"] else str(job["state"])


def where(job: Mapping[str, Any]) -> str:
    """The devices, each simulated one labelled."""
    return devices_of(job) or "-"


def tail(job: Mapping[str, Any]) -> str:
    """The command, and for a waiting job what it waits for."""
    return command_line(job["argv"]) + (f"   [{job['reason']}]" if job["reason"] else "")
