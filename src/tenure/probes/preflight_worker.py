"""The child that looks whether requirements are met: one thread for each, and an answer as soon as it is settled.

Run as ``python -I -S preflight_worker.py SOURCE-ROOT PROGRESS-FD PARENT-PID``: one request as a line of JSON on stdin,
then for each requirement lines ``{"n", "at"}`` (what is about to be done) and one ``{"n", "look"}`` on stdout.

Threads, because the looks are to go on side by side and most of them wait; one process, because a whole Python for
each of two hundred requirements would be a load of its own. A thread that is stuck in the kernel takes only itself
along: the parent waits for no answer beyond its deadline and then kills this process with its group. Where the parent
dies first, the end of stdin does the same.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

#: It ends by itself after so long, whatever became of its parent.
LAST_S = 60.0


def source_root() -> str:
    """The folder that holds the package, for a child that runs without ``site``."""
    from pathlib import Path

    return str(Path(__file__).parents[2])


def look(text: str, place: Any) -> dict[str, Any]:
    """One requirement, looked at, as plain data."""
    from tenure.domain.reading import Reason
    from tenure.domain.requirement import Kind, Look, Result, parse
    from tenure.probes import preflight_code, preflight_files, preflight_room
    from tenure.probes.preflight_place import CannotLook

    how: dict[Kind, Callable[..., Look]] = {
        Kind.TOOL: preflight_files.tool,
        Kind.FILE: preflight_files.file,
        Kind.LIBRARY: preflight_files.library,
        Kind.HEADER: preflight_code.header,
        Kind.PYTHON: preflight_code.python,
        Kind.MOUNT: preflight_room.mount,
        Kind.DISK: preflight_room.disk,
        Kind.MEMORY: preflight_room.memory,
    }
    need = parse(text)
    try:
        found = how[need.kind](need, place)
    except CannotLook as problem:
        found = Look(need, Result.COULD_NOT_LOOK, problem.words, problem.reason)
    except OSError as problem:
        cannot = CannotLook.of(str(problem.filename or need.canonical), problem)
        found = Look(need, Result.COULD_NOT_LOOK, cannot.words, cannot.reason)
    except Exception as defect:  # one look that fails must not keep the others from being told
        found = Look(need, Result.COULD_NOT_LOOK, f"the look itself failed: {defect!r}", Reason.UNPARSEABLE)
    return found.to()


def main(argv: list[str]) -> int:
    """Answers one request, then waits to be ended."""
    sys.path.append(argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # With vfork every thread would wait for a child that hangs in execve: the interpreter's lock is held across it.
    subprocess._USE_VFORK = False  # type: ignore[misc]
    from tenure.probes.preflight_place import Place

    out = os.dup(1)
    os.dup2(2, 1)
    writing = threading.Lock()

    def tell(body: dict[str, Any]) -> None:
        data = json.dumps(body).encode() + b"\n"
        with writing:
            while data:
                data = data[os.write(out, data) :]

    tell({"hello": True})
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1 << 16)
        if not chunk:
            return 0
        line += chunk
    request = json.loads(line)
    for number, text in enumerate(request["needs"]):

        def one(number: int = number, text: str = text) -> None:
            place = Place(**request["place"], at=lambda what: tell({"n": number, "at": what[:200]}))
            tell({"n": number, "look": look(text, place)})

        threading.Thread(target=one, daemon=True, name=text[:40]).start()
    select.select([0], [], [], LAST_S)  # readable: the parent closed its end, or died
    os.killpg(0, signal.SIGKILL)  # with everything that was started and has not ended
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
