"""Controller, agent and supervisor with a time noted at every hop of a start: ``python -m bench.traced controller``.

The product has no hook for this and pays nothing for it: the functions are wrapped here, in these processes alone.
Each hop is one line "monotonic-nanoseconds name", appended with one write, to the file that ``FILE_VARIABLE`` names.
"""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE_VARIABLE = "TENURE_BENCH_HOPS"
SUPERVISOR_VARIABLE = "TENURE_BENCH_SUPERVISOR"

#: The supervisor is run without this package and without an environment: it gets a program of its own, made of this.
SUPERVISOR = """
import os, time
fd = os.open({file!r}, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
def mark(name):
    os.write(fd, b"%d %s\\n" % (time.monotonic_ns(), name.encode()))
def wrap(owner, name, before="", after=""):
    inner = getattr(owner, name)
    def outer(*args, **named):
        if before:
            mark(before)
        try:
            return inner(*args, **named)
        finally:
            if after:
                mark(after)
    setattr(owner, name, outer)
class Module:
    def __init__(self, names):
        self.__dict__ = names
names = {{"__name__": "supervisor"}}
exec(compile(open({source!r}).read(), {source!r}, "exec"), names)
module = Module(names)
wrap(names["Attempt"], "begin", "supervisor: has the request", "supervisor: attempt begun")
wrap(names["Attempt"], "become_command", "supervisor: child forked")
wrap(os, "mkdir", after="supervisor: cgroup made")
wrap(os, "execvpe", "supervisor: calls exec")
wrap(module, "reply", "supervisor: answers")
wrap(names["Output"], "finish", "supervisor: tree empty", "supervisor: output synced")
wrap(module, "write_exit", after="supervisor: exit record synced")
names["serve"]()
"""


def supervisor_program(path: Path, hops: Path) -> None:
    """Writes the traced supervisor."""
    from tenure.agent.spawner import PROGRAM

    path.write_text(SUPERVISOR.format(file=str(hops), source=str(PROGRAM)))


class Marks:
    """The open file of hops."""

    def __init__(self) -> None:
        self._fd = os.open(os.environ[FILE_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def mark(self, name: str) -> None:
        """One hop, now."""
        os.write(self._fd, b"%d %s\n" % (time.monotonic_ns(), name.encode()))

    def wrap(self, owner: Any, name: str, before: Callable[..., str], after: Callable[..., str]) -> None:
        """Marks the beginning and the end of a function or coroutine; each is given its arguments and gives the name
        of the hop, or nothing where this call is none."""
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def outer(*args: Any, **named: Any) -> Any:
            self._said(before(*args))
            result = inner(*args, **named)
            self._said(after(*args))
            return result

        @functools.wraps(inner)
        async def outer_coroutine(*args: Any, **named: Any) -> Any:
            self._said(before(*args))
            result = await inner(*args, **named)
            self._said(after(*args))
            return result

        setattr(owner, name, outer_coroutine if asyncio.iscoroutinefunction(inner) else outer)

    def _said(self, name: str) -> None:
        if name:
            self.mark(name)


def nothing(*args: Any) -> str:
    """No hop."""
    return ""


def always(name: str) -> Callable[..., str]:
    """A hop at every call."""
    return lambda *args: name


def trace_controller(marks: Marks) -> None:
    """Hops of the controller; its agent is started traced too."""
    from starlette.websockets import WebSocket

    from tenure.controller.guard import Guard
    from tenure.controller.links import Links
    from tenure.controller.loops import keeper
    from tenure.domain import commands as cmd
    from tenure.domain.instructions import StartJob
    from tenure.ledger.store import Ledger
    from tenure.ledger.writer import Writer

    def posted(guard: Any, scope: Any, *rest: Any) -> str:
        found = scope.get("method") == "POST" and scope.get("path") == "/v1/jobs"
        return "controller: has the request" if found else ""

    def handed(writer: Any, command: Any) -> str:
        kinds = {cmd.Submit: "controller: request read", cmd.ReportEnded: "controller: report of the end read"}
        return kinds.get(type(command), "")

    def answered(writer: Any, command: Any) -> str:
        kinds = {cmd.Submit: "controller: writer answered", cmd.ReportEnded: "controller: end committed, device free"}
        return kinds.get(type(command), "")

    def submitted(of: str) -> Callable[..., str]:
        return lambda ledger, events, *rest: of if any(type(e).__name__ == "JobSubmitted" for e in events) else ""

    def decided(writer: Any, batch: Any) -> str:
        return "controller: decided" if any(isinstance(each.command, cmd.Submit) for each in batch) else ""

    def told(links: Any, agent: str, instruction: Any) -> str:
        return "controller: start queued for the agent" if isinstance(instruction, StartJob) else ""

    def sent(socket: Any, text: str) -> str:
        return "controller: start sent" if text.startswith('{"type":"start"') else ""

    # Not its __call__: the server tries whether the application can be called with nothing, which a wrapper can.
    marks.wrap(Guard, "_body", posted, nothing)
    marks.wrap(Writer, "submit", handed, answered)
    marks.wrap(Writer, "_decide", nothing, decided)
    marks.wrap(Ledger, "write", submitted("controller: commit begun"), submitted("controller: committed"))
    marks.wrap(Links, "tell", nothing, told)
    marks.wrap(WebSocket, "send_text", nothing, sent)

    def start_agent(layout: Any) -> subprocess.Popen[bytes]:
        with layout.agent_log.open("ab") as out:
            command = [sys.executable, "-m", "bench.traced", "agent"]
            env = {**os.environ, "TENURE_HOME": str(layout.home)}
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", env=env, start_new_session=True
            )

    keeper.start_agent = start_agent


def trace_agent(marks: Marks) -> None:
    """Hops of the agent; its supervisors are traced too."""
    from tenure.agent import folders
    from tenure.agent.journal import Journal
    from tenure.agent.prover import Prover
    from tenure.agent.runs import Runs
    from tenure.agent.shell import Shell
    from tenure.agent.spawner import Spawner

    def received(shell: Any, frame: dict[str, Any]) -> str:
        return "agent: has the start" if frame.get("type") == "start" else ""

    def journaled(suffix: str) -> Callable[..., str]:
        names = {"AttemptAccepted": "start", "SupervisorMade": "process", "AttemptEnded": "end"}

        def name(journal: Any, events: Any) -> str:
            found = [names[type(event).__name__] for event in events if type(event).__name__ in names]
            return f"agent: {found[0]} {suffix}" if found else ""

        return name

    marks.wrap(Shell, "received", received, nothing)
    marks.wrap(Journal, "record", journaled("decided"), journaled("journaled and synced"))
    marks.wrap(folders, "prepare", nothing, always("agent: folder prepared"))
    marks.wrap(Spawner, "_send", always("agent: asks the spawner"), nothing)
    marks.wrap(Spawner, "_receive", always("agent: has the spawner's answer"), nothing)
    marks.wrap(Runs, "_finish", always("agent: looks at the end"), nothing)
    marks.wrap(Prover, "at_once", nothing, always("agent: device proved empty"))
    Spawner.__init__.__defaults__ = (Path(os.environ[SUPERVISOR_VARIABLE]),)


def main() -> int:
    """Runs the product's own program of that name, wrapped."""
    marks = Marks()
    if sys.argv[1:] == ["controller"]:
        from tenure.controller.__main__ import main as controller

        trace_controller(marks)
        return controller(["--embedded"])
    from tenure.agent.__main__ import main as agent

    trace_agent(marks)
    return agent([])


if __name__ == "__main__":
    sys.exit(main())
