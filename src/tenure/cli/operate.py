"""What ``rc admin drain``, ``resume``, ``quarantine``, ``clear`` and ``retire`` share: a device, an act, a reason."""

from __future__ import annotations

import sys

from tenure.cli import session
from tenure.cli.options import Command, Given, Option, usage_error
from tenure.cli.text import clean, say
from tenure.errors import TenureError
from tenure.sdk.transport import quote

_REASON = Option("--reason", "WHY", "kept with the device and its history; needed")


def command(act: str, about: str, more: str = "") -> Command:
    """The command of one act."""
    return Command(f"admin {act}", "--reason WHY DEVICE...", about, (_REASON,), least=1, most=None, more=more)


def run(act: str, given: Given) -> int:
    """Exit status 0 where it was done on every device; else that of the first on which it was refused."""
    reason = given.text("reason").strip()
    if not reason:
        raise usage_error(given.command, f"say why: rc admin {act} --reason 'WHY' {' '.join(given.words)}")
    connection = session.transport()
    failed: TenureError | None = None
    told = []
    for name in given.words:
        try:
            done = connection.call("POST", f"/v1/devices/{quote(name)}/operate", {"act": act, "reason": reason})
        except TenureError as error:
            if failed is not None:
                sys.stderr.write(f"rc: {clean(error.message)}\n")
            failed = failed or error
            continue
        told.append(done)
        if not given.json:
            device = done["device"]
            say(f"{done['retired']} is retired" if device is None else f"{device['name']}: {clean(device['words'])}")
    if given.json and (told or failed is None):
        from json import dumps

        sys.stdout.write(dumps({"devices": told}) + "\n")
    if failed is not None:
        raise failed
    return 0
