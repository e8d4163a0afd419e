"""``python -m tenure.agent``: the agent of one user on one machine. SIGTERM ends it and leaves every job running."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from tenure.durable.locks import hold
from tenure.errors import TenureError
from tenure.os_errors import told as os_error
from tenure.paths import Layout, layout

log = logging.getLogger("tenure.agent")


def main(argv: list[str] | None = None) -> int:
    """Runs until told to stop. Exit status 73 where another agent holds this home, 74 where its state is damaged."""
    parser = argparse.ArgumentParser(prog="python -m tenure.agent", description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="log what is done, not only what is noteworthy")
    arguments = parser.parse_args(argv)
    try:
        return run(verbose=arguments.verbose)
    except TenureError as error:
        return _refuse(error)


def run(*, verbose: bool = False, alone: bool = False, join: Path | None = None) -> int:
    """The agent of this home, until it is told to stop. Raises why it cannot be, or could not go on.

    ``join``: a token file to join a controller with first. ``alone``: never start a controller, whatever is owed to
    one; so it is anyway where the controller is elsewhere.
    """
    gc.disable()  # nothing of the start is garbage; _run switches it on again
    try:
        paths = layout()
        paths.create()
        lock = _lock(paths)
    except OSError as error:
        raise os_error(error, "the agent cannot use") from error
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("websockets").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    try:
        return _run(paths, alone, join)
    except OSError as error:
        log.exception("the agent ends")
        raise os_error(error, "the agent cannot use") from error
    finally:
        os.close(lock)


def _lock(paths: Layout) -> int:
    running = f"An agent for {paths.home} is running already (pid {{pid}})."
    return hold(paths.agent_lock, running, "Nothing needs to be done; look at it with: rc status")


def _run(paths: Layout, alone: bool, join: Path | None) -> int:
    from tenure.agent import identity, joined, options
    from tenure.agent.core import AgentState
    from tenure.agent.journal import Journal
    from tenure.agent.shell import Shell
    from tenure.durable import remove_temporaries

    settings = options.load(paths)
    remove_temporaries(paths.agent)
    reach = joined.join(paths, join) if join is not None else joined.load(paths)
    if alone and reach.local:
        _require_controller(paths)
    if alone or not reach.local:
        settings = replace(settings, restart_controller=False)
    # A token's host is the name that its controller knows this one by.
    who = identity.load(paths.identity, host=reach.host or settings.host)
    state = AgentState()
    limit = settings.journal_limit_bytes
    journal = Journal.open(paths.journal, state, limit_bytes=limit, attempts=paths.attempts)
    if journal.recovered is not None:
        log.warning("the journal had a torn tail, which was cut off: %s", journal.recovered)

    async def serve() -> None:
        shell = Shell(paths, settings, who, journal, state, reach)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, shell.stop)
        known = len(state.attempts)
        log.info("agent %s of %s, pid %d, %d attempts known", who.agent, who.host, os.getpid(), known)
        if not reach.local:
            log.info("its controller is %s at %s", reach.controller, ", ".join(reach.addresses))
        await shell.run()

    # What exists now stays for the process's life; the collector need not walk it again and again.
    gc.collect()
    gc.freeze()
    gc.enable()
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve())
    else:
        uvloop.run(serve())
    return 0


def _require_controller(paths: Layout) -> None:
    """An agent that was started by hand and has nobody to serve would dial for nothing, without a word."""
    if not (paths.served.exists() or paths.ctl_sock.exists()):
        raise TenureError(
            "not_configured",
            f"{paths.home} has joined no controller, and has none of its own",
            do="join one: rc agent --join FILE, of a file made there by: rc admin token create --agent HOST --out FILE",
            facts={"path": str(paths.joined)},
        )


def _refuse(error: TenureError) -> int:
    """Says why on stderr: one line for people, one for whoever started this agent and reads its log."""
    with contextlib.suppress(OSError):  # the disk of the log may be what is full; the exit status still says it
        print(f"tenure agent: {error.code}: {error}", file=sys.stderr)
        print(json.dumps({"event": "refused", "error": error.to_dict()}), file=sys.stderr, flush=True)
    return error.exit_code


def _exit() -> NoReturn:
    sys.exit(main())


if __name__ == "__main__":
    _exit()
