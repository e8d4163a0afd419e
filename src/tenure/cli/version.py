"""``rc version``: this program's version, and the controller's where one answers."""

from __future__ import annotations

import sys

from tenure import __version__
from tenure.cli import session
from tenure.cli.options import Command, Given
from tenure.cli.text import clean, say
from tenure.errors import TenureError

COMMAND = Command("version", "", "Show the versions of this program and of the controller.")


def main(given: Given) -> int:
    """Exit status 0, whether a controller answers or not."""
    try:
        controller = session.transport().call("GET", "/v1/status")["version"]
    except TenureError:
        controller = None  # said in the answer: there is none to ask
    if given.json:
        from json import dumps

        sys.stdout.write(dumps({"version": __version__, "controller": controller}) + "\n")
        return 0
    say(f"tenure {__version__}")
    say(f"controller {clean(controller)}" if controller else "controller: none answers")
    return 0
