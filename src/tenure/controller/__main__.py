"""``python -m tenure.controller --embedded``: the controller of one user on one machine."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import gc
import json
import os
import sys
from typing import NoReturn

import structlog

from tenure.errors import TenureError
from tenure.paths import Layout, bind_unix, layout

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
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        return _run(paths, options.embedded)
    except TenureError as error:
        return _refuse(error)
    finally:
        os.close(lock)


def _lock(paths: Layout) -> int:
    fd = os.open(paths.controller_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise TenureError(
            "already_running",
            f"a controller for {paths.home} is running already (pid {holder})",
            do="look at it with: rc status",
            facts={"pid": holder, "path": str(paths.controller_lock)},
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _run(paths: Layout, embedded: bool) -> int:
    from tenure.controller.app import serve
    from tenure.controller.service import Controller
    from tenure.ledger import Ledger

    service = Controller(paths, Ledger.open(paths.ledger_db), "embedded" if embedded else "serve")
    listening = bind_unix(paths.ctl_sock)
    listening.listen(LISTEN_BACKLOG)
    # What exists now stays for the process's life; the collector need not walk it again and again.
    gc.collect()
    gc.freeze()
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(service, listening, embedded=embedded))
    else:
        uvloop.run(serve(service, listening, embedded=embedded))
    return 0


def _refuse(error: TenureError) -> int:
    # A line of the log for people, and one from which whoever started this rebuilds the error.
    print(f"tenure controller: {error}", file=sys.stderr)
    print(json.dumps({"event": "refused", "error": error.to_dict()}), file=sys.stderr, flush=True)
    return error.exit_code


def _exit() -> NoReturn:
    sys.exit(main())


if __name__ == "__main__":
    _exit()
