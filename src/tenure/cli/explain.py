"""``rc explain``: which devices a selector matches, and why the others do not. Submits nothing."""

from __future__ import annotations

import sys

from tenure.cli import session
from tenure.cli.options import Command, Given, Option
from tenure.cli.text import duration, paint, say, table, terminal_columns, whole
from tenure.errors import CODES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

COMMAND = Command(
    "explain",
    "[SELECTOR]",
    "Show which devices a selector matches, and for every other one the first condition that fails.",
    (
        Option("-d --device", "DEVICE", "this device, by name"),
        Option("--select", "SELECTOR", "the selector, if not given as a word"),
        Option("--count", "N", "so many devices of one host (1)", read=whole),
        Option("--max-runtime", "TIME", "a job's max runtime, which a device may not allow", read=duration),
        Option("--idle-timeout", "TIME", "a job's idle timeout, which a device may not allow", read=duration),
    ),
    most=1,
)


def main(given: Given) -> int:
    """Exit status 0 where enough devices match, 67 where not."""
    select = given.words[0] if given.words else given.text("select")
    return show(given, select)


def show(given: Given, select: str, needs: Sequence[str] = ()) -> int:
    """The table of one request; ``needs`` are its requirements, which nobody looks at before the job starts."""
    count = given.value("count", 1)
    body = {"device": given.text("device") or None, "select": select, "count": count}
    body |= {"max_runtime_s": given.value("max-runtime"), "idle_timeout_s": given.value("idle-timeout")}
    told = session.transport().call("POST", "/v1/explain", body)
    devices = told["devices"]
    matching = [name for name, row in devices.items() if row["reason"] == "matches"]
    hosts = [name.rpartition(":")[0] for name in matching]
    enough = any(hosts.count(host) >= count for host in hosts)
    if given.json:
        from json import dumps

        sys.stdout.write(dumps({**told, "enough": enough, **({"needs": list(needs)} if needs else {})}) + "\n")
    else:
        rows = [
            [name, "yes" if row["reason"] == "matches" else "no", row["state"], row["reason"]]
            for name, row in devices.items()
        ]
        say(paint(table(["DEVICE", "MATCHES", "STATE", "WHY"], rows, last=terminal_columns())))
        if not enough:
            say(f"{len(matching)} of {len(devices)} devices match; {count} of one host are asked for")
        if needs:
            from tenure.cli.needs import explained

            say(explained(needs))
    return 0 if enough else CODES["no_matching_device"].exit
