"""What the tests of the agent share: a tiny controller on a real Unix socket, and real agents in homes of their own.

The controller knows no rules. It says what a test tells it to say, keeps what it is told, and acknowledges it unless
the test wants it to be silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection, serve

from tenure.domain.instructions import Grant, Instruction, StartJob, StopJob
from tenure.domain.job import JobSpec
from tenure.paths import Layout, bind_unix
from tenure.testing.nvml import Scenario, install
from tenure.wire import frames

SHORT = {"sample_every_s": 0.1, "watch_every_s": 0.1, "beat_every_s": 0.2, "settle_s": 0.6, "leftovers": False}


async def until(condition: Callable[[], Any], timeout_s: float = 15.0, what: str = "") -> Any:
    """Polls until the condition holds, and gives what it gave."""
    end = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"waited {timeout_s} s in vain{': ' + what if what else ''}"
        await asyncio.sleep(0.002)


@dataclass
class FakeController:
    """One controller's end. ``reports`` in order of arrival, ``output`` put together by offset."""

    path: Path
    registers: list[dict[str, Any]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    output: dict[tuple[str, int], bytearray] = field(default_factory=dict)
    runs: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)
    beats: int = 0
    told_before: int = 0
    acknowledge: bool = True
    acknowledge_output: bool = True
    gaps: list[str] = field(default_factory=list)
    links: list[ServerConnection] = field(default_factory=list)
    left: list[dict[str, Any]] = field(default_factory=list)
    on_hello: Callable[[], list[Instruction]] = list
    #: What the welcome says; ``floors``: a beginning of a UUID -> the floor of every device whose UUID begins so.
    welcome: dict[str, Any] = field(
        default_factory=lambda: {"type": "welcome", "wire": frames.WIRE, "controller": "tester"}
    )
    floors: dict[str, int] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeController]:
        """Listens while inside; the links are cut on the way out."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        listening = bind_unix(self.path)
        async with serve(self._link, sock=listening, compression=None, max_size=None) as server:
            yield self
            for link in self.links:
                link.transport.abort()
            server.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    async def _link(self, link: ServerConnection) -> None:
        hello = frames.loads(await link.recv())
        assert hello["type"] == "hello"
        frames.check_wire(hello["wire"])
        await link.send(frames.dumps({**self.welcome, "floors": self._floors(hello)}))
        for told in self.on_hello():
            await link.send(frames.instruction(told))
        self.registers.append(hello["register"])
        self.told_before = len(self.reports)
        self.links.append(link)
        try:
            async for message in link:
                await self._take(link, message)
        except Exception:  # a cut link ends in many ways
            pass
        finally:
            self.links.remove(link)

    def _floors(self, hello: dict[str, Any]) -> dict[str, int]:
        uuids = [device["uuid"] for device in hello["register"]["devices"]]
        return {uuid: floor for start, floor in self.floors.items() for uuid in uuids if uuid.startswith(start)}

    async def _take(self, link: ServerConnection, message: str | bytes) -> None:
        if isinstance(message, bytes):
            await self._take_output(link, frames.OutputChunk.from_bytes(message))
            return
        frame = frames.loads(message)
        if frame["type"] == "beat":
            self.beats += 1
        elif frame["type"] == "left":
            self.left.append(frame["body"])
        elif frame["type"] == "report":
            frames.read_report(frame, "a")  # must be a report that the real controller can read
            self.reports.append(frame)
            if frame["seq"] and self.acknowledge:
                await link.send(frames.dumps({"type": "ack", "seq": frame["seq"]}))

    async def _take_output(self, link: ServerConnection, chunk: frames.OutputChunk) -> None:
        key = (chunk.job, chunk.attempt)
        held = self.output.setdefault(key, bytearray())
        if chunk.offset > len(held):
            self.gaps.append(f"{key}: {chunk.offset} after {len(held)}")
            return
        overlap = held[chunk.offset : chunk.offset + len(chunk.data)]
        assert chunk.data[: len(overlap)] == bytes(overlap), "bytes sent again differ"
        held += chunk.data[len(overlap) :]
        if not overlap:
            self.runs.setdefault(key, []).extend((stream, length) for stream, length, _ in chunk.runs)
        if self.acknowledge_output:
            body = {"type": "output_ack", "job": chunk.job, "attempt": chunk.attempt, "offset": len(held)}
            await link.send(frames.dumps(body))

    async def tell(self, told: Instruction) -> None:
        """Sends an instruction on the newest link."""
        await self.links[-1].send(frames.instruction(told))

    def of(self, kind: str, job: str | None = None) -> list[dict[str, Any]]:
        """The bodies of the reports of a kind, in order of arrival."""
        return [
            report["body"]
            for report in self.reports
            if report["kind"] == kind and (job is None or report["body"].get("job") == job)
        ]

    async def wait(self, kind: str, job: str | None = None, timeout_s: float = 15.0) -> dict[str, Any]:
        """The first report of a kind."""
        found: dict[str, Any] = (await until(lambda: self.of(kind, job), timeout_s, f"{kind} of {job}"))[0]
        return found

    def proofs(self, device: str = "h:cpu0", job: str | None = None) -> list[dict[str, Any]]:
        """What was told of a device after an attempt's end, in order of arrival."""
        kinds = ("ended", "refused", "proof")
        told = [report["body"] for report in self.reports if report["kind"] in kinds]
        return [
            body["proofs"][device] for body in told if body["job"] == (job or body["job"]) and device in body["proofs"]
        ]

    async def proved(self, device: str = "h:cpu0", job: str | None = None, timeout_s: float = 15.0) -> dict[str, Any]:
        """Waits until a device is proved empty of an attempt; gives the proof."""

        def found() -> dict[str, Any] | None:
            return next((p for p in self.proofs(device, job) if p["outcome"] in ("clear", "occupied")), None)

        proof: dict[str, Any] = await until(found, timeout_s, f"a proof for {device}")
        return proof

    async def connected(self, timeout_s: float = 15.0) -> dict[str, Any]:
        """Waits for a link; gives what the agent registered with last."""
        await until(lambda: self.links, timeout_s, "a connection")
        return self.registers[-1]

    def device(self, name: str) -> dict[str, Any]:
        """A device as registered last, with the condition reported last."""
        found = next(d for d in self.registers[-1]["devices"] if d["name"].endswith(f":{name}"))
        later = self.reports[self.told_before :]
        bodies = [report["body"] for report in later if report["kind"] == "device"]
        seen = [body["condition"] for body in bodies if body["device"] == found["name"]]
        return {**found, "condition": seen[-1] if seen else found["condition"]}


