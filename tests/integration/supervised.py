"""What the supervisor's tests share: attempts to start, and an observer that looks for members of a job in /proc.

The observer goes by a marker unique to each job, in the environment or the arguments of every process that the test
programs start. It asks the kernel, never the supervisor.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import struct
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenure.agent import adopt
from tenure.agent.control import Control
from tenure.agent.spawner import PROGRAM, Spawner, Started

PYTHON = (sys.executable, "-I", "-S", "-c")
DEADLINE_S = 20.0
SUBREAPER = Control("subreaper")

# Every test program gets this in front. `ready` tells the test that the tree stands; `lead` is how the leader goes on.
PRELUDE = """
import ctypes, os, signal, sys, time
MARK, NATURAL = sys.argv[1], sys.argv[2] == "natural"
LIBC = ctypes.CDLL(None)
def ignore():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
def forever():
    while True:
        time.sleep(1000)
def ready():
    os.write(1, b"ready\\n")
def lead():
    if NATURAL:
        sys.exit(7)
    forever()
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.001)
"""


@dataclass(frozen=True, slots=True)
class Running:
    """One attempt that was started."""

    folder: Path
    mark: str
    started: Started

    @property
    def exit_file(self) -> Path:
        return self.folder / "exit.json"

    @property
    def output(self) -> bytes:
        return (self.folder / "output.bin").read_bytes()

    def index(self) -> list[tuple[int, int, int, float]]:
        """The records of output.idx: offset, length, stream, time."""
        return list(struct.iter_unpack("<QIBxxxd", (self.folder / "output.idx").read_bytes()))

    def stream(self, wanted: int) -> bytes:
        """The bytes of one stream, put together by the index."""
        data = self.output
        return b"".join(data[at : at + length] for at, length, stream, _ in self.index() if stream == wanted)

    def handle(self) -> adopt.Handle:
        found = adopt.Handle.open(self.folder, self.started.pid, self.started.start_ticks)
        assert found is not None, "the supervisor is gone"
        return found

    def stop(self) -> bool:
        with self.handle() as handle:
            return handle.stop()

    def kill(self) -> bool:
        with self.handle() as handle:
            return handle.kill()

    async def ready(self) -> None:
        await until(lambda: b"ready\n" in self.output, f"{self.folder.name} got ready")

    async def ended(self, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """The exit record, at the first instant at which it can be seen."""
        await until(self.exit_file.exists, f"{self.folder.name} ended", deadline_s)
        record: dict[str, Any] = json.loads(self.exit_file.read_bytes())
        return record

    async def gone(self) -> dict[str, Any]:
        """The exit record, once the supervisor is gone too."""
        record = await self.ended()
        handle = adopt.Handle.open(self.folder, self.started.pid, self.started.start_ticks)
        if handle is not None:
            with handle:
                await asyncio.wait_for(handle.wait_gone(), DEADLINE_S)
        return record


class Floor:
    """Starts attempts under one kind of control (the subreaper where none is given), and ends whatever is left."""

    def __init__(self, root: Path, control: Control = SUBREAPER, program: Path = PROGRAM) -> None:
        self.root = root
        self.control = control
        self.spawner = Spawner(program)
        self.runs: list[Running] = []
        self._numbers = itertools.count(1)

    def prepare(self, argv: Sequence[str], **spec: Any) -> tuple[Path, str]:
        """An attempt's folder with its spec.json, and the job's marker."""
        job = f"j{next(self._numbers)}-{uuid.uuid4().hex[:8]}"
        mark = f"mark-{uuid.uuid4().hex}"
        folder = self.root / f"{job}.1"
        folder.mkdir()
        whole: dict[str, Any] = {
            "v": 1,
            "job": job,
            "attempt": 1,
            "argv": [mark if word == "MARK" else word for word in argv],
            "cwd": str(self.root),
            "env": {"PATH": os.environ["PATH"], "TENURE_TEST": mark, "RC_JOB_ID": job, "RC_ATTEMPT": "1"},
            "grace_s": 0.1,
            "control": self.control.kind,
            "cgroup_parent": self.control.parent,
            "nudge": None,
        }
        (folder / "spec.json").write_text(json.dumps(whole | spec))
        return folder, mark

    async def start(self, argv: Sequence[str], *, claims: Sequence[int] = (), **spec: Any) -> Running:
        folder, mark = self.prepare(argv, **spec)
        running = Running(folder, mark, await self.spawner.start(folder, claims))
        self.runs.append(running)
        return running

    async def python(self, code: str, *, natural: bool = False, **spec: Any) -> Running:
        """Starts a test program (with the prelude in front)."""
        return await self.start([*PYTHON, PRELUDE + code, "MARK", "natural" if natural else "on"], **spec)

    async def shell(self, script: str, **spec: Any) -> Running:
        return await self.start(["/bin/sh", "-c", script], **spec)

    async def close(self) -> None:
        """Kills what a failing test left, by the marker alone."""
        for run in self.runs:
            handle = adopt.Handle.open(run.folder, run.started.pid, run.started.start_ticks)
            if handle is not None:
                handle.kill()
                handle.close()
            for pid in alive(run.mark):
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    pass  # it ended first
        await self.spawner.close()


def alive(mark: str) -> list[int]:
    """The processes that carry the marker in their environment or arguments."""
    wanted = mark.encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        for name in ("cmdline", "environ"):
            try:
                fd = os.open(f"/proc/{entry.name}/{name}", os.O_RDONLY)
            except OSError:
                continue  # it ended, or is another user's: the test programs never change user
            try:
                if wanted in os.read(fd, 1 << 17):
                    found.append(int(entry.name))
                    break
            except OSError:
                pass  # it ended between open and read
            finally:
                os.close(fd)
    return found


async def tool(*argv: str | Path) -> None:
    """Runs a command of the system; fails where it fails."""
    await asyncio.to_thread(subprocess.run, argv, check=True, timeout=20)


async def until(true: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S, pause_s: float = 0.002) -> None:
    """Polls until the condition holds; fails at the deadline."""
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline_s
    while not true():
        assert loop.time() < end, f"not within {deadline_s:g} s: {what}"
        await asyncio.sleep(pause_s)
