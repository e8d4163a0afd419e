"""``rc up``: start the controller and the agent of this machine."""

from __future__ import annotations

import sys

from tenure.cli import session
from tenure.cli.options import Command, Given, Option
from tenure.cli.text import clean, say
from tenure.errors import TenureError
from tenure.paths import layout
from tenure.sdk import embedded

COMMAND = Command(
    "up",
    "[--sim SPEC]",
    "Start this machine's controller and agent, and wait until its devices are known.",
    (Option("--sim", "SPEC", "add simulated devices, such as 4xH100; always labelled simulated"),),
)


def main(given: Given) -> int:
    """Exit status 0 where it runs as asked, 73 where it runs already with other simulated devices."""
    paths = layout()
    sim = given.text("sim") or None
    started = embedded.ensure_running(paths, options={"sim": sim})
    connection = session.transport()
    status = connection.call("GET", "/v1/status")
    running_sim = embedded.read_options(paths).get("sim")
    if not started and sim is not None and sim != running_sim:
        raise TenureError(
            "already_running",
            f"it is running already (pid {status['pid']}) with "
            + (f"--sim {running_sim}" if running_sim else "no simulated devices"),
            do=f"stop it first: rc down, then: rc up --sim {sim}",
            facts={"pid": status["pid"], "sim": running_sim},
        )
    agent = embedded.wait_for_agent(connection) if started else True
    if given.json:
        from json import dumps

        sys.stdout.write(dumps({"started": started, "agent": agent, "sim": running_sim, "status": status}) + "\n")
        return 0
    if started:
        say(session.started_words(str(paths.root), {"sim": running_sim}))
    else:
        simulated = f" with --sim {clean(running_sim)}" if running_sim else ""
        say(f"it is running already{simulated} (pid {status['pid']}; state in {clean(paths.root)})")
    if not agent:
        say(f"its agent has not come in yet; its log is {clean(paths.agent_log)}")
    return 0