@dataclass
class Host:
    """A home with an agent in it that can be killed and started again."""

    layout: Layout
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def make(cls, root: Path, *, sim: str = "", **agent: Any) -> Host:
        """A fresh home. ``sim``: simulated devices, such as ``2xH100``; other words are settings of the agent."""
        layout = Layout(root / "home", _machine())
        layout.create()
        settings = {**SHORT, "restart_controller": False, "host": "h", "claims_dir": str(_claims(root)), **agent}
        body = {"sim": sim or None, "agent": settings}
        (layout.root / "embedded.json").write_text(json.dumps(body))
        if sim:
            install(layout.sim, sim)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TENURE_", "RC_", "CUDA_"))}
        return cls(layout, {**env, "TENURE_HOME": str(layout.home)})

    @property
    def scenario(self) -> Scenario:
        """What the simulated devices answer from."""
        return Scenario(self.layout.sim_scenario)

    def start(self) -> int:
        """Starts an agent; gives its pid."""
        with self.layout.agent_log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tenure.agent", "--verbose"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd="/",
                env=self.environment,
                start_new_session=True,
            )
        return self.process.pid

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Ends the agent with a signal and gives its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(20)

    def log(self) -> str:
        """What the agents of this home logged."""
        return self.layout.agent_log.read_text(errors="replace")

    def close(self) -> None:
        """Ends the agent and every supervisor that is left, and waits until they are gone."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for folder in self.layout.attempts.iterdir():
            for pid in self._supervisor(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
                end = time.monotonic() + 5
                while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
                    time.sleep(0.005)

    def _supervisor(self, folder: Path) -> Iterator[int]:
        with contextlib.suppress(OSError, ValueError, KeyError):
            if not (folder / "exit.json").exists():
                body = json.loads((folder / "supervisor.json").read_text())
                if Path(f"/proc/{body['pid']}/comm").read_text().startswith("tenure"):
                    yield int(body["pid"])


def _claims(root: Path) -> Path:
    folder = root / "claims"
    folder.mkdir(exist_ok=True)
    return folder


def _machine() -> str:
    from tenure.paths import machine_id

    return machine_id(Path("/nonexistent"))


class Job:
    """Instructions for one attempt of a job on some devices, tokens counting up."""

    def __init__(
        self, register: dict[str, Any], *names: str, job: str = "j1", attempt: int = 1, token: int = 1
    ) -> None:
        self.job, self.attempt = job, attempt
        found = [next(d for d in register["devices"] if d["name"].endswith(f":{name}")) for name in names]
        self.grants = tuple(Grant(d["name"], d["uuid"], token, f"l{d['name']}{token}") for d in found)

    def start(self, *argv: str, **spec: Any) -> StartJob:
        """The start of ``argv``."""
        return StartJob(self.job, self.attempt, "ann", self.grants, JobSpec(argv=argv, **spec))

    def shell(self, script: str, **spec: Any) -> StartJob:
        """The start of a shell script."""
        return self.start("/bin/sh", "-c", script, **spec)

    def stop(self, reason: str = "ann asked") -> StopJob:
        """The stop of it."""
        return StopJob(self.job, self.attempt, self.grants, reason)
