"""``python -m tenure.controller --embedded``: the controller of one user on one machine."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NoReturn

from tenure.durable.locks import hold
from tenure.errors import TenureError
from tenure.os_errors import told as os_error
from tenure.paths import Layout, bind_unix, layout

if TYPE_CHECKING:
    from tenure.controller.service import Controller
    from tenure.ledger import Ledger

LISTEN_BACKLOG = 1024


def main(argv: list[str] | None = None) -> int:
    """Runs until told to stop. Exit status 73 where another controller holds this home already."""
    parser = argparse.ArgumentParser(prog="python -m tenure.controller", description=__doc__)
    parser.add_argument("--embedded", action="store_true", help="start and keep an agent for this machine")
    options = parser.parse_args(argv)
    try:
        paths = layout()
        paths.create()
        lock = _lock(paths)
    except TenureError as error:
        return _refuse(error)
    except OSError as error:
        return _refuse(os_error(error, "the controller cannot use"))
    try:
        return _run(paths, options.embedded)
    except TenureError as error:
        return _refuse(error)
    except OSError as error:
        return _refuse(os_error(error, "the controller cannot use"))
    finally:
        os.close(lock)


def _lock(paths: Layout) -> int:
    running = f"a controller for {paths.home} is running already (pid {{pid}})"
    return hold(paths.controller_lock, running, "look at it with: rc status")


def _run(paths: Layout, embedded: bool) -> int:
    # The collector would walk everything again and again while it is being loaded, for a fifth of the time that takes;
    # and what exists then stays for the process's life, so that it need never be walked.
    gc.disable()
    from tenure.controller.logs import configure
    from tenure.ledger import Ledger

    configure()
    ledger = Ledger.open(paths.ledger_db)
    # It comes up while the rest of this is loaded, and dials until it is answered.
    agent = _start_agent(paths) if embedded else None
    return _serve(paths, ledger, embedded, agent)


def _start_agent(paths: Layout) -> subprocess.Popen[bytes] | None:
    from tenure.controller.loops.keeper import lock_holder, start_agent

    return start_agent(paths) if lock_holder(paths.agent_lock) is None else None


def _serve(paths: Layout, ledger: Ledger, embedded: bool, agent: subprocess.Popen[bytes] | None) -> int:
    service: Controller | None = None
    try:
        from tenure.controller import service as services
        from tenure.controller.app import serve

        service = services.Controller(paths, ledger, "embedded" if embedded else "serve")
        service.agent_process = agent
        # Last: whoever finds the socket finds all of the controller behind it, or waits in its backlog.
        listening = bind_unix(paths.ctl_sock)
        listening.listen(LISTEN_BACKLOG)
        gc.freeze()
        gc.enable()
        _runner()(serve(service, listening, embedded=embedded))
    except BaseException:
        # An agent outlives a controller that failed under way, and starts the next. One whose controller never came up
        # would dial for nothing.
        if agent is not None and (service is None or service.fatal is None):
            agent.terminate()
        raise
    return 0


def _runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    run: Callable[[Coroutine[Any, Any, None]], None] = uvloop.run
    return run


def _refuse(error: TenureError) -> int:
    """Says why on stderr: one line for people, one for whoever started this controller and reads its log."""
    with contextlib.suppress(OSError):  # the disk of the log may be what is full; the exit status still says it
        print(f"tenure controller: {error.code}: {error}", file=sys.stderr)
        print(json.dumps({"event": "refused", "error": error.to_dict()}), file=sys.stderr, flush=True)
    return error.exit_code


def _exit() -> NoReturn:
    sys.exit(main())


if __name__ == "__main__":
    _exit()
