"""Runs a probe command with a deadline. Its exit code and stdout decide; its stderr is evidence only.

The command runs in a process group of its own, under LC_ALL=C (a decimal comma is not a number). One that ignores
TERM is killed with its whole group at the deadline and abandoned: it is never waited for in a blocking way.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value

MAX_OUTPUT = 4 << 20
POLL_S = 0.01
_undead: list[subprocess.Popen[bytes]] = []  # killed at their deadline and not collected yet


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command said. ``code`` is its exit code, negative for a signal; ``error`` the end of its stderr."""

    code: int
    output: str
    error: str


async def run(
    argv: Sequence[str],
    *,
    deadline_s: float = 5.0,
    term_s: float = 0.2,
    env: Mapping[str, str] | None = None,
    scope: Scope = Scope.HOST,
    clock: Callable[[], float] = time.monotonic,
) -> Reading[CommandOutput]:
    """Runs ``argv`` and gives its output whatever its exit code; Unavailable where it could not run or end in time.

    At the deadline less ``term_s`` it is asked to end; at the deadline its group is killed. ``library_missing``: no
    such command. ``unparseable``: over 4 MiB of output. ``scope`` says what the reading speaks of.
    """
    at = clock()
    instrument = f"command.{os.path.basename(argv[0])}"  # noqa: PTH119 - argv holds text
    _undead[:] = [process for process in _undead if process.poll() is None]
    if len(_undead) >= 16:
        return Unavailable(Reason.TIMEOUT, at, instrument, scope, "16 abandoned probes have not died yet")
    environment = {**(os.environ if env is None else env), "LC_ALL": "C", "LANGUAGE": ""}
    # Files, not pipes: a grandchild that outlives the probe holds a pipe open, and nobody need drain a file.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - half a millisecond, and no watcher thread is left behind
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=error,
                env=environment,
                start_new_session=True,
            )
        except FileNotFoundError as problem:
            return Unavailable(Reason.LIBRARY_MISSING, at, instrument, scope, f"{argv[0]}: {problem.strerror}")
        except OSError as problem:
            denied = isinstance(problem, PermissionError)
            reason = Reason.NO_PERMISSION if denied else Reason.UNPARSEABLE
            return Unavailable(reason, at, instrument, scope, f"{argv[0]}: {problem.strerror}")
        try:
            ended = await _wait(process, output.fileno(), deadline_s, term_s)
        except BaseException:
            _kill(process)
            raise
        tail = _read(error.fileno(), 2000, end=True)
        size = os.fstat(output.fileno()).st_size
        if size > MAX_OUTPUT:
            _kill(process)
            return Unavailable(Reason.UNPARSEABLE, at, instrument, scope, f"{size} bytes of output")
        if not ended:
            _kill(process)
            return Unavailable(Reason.TIMEOUT, at, instrument, scope, f"no end after {deadline_s:g} s. {tail}".strip())
        text = _read(output.fileno(), MAX_OUTPUT)
    return Value(CommandOutput(process.returncode, text, tail), at, instrument, scope)


async def _wait(process: subprocess.Popen[bytes], output: int, deadline_s: float, term_s: float) -> bool:
    """Whether it ended by itself in time, without flooding the disk. Polls: most probes take milliseconds."""
    loop = asyncio.get_running_loop()
    began, asked, pause = loop.time(), False, 0.001
    while process.poll() is None:
        spent = loop.time() - began
        if spent >= deadline_s or os.fstat(output).st_size > MAX_OUTPUT:
            return False
        if not asked and spent >= deadline_s - term_s:
            asked = True
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGTERM)
        await asyncio.sleep(min(pause, max(0.0, deadline_s - spent)))
        pause = min(pause * 1.5, POLL_S)
    return not asked  # one that ended because it was told to gave no answer


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.poll() is None:
        _undead.append(process)


def _read(fd: int, limit: int, *, end: bool = False) -> str:
    size = os.fstat(fd).st_size
    return os.pread(fd, limit, max(0, size - limit) if end else 0).decode("utf-8", "replace").strip()
