"""``rc down``: stop the controller and the agent of this machine."""

from __future__ import annotations

import sys

from tenure.cli import session
from tenure.cli.options import Command, Given, Option
from tenure.cli.text import say
from tenure.errors import TenureError
from tenure.paths import layout
from tenure.sdk import embedded

COMMAND = Command(
    "down",
    "[--leave]",
    "Stop this machine's controller and agent. Refuses while jobs run (exit status 73).",
    (Option("--leave", "", "leave running jobs to their supervisors; the next start takes them up again"),),
)


def main(given: Given) -> int:
    """Exit status 0 where nothing runs any more, 73 where jobs do."""
    paths = layout()
    try:
        answer = embedded.stop(paths, session.transport(), leave=given.flag("leave"))
    except TenureError as error:
        if error.code != "controller_unreachable":
            raise
        agent = embedded.stop_stray_agent(paths)
        answer = {"stopped": agent is not None, "agent": agent, "left_running": [], "left_queued": []}
    else:
        answer = {"stopped": True, **answer}
    if given.json:
        from json import dumps

        sys.stdout.write(dumps(answer) + "\n")
        return 0
    say("stopped" if answer["stopped"] else "nothing was running")
    for key, words in (("left_running", "left running"), ("left_queued", "still queued")):
        if answer[key]:
            say(f"{words}: {', '.join(answer[key])} (the next start takes them up)")
    return 0
