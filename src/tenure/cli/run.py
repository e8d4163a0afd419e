"""``rc run``: lease, run, stream, and exit as the command did."""

from __future__ import annotations

import os
import sys

from tenure.cli import session, settings, streaming
from tenure.cli.options import Command, Given, Option, usage_error
from tenure.cli.text import duration, let_go, note, size, whole
from tenure.errors import TenureError
from tenure.sdk import caller
from tenure.sdk.following import Following
from tenure.sdk.transport import Transport, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COMMAND = Command(
    "run",
    "[OPTIONS] [--] COMMAND [ARGUMENTS]",
    "Lease a device, run a command on it, stream its output, and exit with its exit status (128+n for a signal).",
    (
        Option("-d --device", "DEVICE", "this device, by name; waits for its holder"),
        Option("--select", "SELECTOR", "any device that matches, such as 'vram>=40G,class=train'"),
        Option("--count", "N", "so many devices of one host, all or none (1)", read=whole),
        Option("--cwd", "DIR", "working directory (a scratch folder of the job's own)"),
        Option("--env", "NAME[=VALUE]", "set a variable, or pass on your own; may be repeated", many=True),
        Option("--as", "LABEL", "a label to show beside the job"),
        Option("--priority", "N", "-10 to 10, higher goes first (0)", read=whole),
        Option("--no-wait", "", "start now or be refused as busy (exit status 75)"),
        Option("--timeout", "TIME", "give up after so long in the queue (exit status 124)", read=duration),
        Option(
            "--max-runtime", "TIME", "end it once it has run so long, 0 for never (the device's default)", read=duration
        ),
        Option("--idle-timeout", "TIME", "end it once it has done nothing for so long, 0 for never", read=duration),
        Option(
            "--idle-signal",
            "WHAT",
            "what counts as doing something: work (output, CPU or GPU work) or output alone",
            choices=("work", "output"),
        ),
        Option(
            "--need",
            "REQUIREMENT",
            "start only where this is met, such as tool:cmake>=3.20 or lib:cudart; may be repeated",
            many=True,
        ),
        Option("--need-disk", "SIZE", "start only with so much room for its scratch, such as 20G"),
        Option("--need-mem", "SIZE", "start only with so much memory available"),
        Option("--grace", "TIME", "from TERM to KILL when it is stopped (10s)", read=duration),
        Option("--output-quota", "SIZE", "store no more of its output than that (the host's: 8G)", read=size),
        Option(
            "--window", "LIMITS", "limits of the verdict: grace=120,span=56,samples=8,period=1", read=settings.window
        ),
        Option(
            "--stage", "DIR", "carry this tree to the job's scratch and begin there (with git: what it does not ignore)"
        ),
        Option("--keep", "", "keep the scratch folder after the end (rc jobs --kept lists such)"),
        Option("--key", "KEY", "the same key and request is the same job, however often it is sent"),
        Option("--detach", "", "print the job's id and do not wait for it"),
        Option("--explain", "", "show which devices match and why the others do not; run nothing"),
        streaming.STRICT,
        Option("-q --quiet", "", "leave out the two lines at the end"),
    ),
    least=0,
    most=None,
    rest=True,
    more="Ctrl-C cancels a job that waits in the queue and detaches from one that runs. With -o json the job's output\n"
    "goes to standard error and its record to standard output. TIME reads 10, 10s, 5m, 2h or 1d; SIZE 10k, 5M, 2G.",
)


def main(given: Given) -> int:
    """Exit status: the command's own; ours where the job could not be run, see ``tenure.errors``."""
    if given.flag("explain"):
        from tenure.cli import explain

        return explain.show(given, given.text("select"), _needs(given))
    if given.flag("strict") and given.flag("detach"):
        raise usage_error(
            COMMAND, "--strict tells of the end, and --detach does not wait for it; rc wait --strict does"
        )
    body = _request(given)
    connection = session.transport()
    if given.text("stage"):
        from tenure.cli import staging  # only for who stages

        staging.add(given, body, connection)
    if given.flag("detach"):
        return _detached(given, connection, body)
    _mind_signals()
    for attempt in range(3):
        screen = streaming.Screen(stdout=2 if given.json else 1)
        following = Following(connection, body=body, revive=session.revive, trouble=screen.trouble)
        try:
            job = streaming.show(following, screen)
            quiet, strict = given.flag("quiet"), given.flag("strict")
            return streaming.finish(job, quiet=quiet, json=given.json, strict=strict, screen=screen)
        except KeyboardInterrupt as asked:
            return _interrupted(following, body["key"], 143 if asked.args else 130, strict=given.flag("strict"))
        except BrokenPipeError:
            if following.job:
                note(f"standard output was closed; {_goes_on(following)}")
            raise
        except TenureError as error:
            if attempt == 2 or following.record is not None or not _may_repeat(error, body, connection):
                raise
    raise AssertionError("the last attempt returns or raises")


