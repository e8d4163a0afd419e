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
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tenure.durable.locks import hold
from tenure.errors import TenureError
from tenure.os_errors import told as os_error
from tenure.paths import Layout, bind_unix, layout

if TYPE_CHECKING:
    from tenure.controller.listening import Served
    from tenure.controller.service import Controller
    from tenure.ledger import Ledger

LISTEN_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Serving:
    """How a controller is to be reached from other hosts: where it listens, what agents are told to dial where that
    differs, and whose certificate it shows (none given: its own)."""

    listen: Sequence[str]
    addresses: Sequence[str] = ()
    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None


def main(argv: list[str] | None = None) -> int:
    """Runs until told to stop. Exit status 73 where another controller holds this home already."""
    parser = argparse.ArgumentParser(prog="python -m tenure.controller", description=__doc__)
    parser.add_argument("--embedded", action="store_true", help="start and keep an agent for this machine")
    parser.add_argument("--serve", action="store_true", help="be reached from other hosts; what rc serve runs")
    for name in ("listen", "address"):
        parser.add_argument(f"--{name}", action="append", default=[], metavar="HOST:PORT")
    for name in ("cert", "key", "ca"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE")
    parser.add_argument("--output", choices=("table", "json"), default="table", help="how a refusal is told")
    options = parser.parse_args(argv)
    o = options
    serving = Serving(o.listen, o.address, o.cert, o.key, o.ca) if o.serve else None
    try:
        return run(options.embedded, serving)
    except TenureError as error:
        return _refuse(error) if serving is None else _tell(error, as_json=options.output == "json")


def run(embedded: bool, serving: Serving | None = None) -> int:
    """One controller for this home, until it is told to stop. Raises why it cannot be, or could not go on."""
    try:
        paths = layout()
        paths.create()
        lock = _lock(paths)
        try:
            if embedded:
                _require_embedded(paths)
            return _run(paths, embedded, serving)
        finally:
            os.close(lock)
    except OSError as error:
        raise os_error(error, "the controller cannot use") from error


def _require_embedded(paths: Layout) -> None:
    """A home that is served, or whose agent serves a controller elsewhere, is never started by whoever runs a job."""
    if paths.served.exists():
        raise TenureError(
            "conflict",
            f"the controller of {paths.home} is one for several hosts, and is not running",
            do="start it as it was: rc serve (with its --listen), or systemctl start tenure-serve",
            facts={"path": str(paths.served)},
        )
    if paths.joined.exists():
        raise TenureError(
            "conflict",
            f"the agent of {paths.home} belongs to a controller elsewhere (rc agent --join)",
            do="run it there, or begin a home of your own: export TENURE_HOME=DIR",
            facts={"path": str(paths.joined)},
        )


def _lock(paths: Layout) -> int:
    running = f"a controller for {paths.home} is running already (pid {{pid}})"
    return hold(paths.controller_lock, running, "look at it with: rc status")


def _run(paths: Layout, embedded: bool, serving: Serving | None) -> int:
    # The collector would walk everything again and again while it is being loaded, for a fifth of the time that takes;
    # and what exists then stays for the process's life, so that it need never be walked.
    gc.disable()
    from tenure.controller.logs import configure
    from tenure.ledger import Ledger

    configure()
    if serving is not None:
        _allow_files()
    served = _listen(paths, serving) if serving is not None else None
    ledger = Ledger.open(paths.ledger_db)
    # It comes up while the rest of this is loaded, and dials until it is answered.
    agent = _start_agent(paths) if embedded else None
    return _serve(paths, ledger, embedded, agent, served)


def _allow_files() -> None:
    """As many open files as the system lets this user have: each agent is one, and so is each stranger who dials."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # it then stays as it was
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard) if soft != hard else (soft, hard))


def _listen(paths: Layout, serving: Serving) -> Served:
    """Everything of it that can be wrong is found before anybody hears of this controller."""
    from tenure.controller import certificate, listening
    from tenure.durable import remove_temporaries

    remove_temporaries(paths.controller)
    sockets = tuple(listening.bind(each) for each in serving.listen)
    at = tuple(listening.shown(each) for each in sockets)
    told = listening.dialled(at, serving.addresses)
    names = [*(listening.split(each)[0] for each in (*told, *serving.listen)), *listening.own_names()]
    hosts = [listening.split(each)[0] for each in told]
    given = {"cert": serving.cert, "key": serving.key, "ca": serving.ca}
    shown = certificate.load(paths.certificate, **given, names=names, dialled=hosts)
    return listening.Served(listening.identity(paths.served), at, told, shown, sockets)


def _start_agent(paths: Layout) -> subprocess.Popen[bytes] | None:
    from tenure.controller.loops.keeper import lock_holder, start_agent

    return start_agent(paths) if lock_holder(paths.agent_lock) is None else None


def _serve(
    paths: Layout, ledger: Ledger, embedded: bool, agent: subprocess.Popen[bytes] | None, served: Served | None
) -> int:
    service: Controller | None = None
    try:
        from tenure.controller import service as services
        from tenure.controller.app import serve

        service = services.Controller(paths, ledger, "embedded" if embedded else "serve")
        service.agent_process = agent
        if served is not None:
            service.tokens.load()
            service.served = served
        # Last: whoever finds the socket finds all of the controller behind it, or waits in its backlog.
        listening = bind_unix(paths.ctl_sock)
        listening.listen(LISTEN_BACKLOG)
        gc.freeze()
        gc.enable()
        if served is not None:
            _announce(paths, served)
        _runner()(serve(service, listening, embedded=embedded))
    except BaseException:
        # An agent outlives a controller that failed under way, and starts the next. One whose controller never came up
        # would dial for nothing.
        if agent is not None and (service is None or service.fatal is None):
            agent.terminate()
        raise
    return 0


def _announce(paths: Layout, served: Served) -> None:
    """For whoever started it in the foreground; its log goes to stderr."""
    from tenure.controller.certificate import shown

    print(f"controller   {served.id}, state in {paths.root}")
    print(f"listening    {', '.join(served.at)} (TLS), and {paths.ctl_sock}")
    print(f"agents dial  {', '.join(served.addresses)}")
    made = "made for this home" if served.certificate.path == paths.certificate else str(served.certificate.path)
    print(f"certificate  SHA-256 {shown(served.certificate.pin)}")
    print(f"             {made}; agents go by {'its authority' if served.certificate.ca else 'this fingerprint'}")
    print("join a host  rc admin token create --agent HOST --out FILE, take FILE there, and: rc agent --join FILE")
    sys.stdout.flush()


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


def _tell(error: TenureError, *, as_json: bool) -> int:
    """Says why as ``rc`` does: this process is the command that was typed."""
    if as_json:
        lines = [json.dumps({"error": {**error.to_dict(), "exit": error.exit_code}})]
    else:
        said = [f"rc: {error.message}", *([f"  {error.do}"] if error.do else [])]
        lines = ["".join(c if c.isprintable() else "?" for c in line) for line in said]
    with contextlib.suppress(OSError):
        print("\n".join(lines), file=sys.stderr, flush=True)
    return error.exit_code


def _exit() -> NoReturn:
    sys.exit(main())


if __name__ == "__main__":
    _exit()
