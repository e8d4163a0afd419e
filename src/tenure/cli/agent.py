"""``rc agent``: the agent of this host, in the foreground."""

from __future__ import annotations

from pathlib import Path

from tenure.cli.options import Command, Given, Option, usage_error

COMMAND = Command(
    "agent",
    "[--join TOKENFILE]",
    "Run this host's agent in the foreground, until it is told to stop; its jobs go on then.",
    (
        Option("--join", "TOKENFILE", "join the controller that made this file, and remember it", read=Path),
        Option("--verbose", "", "log what is done, not only what is noteworthy"),
        Option("--install-unit", "", "write a systemd unit for this, say what to type next, and do no more"),
        Option("--user", "", "with --install-unit: for this user (the default for all but root)"),
        Option("--system", "", "with --install-unit: for this host"),
    ),
    more="Once it has joined, the file may go: rc agent alone knows the way.\n"
    "Without --join it serves the controller of this home (rc serve).",
)


def main(given: Given) -> int:
    """Exit status 0 when it was told to stop, 73 where an agent of this home runs already, 69 or 77 where the
    controller does not answer or will not have it."""
    if given.flag("install-unit"):
        from tenure.cli import units

        if given.value("join") is not None:
            raise usage_error(COMMAND, "--join comes first, by hand: the unit runs an agent that has joined")
        return units.install(given, "agent", ["--verbose"] if given.flag("verbose") else [])
    if given.flag("user") or given.flag("system"):
        raise usage_error(COMMAND, "--user and --system go with --install-unit")
    from tenure.agent import __main__ as agent

    file = given.value("join")
    return agent.run(verbose=given.flag("verbose"), alone=True, join=Path(file) if file is not None else None)
