"""``python -m tenure.controller --embedded``: the controller of one user on one machine."""

from __future__ import annotations

import argparse
import asyncio
import errno
import fcntl
import gc
import json
import os
import shlex
import sys
from pathlib import Path
from typing import NoReturn

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
    except OSError as error:
        return _refuse(_told(error))
    try:
        return _run(paths, options.embedded)
    except TenureError as error:
        return _refuse(error)
    except OSError as error:
        return _refuse(_told(error))
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
    # The collector would walk everything again and again while it is being loaded, for a fifth of the time that takes;
    # and what exists then stays for the process's life, so that it need never be walked.
    gc.disable()
    from tenure.controller.app import serve
    from tenure.controller.logs import configure
    from tenure.controller.service import Controller
    from tenure.ledger import Ledger

    configure()
    # Before the socket is there: whoever finds it finds all of the controller behind it, or waits in its backlog.
    service = Controller(paths, Ledger.open(paths.ledger_db), "embedded" if embedded else "serve")
    listening = bind_unix(paths.ctl_sock)
    listening.listen(LISTEN_BACKLOG)
    gc.freeze()
    gc.enable()
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(service, listening, embedded=embedded))
    else:
        uvloop.run(serve(service, listening, embedded=embedded))
    return 0


def _told(error: OSError) -> TenureError:
    path = str(error.filename or "")
    folder = Path(path).parent if path else None
    return TenureError(
        "disk_full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "io_error",
        f"the controller cannot use {path or 'a file'}: {error.strerror or error}.",
        do=f"Look at it: ls -ld {shlex.quote(str(folder))} {shlex.quote(path)}; df -h {shlex.quote(str(folder))}"
        if folder
        else "Look at the folder that TENURE_HOME names.",
        facts={"path": path, "errno": error.errno},
    )


def _refuse(error: TenureError) -> int:
    """Says why on stderr: one line for people, one for whoever started this controller and reads its log."""
    print(f"tenure controller: {error.code}: {error}", file=sys.stderr)
    print(json.dumps({"event": "refused", "error": error.to_dict()}), file=sys.stderr, flush=True)
    return error.exit_code


def _exit() -> NoReturn:
    sys.exit(main())


if __name__ == "__main__":
    _exit()
