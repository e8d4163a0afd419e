"""``rc status``: the controller, its agents, and how much of what there is."""

from __future__ import annotations

import sys

from tenure.cli import session
from tenure.cli.options import Command, Given
from tenure.cli.text import ago, clean, paint, say

COMMAND = Command("status", "", "Show the controller, its agents, and how many devices and jobs are in which state.")


def main(given: Given) -> int:
    """Exit status 0 where a controller answers, 69 where none does."""
    status = session.transport().call("GET", "/v1/status")
    if given.json:
        from json import dumps

        sys.stdout.write(dumps(status) + "\n")
        return 0
    devices = ", ".join(f"{count} {state}" for state, count in sorted(status["devices"].items())) or "none yet"
    simulated = status.get("simulated_devices")
    say(
        f"controller  {clean(status['version'])}, pid {status['pid']}, {status['mode']}, user {clean(status['user'])}, "
        f"up {ago(status['started_at'])}"
    )
    say(f"state       {clean(status['state_folder'])}")
    if status.get("listen"):
        say(f"listening   {clean(', '.join(status['listen']))} (TLS)")
        say(f"            certificate SHA-256 {clean(status['certificate'])}")
    for agent in status["agents"]:
        contact = "in contact" if agent["contact"] else f"no contact for {ago(agent.get('lost_at'), status.get('at'))}"
        say(f"agent       {clean(agent['host'])} ({clean(agent['id'])}), {contact}")
    if not status["agents"]:
        say("agent       none has come in yet")
    if status.get("agent_failure"):
        failure = status["agent_failure"]
        say(f"warning     the agent does not come up: {clean(failure['message'])}\n            {clean(failure['do'])}")
    say(paint(f"devices     {devices}" + (f" ({simulated} simulated)" if simulated else "")))
    say(f"jobs        {status['running']} on devices, {status['queued']} queued")
    if status.get("retention"):
        from tenure.domain.retention import words

        say(f"keeps       {words(status['retention'])}")
    if status.get("output_failure"):
        say(f"warning     output cannot be stored: {clean(status['output_failure'])}")
    return 0
