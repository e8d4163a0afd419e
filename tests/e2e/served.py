"""A house whose controller runs in a thread of the test, so that the test sees what it hears and when.

The controller, its socket and ledger are the real ones, and so are the agent (a process of its own) and ``rc``. Only
there can be measured how long the controller went without a frame of its agent.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.e2e.conftest import House, until

from tenure.controller.app import serve
from tenure.controller.service import Controller
from tenure.ledger import Ledger
from tenure.paths import Layout, bind_unix
from tenure.testing.nvml import Scenario

LOOK_S = 0.01


@asynccontextmanager
async def serving(paths: Layout) -> AsyncIterator[Controller]:
    """A controller on a home's own socket, where ``rc`` finds it, until the block ends."""
    paths.create()
    service = Controller(paths, Ledger.open(paths.ledger_db), "serve")
    listening = bind_unix(paths.ctl_sock)
    listening.listen(128)
    task = asyncio.create_task(serve(service, listening, embedded=False))
    try:
        yield service
    finally:
        service.stop.set()
        await task


class Served:
    """The controller and the agent of a house.

    ``gaps``: between two frames of the agent, in seconds, also where it came in anew between them, as it does by itself
    when what it has to offer changed.
    """

    def __init__(self, house: House, sim: str, claims: Path) -> None:
        self.house = house
        self.gaps: list[float] = []
        self.frames = 0
        self._away = False
        self._over = threading.Event()
        self._up = threading.Event()
        self._failed: BaseException | None = None
        claims.mkdir()
        settings = {"claims_dir": str(claims), "restart_controller": False}
        house.paths.root.mkdir(parents=True, exist_ok=True)
        (house.paths.root / "embedded.json").write_text(json.dumps({"sim": sim, "agent": settings}))
        Scenario.create(house.paths.sim_scenario, sim)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._up.wait(60), self._failed
        self.agent: subprocess.Popen[bytes] | None = None

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failed = error
            self._up.set()

    async def _serve(self) -> None:
        heard: dict[str, float] = {}
        async with serving(self.house.paths) as service:
            self._up.set()
            while not self._over.is_set():
                for agent, link in service.links.links.items():
                    last = heard.get(agent)
                    if link.welcomed and link.heard_at != last:
                        if last is not None and not self._away:
                            self.gaps.append(link.heard_at - last)
                        heard[agent], self._away = link.heard_at, False
                        self.frames += 1
                await asyncio.sleep(LOOK_S)

    def start_agent(self) -> None:
        """Starts an agent and waits until it has come in."""
        with self.house.paths.agent_log.open("ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "tenure.agent"],
                env={k: v for k, v in self.house.env.items() if not k.startswith("RC_")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        frames = self.frames
        until(lambda: self.frames > frames, "the agent came in", 60)

    def kill_agent(self) -> None:
        """SIGKILL, and its end."""
        assert self.agent is not None
        os.kill(self.agent.pid, signal.SIGKILL)
        self.agent.wait(20)
        self._away = True  # what follows is the time it takes to start another

    def close(self) -> None:
        """Ends the jobs, the agent and the controller."""
        for job in self.house._open_jobs():
            self.house.rc("kill", job, "--wait", timeout=30)
        if self.agent is not None and self.agent.poll() is None:
            self.agent.terminate()
            self.agent.wait(30)
        self._over.set()
        self._thread.join(30)
        assert self._failed is None, self._failed
