"""The controller as one object: the writer over the ledger, the outputs, the agents' links and the feed.

Routes parse, call one method here, and render. Nothing is told to anyone before it is committed: ``on_committed`` is
the only place from which instructions go out and watchers are woken.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tenure import __version__
from tenure.controller.auth import user_of
from tenure.controller.feed import EVENTS, Feed
from tenure.controller.left import LeftStore
from tenure.controller.links import Links
from tenure.controller.logs import Log
from tenure.controller.outputs import OutputStore
from tenure.controller.settings import Settings
from tenure.controller.stages import StageStore
from tenure.controller.tokens import Tokens
from tenure.controller.views import DeviceTexts
from tenure.domain import commands as cmd
from tenure.domain import events as ev
from tenure.domain.device import Device
from tenure.domain.fleet import Outcomes
from tenure.domain.job import Job, JobState, Lease
from tenure.domain.state import FleetState
from tenure.errors import TenureError
from tenure.ledger import Committed, Ledger, Result, Writer
from tenure.paths import Layout

if TYPE_CHECKING:
    from tenure.controller.listening import Served

log = Log("tenure.controller")

#: Jobs that are over and were watched to their end, kept for those who watched.
OVER_KEPT = 64


class Controller:
    """Everything a route or a loop may use.

    ``deadlines`` are (job, seconds) for the loop that ends what waits too long; ``stop`` is set to make all of it end,
    and ``fatal`` is why it had to. ``agent_process`` is the embedded agent where this controller started it, and
    ``agent_failure`` the error with which the last one did not come up. ``served`` is how other hosts reach it,
    ``None`` where the local socket is all there is; then no token opens anything.
    """

    def __init__(self, layout: Layout, ledger: Ledger, mode: str) -> None:
        self.layout = layout
        self.settings = Settings.load(layout)
        self.mode = mode
        self.ledger = ledger
        self.feed = Feed()
        self.links = Links()
        self.tokens = Tokens(layout.tokens)
        self.served: Served | None = None
        self.outputs = OutputStore(layout, self.feed.notify)
        self.left = LeftStore(layout.controller / "leftovers")
        self.stages = StageStore(layout.stages, limit_bytes=self.settings.stage_limit_bytes)
        self.writer = Writer(ledger, self._on_committed)
        self.started_at = time.time()
        self.user = user_of(os.getuid())
        self.version = __version__
        self.ignored_reports = 0
        self.deadlines: list[tuple[str, float]] = []
        self.shown = DeviceTexts()
        self.stop = asyncio.Event()
        self.fatal: TenureError | None = None
        self.agent_process: subprocess.Popen[bytes] | None = None
        self._over: dict[str, tuple[Job, list[Lease]]] = {}
        self._silent: dict[str, float] = {}
        self.agent_failure: dict[str, Any] | None = None

    @property
    def state(self) -> FleetState:
        """The fleet in memory. Await ``writer.settled()`` first: only then is all of it committed."""
        return self.writer.state

    def names(self) -> frozenset[str]:
        """The hosts under which it may be asked over TLS: its own, and those that some agent was told to dial."""
        if self.served is None:
            return frozenset()
        from tenure.controller.listening import split

        told = (address for token in self.tokens.all() for address in token.addresses)
        return self.served.names | {split(address)[0].lower() for address in told}

    async def start(self) -> None:
        """Begins to accept commands. Every agent is out of contact until it is heard (I9, I14)."""
        await self.writer.start()
        await self.execute(cmd.Begin())
        for job in self.state.jobs.values():
            if job.state is JobState.QUEUED and job.spec.queue_timeout_s is not None:
                self.deadlines.append((job.id, job.spec.queue_timeout_s))

    async def close(self) -> None:
        """Stops accepting, makes everything durable and lets go of the files."""
        self.feed.close()
        for link in list(self.links.links.values()):
            link.close()
        await self.writer.close()
        await self.outputs.close()
        await self.left.close()
        self.ledger.close()

    def fail(self, error: TenureError) -> None:
        """Something that the controller cannot go on without is broken: it goes down, and says what it was."""
        if not self.stop.is_set():
            log.error("cannot_go_on", **error.to_dict())
            self.fatal = error
            self.stop.set()

    async def decide(self, command: cmd.Command) -> Result:
        """Decides and commits one command; raises the refusal as an error. Returns only after the commit."""
        try:
            result = await self.writer.submit(command)
        except TenureError as error:
            if error.code in ("already_running", "controller_unreachable"):
                self.fail(error)  # somebody else writes, or the writer has ended: nothing can be decided here any more
            raise
        if result.outcomes.refusal is not None:
            raise TenureError.from_refusal(result.outcomes.refusal)
        if result.outcomes.ignored:
            self.ignored_reports += 1
        return result

    async def execute(self, command: cmd.Command) -> Outcomes:
        """``decide``, for those who want only what came of it."""
        return (await self.decide(command)).outcomes

    def _on_committed(self, batch: Sequence[Committed]) -> None:
        topics: set[str] = set()
        for committed in batch:
            for agent, told in committed.instructions:
                self.links.tell(agent, told)
            for event in committed.outcomes.events:
                job = getattr(event, "job", None)
                if job is not None:
                    topics.add(job)
                if isinstance(event, ev.JobSubmitted) and event.spec.get("queue_timeout_s") is not None:
                    self.deadlines.append((event.job, float(event.spec["queue_timeout_s"])))
                if isinstance(event, ev.JobEnded):
                    self.outputs.forget(event.job)
                if isinstance(event, ev.ContactLost):
                    self._silent[event.agent] = time.monotonic() - event.silent_s
                if isinstance(event, ev.AgentRegistered):
                    self._silent.pop(event.agent, None)
        if topics or any(committed.outcomes.events for committed in batch):
            topics.add(EVENTS)
        self._keep_over()
        for topic in topics:
            self.feed.notify(topic)

    def _keep_over(self) -> None:
        """Keeps the jobs that were just closed for those who watch them, and who would all read them from the ledger.

        A closed job and its released leases are committed here and never change again, so this copy cannot go stale.
        """
        state = self.state
        for job in state.closed.values():
            leases = [state.released[lease] for lease in job.leases if lease in state.released]
            if self.feed.watched(job.id) and len(leases) == len(job.leases):
                self._over[job.id] = job, leases
        while len(self._over) > OVER_KEPT:
            del self._over[next(iter(self._over))]

    async def job(self, name: str) -> Job:
        """A job by its id or an unambiguous beginning of it, open or closed. Leaves memory settled."""
        await self.writer.settled()
        found = self.state.jobs.get(name)
        if found is None:
            found = self._over[name][0] if name in self._over else self.ledger.job(name)
        if found is not None:
            return found
        matches = self.ledger.jobs_by_prefix(name, 3) if name else []
        if len(matches) == 1:
            return self.state.jobs.get(matches[0].id) or matches[0]
        if matches:
            listed = ", ".join(job.id for job in matches)
            raise TenureError(
                "ambiguous_job", f"more than one job begins with {name!r}: {listed}", do="give more of it"
            )
        raise TenureError("unknown_job", f"there is no job {name!r}", do="list them with: rc jobs")

    def silence(self, device: Device) -> float | None:
        """For how many seconds nothing has been heard of a device's agent, by a clock that nobody sets. None while it
        is in contact, and where an earlier controller lost it: of that only the ledger knows, by the wall clock."""
        if device.contact:
            return None
        since = self._silent.get(device.agent)
        return None if since is None else time.monotonic() - since

    def leases(self, job: Job) -> list[Lease]:
        """The leases of a job's current attempt: live ones from memory, released ones from the ledger."""
        if job.id in self._over:
            return self._over[job.id][1]
        live = [self.state.leases[lease] for lease in job.leases if lease in self.state.leases]
        return live if len(live) == len(job.leases) else self.ledger.leases_of(job.id, job.attempt)

    def running(self) -> list[Job]:
        """The jobs that are on a device now."""
        waiting = (JobState.QUEUED, JobState.ENDED)
        return [job for job in self.state.jobs.values() if job.state not in waiting]
