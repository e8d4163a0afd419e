"""Scratch folders as they are listed: the kept ones, and what a cleaning removed or left."""

from __future__ import annotations

import sys

from tenure.cli import session
from tenure.cli.options import Given
from tenure.cli.text import ago, note, say, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def size(count: int | None) -> str:
    """Bytes for people; ``unknown`` where they were not told."""
    if count is None:
        return "unknown"
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} B"


def show_kept(given: Given) -> int:
    """``rc jobs --kept``. Exit status 71 where a host did not answer: what lies there is not known then."""
    told = session.transport().call("GET", "/v1/scratch", timeout_s=40.0)
    if given.json:
        return _json(told)
    rows = _rows(told, "kept")
    if rows:
        say(table(["JOB", "SIZE", "AGO", "HOST", "PATH"], rows))
    elif all(host["answered"] for host in told["hosts"]):
        say("no scratch is kept")
    return _unanswered(told)


def show_cleaned(given: Given, told: Mapping[str, Any]) -> int:
    """``rc admin clean``."""
    if given.json:
        return _json(told)
    rows = _rows(told, "removed")
    what = "would be removed" if told["dry_run"] else "removed"
    if rows:
        say(table(["JOB", "SIZE", "AGO", "HOST", "PATH"], rows))
        counts = [one["bytes"] for host in told["hosts"] for one in host["removed"]]
        known = sum(count for count in counts if count is not None)
        at_least = "at least " if None in counts else ""
        say(f"{what}: {len(rows)}, {at_least}{size(known)}")
    else:
        say(f"nothing {'to remove' if told['dry_run'] else 'was removed'}")
    left = [(host["host"], one) for host in told["hosts"] for one in host["left"]]
    for host, one in left:
        note(f"left on {host}: {one['path']}: {one['why']}")
    return _unanswered(told) or (71 if left else 0)


def _rows(told: Mapping[str, Any], name: str) -> list[list[object]]:
    return [
        [one["job"], size(one["bytes"]), ago(one["ended_at"], told["at"]), host["host"], one["path"]]
        for host in told["hosts"]
        for one in host[name]
    ]


def _unanswered(told: Mapping[str, Any]) -> int:
    silent = [host for host in told["hosts"] if not host["answered"]]
    for host in silent:
        note(f"what lies on {host['host']} is not known: {host['why']}")
    return 71 if silent else 0


def _json(told: Mapping[str, Any]) -> int:
    from json import dumps

    sys.stdout.write(dumps(told) + "\n")
    return 0 if all(host["answered"] and not host["left"] for host in told["hosts"]) else 71