def _may_repeat(error: TenureError, body: dict[str, Any], connection: Transport) -> bool:
    """Whether a refused submission may be accepted now: its device named in full, or its agent come in."""
    return session.in_full(error, body, connection) or session.came_too_early(error, connection)


def _request(given: Given) -> dict[str, Any]:
    argv = given.words
    if not argv:
        raise usage_error(COMMAND, "no command was given")
    if not all(map(caller.text, argv)):
        raise TenureError(
            "invalid_request", "a word of the command is not text in UTF-8", do="pass such a name in a file"
        )
    chosen = settings.load({"window": given.value("window")})
    passed = caller.variables(os.environ)
    named = dict(map(_variable, given.many("env")))
    cwd = given.text("cwd")
    return {
        "argv": argv,
        "cwd": os.path.abspath(cwd) if cwd else None,  # noqa: PTH100 - pathlib is slow to import
        "env": {**passed, **named},
        "passed": [name for name in passed if name not in named],
        "device": given.text("device") or None,
        "select": given.text("select"),
        "count": given.value("count", 1),
        "priority": given.value("priority", 0),
        "queue_timeout_s": given.value("timeout"),
        "grace_s": given.value("grace", 10.0),
        "label": given.text("as"),
        "umask": caller.umask(),
        "window": chosen.get("window") or {},
        "max_runtime_s": given.value("max-runtime"),
        "idle_timeout_s": given.value("idle-timeout"),
        "output_quota_bytes": given.value("output-quota"),
        "idle_signal": given.text("idle-signal", "work"),
        "needs": _needs(given),
        "keep": given.flag("keep"),
        "key": given.text("key") or os.urandom(16).hex(),
        "wait": not given.flag("no-wait"),
    }


def _needs(given: Given) -> list[str]:
    if not (given.many("need") or given.text("need-disk") or given.text("need-mem")):
        return []
    from tenure.cli import needs  # the grammar, for those who ask for something

    return needs.asked(given)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        if name not in os.environ:
            raise usage_error(COMMAND, f"--env {name}: that variable is not set here")
        value = os.environ[name]
    if not name or not caller.text(text + value):
        raise usage_error(COMMAND, f"--env {text!r}: a variable is NAME=VALUE, in UTF-8")
    return name, value


def _detached(given: Given, connection: Transport, body: dict[str, Any]) -> int:
    for _ in range(3):
        try:
            job = connection.call("POST", "/v1/jobs", body)["job"]
            break
        except TenureError as error:
            if error.code == "controller_unreachable":
                session.revive()
            elif not _may_repeat(error, body, connection):
                raise
    else:
        job = connection.call("POST", "/v1/jobs", body)["job"]
    if given.json:
        from json import dumps

        sys.stdout.write(dumps(job) + "\n")
    else:
        sys.stdout.write(f"{job['id']}\n")
    return 0


def _mind_signals() -> None:
    """SIGTERM ends this command as Ctrl-C does: it says what becomes of the job."""
    from tenure.sdk.lean import signal

    def asked(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number)

    signal.signal(signal.SIGTERM, asked)


def _goes_on(following: Following) -> str:
    job = following.job
    return (
        f"detached from job {job}, which goes on; attach again with: rc attach {job} --offset {following.offset} "
        f"(or end it with: rc kill {job})"
    )


def _interrupted(following: Following, key: str, status: int, *, strict: bool) -> int:
    """Cancels what waits, lets go of what runs, and says which. A second Ctrl-C ends this at once."""
    connection = Transport(following._transport.path, 5.0)
    try:
        job = _find(connection, following.job, key)
        if job is None:
            let_go("interrupted; nothing was submitted")
            return status
        following.job = job["id"]
        if job["state"] == "queued":
            job = connection.call(
                "POST", f"/v1/jobs/{quote(job['id'])}/stop", {"reason": "interrupted at the terminal"}
            )
            if job["state"] == "ended" and not job["started_at"]:
                let_go(f"cancelled job {job['id']}; it was queued, and nothing was run")
                return status
        if job["state"] == "ended":
            return streaming.finish(job, quiet=False, json=False, strict=strict)
        let_go(_goes_on(following))
    except TenureError as error:
        let_go(f"interrupted; what became of job {following.job or 'the submission'} is not known: {error.message}")
        note("look with: rc ps")
    return status


def _find(connection: Transport, job: str | None, key: str) -> dict[str, Any] | None:
    if job is not None:
        return connection.call("GET", f"/v1/jobs/{quote(job)}")
    found = connection.call("GET", "/v1/jobs?limit=100")["jobs"]
    return next((one for one in found if one["key"] == key), None)
