"""``rc devices``: every device, its state with the reason, and who has it."""

from __future__ import annotations

import sys

from tenure.cli import session
from tenure.cli.options import Command, Given
from tenure.cli.text import ago, paint, say, table, terminal_columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

COMMAND = Command("devices", "", "List devices. Only `ready` is free; every other state says why.")


def main(given: Given) -> int:
    """Exit status 0 where a controller answers."""
    told = session.transport().call("GET", "/v1/devices")
    if given.json:
        from json import dumps

        sys.stdout.write(dumps(told) + "\n")
        return 0
    if not told["devices"]:
        say("no device is known yet: no agent has come in (rc status)")
        return 0
    rows = [
        [d["name"], kind(d), model(d), d["job"] or "-", d["holder"] or "-", ago(d["since"], told["at"]), d["words"]]
        for d in told["devices"]
    ]
    say(paint(table(["DEVICE", "KIND", "MODEL", "JOB", "HOLDER", "SINCE", "STATE"], rows, last=terminal_columns())))
    return 0


def kind(device: Mapping[str, Any]) -> str:
    """The kind; ``simulated`` whatever the device claims to be."""
    return "simulated" if device["simulated"] else str(device["kind"])


def model(device: Mapping[str, Any]) -> str:
    """The model as it was detected; ``unknown`` with the reason where it could not be, ``-`` where nobody said."""
    found = device["facts"].get("model")
    if isinstance(found, dict):
        return f"unknown ({found.get('unknown', 'no reason given')})"
    return str(found or "-")
