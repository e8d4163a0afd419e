"""Attempts that run: making their supervisors, watching them, stopping them, and reading how they ended.

Each attempt has one task here from its acceptance to its end. The supervisor is watched three ways, because each can
fail alone: a pidfd (the process), a nudge (its datagram) and a poll (the exit record on disk). The exit record is the
truth; a supervisor that is gone without one is a lost attempt, whose survivors are ended before anything is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.agent import adopt, aftermath, beginning, folders, lost, scratch
from tenure.agent import records as r
from tenure.agent.beside import Beside
from tenure.agent.launch import spec_of
from tenure.agent.memory_ceilings import Unprotected
from tenure.agent.release import Traces
from tenure.agent.shipper import indexed_bytes
from tenure.agent.spawner import StartRefused, StartUnknown
from tenure.agent.waiting import until_set
from tenure.domain.job import Outcome
from tenure.durable import LogFailed, sync_dir
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.agent.sampler import JobSampler
    from tenure.agent.shell import Shell

log = logging.getLogger("tenure.agent.runs")

POLL_S = 1.0


@dataclass(slots=True)
class Run:
    """One attempt being watched. ``handle`` is its living supervisor once there is one; ``wake`` says look now;
    ``adopted``: an earlier agent started it; ``unasked``: nobody was asked to begin it, by this agent or another."""

    key: r.Key
    folder: Path
    handle: adopt.Handle | None = None
    leader: int | None = None
    started_at: float = 0.0
    adopted: bool = False
    unasked: bool = False
    sampler: JobSampler | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Runs:
    """All attempts being watched, by key."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self.live: dict[r.Key, Run] = {}

    def start(self, key: r.Key, *, fresh: bool = False) -> None:
        """Effect ``Spawn``: makes the supervisor of an accepted attempt and watches it to its end.

        ``fresh``: this very agent has just accepted it, so that nobody can have been asked to begin it before.
        """
        if key not in self.live:
            self._watch(Run(key, self._shell.layout.attempt(*key), unasked=fresh), self._start)

    def take_up(self, key: r.Key, found: adopt.Alive | adopt.Ended | adopt.Lost) -> None:
        """An attempt that an earlier agent started: watches it on, or reports how it ended."""
        run = Run(key, self._shell.layout.attempt(*key), adopted=True)

        async def adopted(run: Run) -> bool:
            await self._adopt(run, found)
            return True

        self._watch(run, adopted)

    def signal(self, key: r.Key) -> None:
        """Effect ``Signal``: tells the supervisor to end the whole tree. Again and again is fine."""
        run = self.live.get(key)
        if run is not None and run.handle is not None:  # not made yet: the core asks again once it is
            run.handle.stop()

    def nudge(self, key: r.Key) -> None:
        """The supervisor says that something is to be read."""
        run = self.live.get(key)
        if run is not None:
            run.wake.set()

    async def stop(self) -> None:
        """Ends the watching; the supervisors and their jobs go on."""
        tasks = [run.task for run in self.live.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- one life

    def _watch(self, run: Run, begin: Callable[[Run], Awaitable[bool]]) -> None:
        self.live[run.key] = run
        run.task = asyncio.create_task(self._whole_life(run, begin), name=f"run {run.key[0]}#{run.key[1]}")

    async def _whole_life(self, run: Run, begin: Callable[[Run], Awaitable[bool]]) -> None:
        try:
            if await begin(run):
                await self._begin_sampling(run)
                beside = Beside(self._shell, run)
                beside.start()
                try:
                    await self._until_gone(run)
                finally:
                    measured = await beside.stop()
                await self._finish(run, measured)
        except asyncio.CancelledError:
            raise
        except Exception:
            # A defect here must not end the others; the attempt stays in the journal and the next agent takes it up.
            log.exception("watching %s#%d failed", *run.key)
        finally:
            self.live.pop(run.key, None)
            self._let_go(run)

    def _let_go(self, run: Run) -> None:
        """Lets go of the supervisor and of the log of samples; both go on existing.

        The log is synced in a thread: the report of the end is about to go out and need not wait for it, as what is
        announced in it was made durable when it was announced.
        """
        if run.handle is not None:
            run.handle.close()
        if run.sampler is not None:
            self._shell.aside(asyncio.get_running_loop().run_in_executor(None, run.sampler.let_go()))

    async def _start(self, run: Run) -> bool:
        """A supervisor for an accepted attempt: a new one, or the one that is there already. False: nothing runs.

        Asking again is safe. A supervisor creates its record exclusively before it starts anything, so an attempt
        starts once, however often and by however many agents it was asked for.
        """
        shell, (job, number) = self._shell, run.key
        attempt = shell.state.attempts[run.key]
        await shell.discovered()
        devices = [shell.devices.by_uuid.get(grant.uuid) for grant in attempt.grants]
        fds = [device.claim.fd for device in devices if device is not None and device.claim is not None]
        if len(fds) < len(devices):
            await self._tell(r.NotStarted(job, number, "a device of it is not claimed by this agent", run.unasked))
            return False
        try:
            await self._prepare(attempt, run.folder)
            # The folder's name is made durable beside the work: without it a power cut could take the exit record.
            shell.aside(asyncio.to_thread(sync_dir, run.folder.parent))
            attempt = shell.state.attempts[run.key]
            unready = await beginning.make_ready(shell, attempt, run.folder) if attempt.stop is None else None
            if unready is not None:
                return await self._not_begun(run, unready)
            attempt = shell.state.attempts[run.key]
            if attempt.stop is not None:  # it came while the devices were still being found
                return await self._examine(run, attempt.stop)
            run.unasked = False
            started = await shell.spawner.start(run.folder, fds)
        except OSError as error:
            await self._tell(r.NotStarted(job, number, f"its folder cannot be made: {error}", run.unasked))
            return False
        except (StartRefused, StartUnknown, Unprotected) as error:
            return await self._examine(run, error.message)
        run.handle = adopt.Handle.open(run.folder, started.pid, started.start_ticks)
        await self._announce(run, (started.pid, started.start_ticks), started.leader_pid)
        return True

    async def _prepare(self, attempt: r.Attempt, folder: Path) -> None:
        """The attempt's folder with what the supervisor reads there, and its scratch."""
        shell = self._shell
        assert attempt.spec is not None
        folders.make(folder)  # before anything that can refuse the start: the refusal is proved by a seal in it
        ceiling = await asyncio.to_thread(shell.memory_ceilings.make, attempt.key) if shell.memory_ceilings.on else {}
        place, why = await scratch.choose(shell, attempt, folder)
        folders.prepare(folder, spec_of(shell, attempt, place) | ceiling, place, keep=attempt.spec.keep, why=why)
        if why:
            words = f"its scratch lies in {place}: {why}"
            facts = {"path": str(place), "why": why}
            notice = {"kind": "scratch_aside", "words": words, "utc": time.time(), "facts": facts}
            await self._tell(r.Noticed(*attempt.key, notice))

    async def _not_begun(self, run: Run, outcome: Outcome) -> bool:
        """The command must not be started: the folder is sealed, so that nobody ever starts it, and that is its end."""
        found = await asyncio.to_thread(adopt.examine, run.folder)
        if not (isinstance(found, adopt.Lost) and found.reason == "never_started"):
            await self._adopt(run, found)  # an earlier request had begun it after all
            return True
        await asyncio.to_thread(folders.write_not_begun, run.folder, outcome)
        attempt = self._shell.state.attempts[run.key]
        proofs = await self._shell.prover.at_once(attempt, Traces(), "nothing of it was started")
        await self._tell(r.Ended(*run.key, outcome, 0, proofs))
        return False

    async def _examine(self, run: Run, why: str) -> bool:
        """No clear yes from the spawner, or a stop before it: the folder tells, sealed where nothing has begun."""
        found = await asyncio.to_thread(adopt.examine, run.folder)
        if isinstance(found, adopt.Lost) and found.reason in ("never_started", "unreadable"):
            await self._tell(r.NotStarted(*run.key, why))
            return False
        await self._adopt(run, found)
        return True

    async def _adopt(self, run: Run, found: adopt.Alive | adopt.Ended | adopt.Lost) -> None:
        run.started_at = time.monotonic()
        if not isinstance(found, adopt.Alive):
            executed = not isinstance(found, adopt.Ended) or found.record.get("kind") != "spawn_failed"
            if found.identity is not None and executed:
                # It may have begun and ended with nobody to tell of either: the record is to show that it ran, and as
                # which process. Told twice it changes nothing.
                supervisor = (found.identity.pid, found.identity.start_ticks)
                await self._announce(run, supervisor, found.identity.leader_pid)
            return
        run.handle, identity = found.handle, found.identity
        leader = identity.leader_pid
        for _ in range(20):  # it may be between its first record and the start of the command
            if leader is not None or (run.folder / "exit.json").exists():
                break
            await asyncio.sleep(0.05)
            again = await asyncio.to_thread(adopt.examine, run.folder)
            if isinstance(again, adopt.Alive):
                leader = again.identity.leader_pid
                again.handle.close()
        await self._announce(run, (identity.pid, identity.start_ticks), leader)
        attempt = self._shell.state.attempts.get(run.key)
        if attempt is not None and attempt.stop is not None:
            self.signal(run.key)

    async def _announce(self, run: Run, supervisor: tuple[int, int], leader: int | None) -> None:
        """Tells that the command runs. One that could not be executed has no pid: its exit record tells of it."""
        run.started_at, run.leader = time.monotonic(), leader
        if leader is not None:
            evidence = str(run.folder / "samples.log") if self._gpus(run) else ""
            await self._tell(r.Started(*run.key, supervisor, leader, evidence))

    # -- watching

    async def _until_gone(self, run: Run) -> None:
        """Returns once there is an exit record, or the supervisor is gone without one."""
        if run.handle is None:
            return
        gone = asyncio.create_task(run.handle.wait_gone())
        gone.add_done_callback(lambda _: run.wake.set())
        try:
            while not gone.done() and not (run.folder / "exit.json").exists():
                run.wake.clear()
                if not gone.done():
                    await until_set(run.wake, POLL_S)
        finally:
            gone.cancel()

    async def _finish(self, run: Run, measured: Mapping[str, Any]) -> None:
        """The end: one report that carries outcome, proofs and use, as far as they are to be had at once."""
        shell, (job, number) = self._shell, run.key
        attempt = shell.state.attempts.get(run.key)
        if attempt is None or attempt.phase == "ended":
            return
        record, why = None, ""
        try:
            record = folders.read_exit(run.folder)
        except (OSError, ValueError) as error:
            why = f"its exit record cannot be read: {error}"
        if record is not None:
            outcome, size = folders.outcome_of(record, attempt.stop), int(record["output_bytes"])
            tree = "process tree empty (its supervisor's exit record)"
            proofs = await shell.prover.at_once(attempt, self.traces(run), tree)
        else:
            outcome = await self._lost(attempt, why)
            size, proofs = indexed_bytes(run.folder), {}
        outcome = await aftermath.told(shell, run, replace(outcome, stats={**outcome.stats, **measured}))
        use = None
        if run.sampler is not None:
            use = run.sampler.final(_monotonic(record))
        shell.prover.remember(run.key, self.traces(run))
        if record is not None and scratch.is_kept(run.folder):
            outcome = replace(outcome, stats={**outcome.stats, "scratch": str(scratch.place_of(run.folder))})
        await self._tell(r.Ended(job, number, outcome, size, proofs, use))
        if record is not None:  # nothing of the tree is alive, and everything that waits for the end was told
            shell.aside(asyncio.to_thread(scratch.finish, run.folder))
        shell.connection.output_ready()
        with contextlib.suppress(LogFailed):  # the next acknowledgement says it again
            shell.settle_output(run.key)

    async def _lost(self, attempt: r.Attempt, why: str) -> Outcome:
        """Names the end of an attempt whose supervisor is gone, after ending what it may have left behind."""
        return await lost.settle(self._shell, attempt, why)

    def traces(self, run: Run) -> Traces:
        """The pids known to have been the attempt's."""
        pids = set(run.sampler.pids) if run.sampler is not None else set()
        return Traces(frozenset(pids | ({run.leader} if run.leader is not None else set())))

    # -- sampling

    def _gpus(self, run: Run) -> dict[str, str]:
        """UUID -> name of the attempt's devices that an instrument can be asked about, or should be.

        One that this agent has not found is among them: it was leased as a GPU, since a CPU is always found. What it is
        doing is unknown then, and has to be said.
        """
        attempt = self._shell.state.attempts.get(run.key)
        found = {}
        for grant in attempt.grants if attempt is not None else ():
            device = self._shell.devices.by_uuid.get(grant.uuid)
            if (device is None and not grant.uuid.startswith("CPU-")) or (device and device.probe is not None):
                found[grant.uuid] = grant.device
        return found

    async def _begin_sampling(self, run: Run) -> None:
        await self._shell.discovered()
        gpus = self._gpus(run)
        if not gpus:
            return
        from tenure.agent.sampler import JobSampler, period_from  # only for a GPU: a CPU job need not wait for it

        attempt = self._shell.state.attempts[run.key]
        window = attempt.spec.window if attempt.spec is not None else {}
        period_s = period_from(window, self._shell.options.sample_every_s)
        sampler = JobSampler(run.folder / "samples.log", gpus, period_s=period_s)
        try:
            resumed = await asyncio.to_thread(sampler.resume)
        except (OSError, TenureError, ValueError) as error:
            resumed, sampler.trouble = False, f"earlier samples cannot be read: {error}"
        try:
            if not resumed:
                baselines = {uuid: self._shell.baseline_of(uuid) for uuid in gpus}
                sampler.begin(started_at=run.started_at, baselines=baselines, window=window)
        except (OSError, TenureError) as error:
            sampler.trouble = f"samples cannot be kept: {error}"
        if sampler.trouble:
            log.error("%s#%d: %s", *run.key, sampler.trouble)
        run.sampler = sampler
        self._shell.monitor.hurry()

    # -- telling the core

    async def _tell(self, message: r.Message) -> None:
        """Tells the core; where the journal's disk is full, again until there is room: nothing may be forgotten."""
        while True:
            try:
                return self._shell.tell(message)
            except LogFailed as error:
                if not error.usable:
                    raise
                log.error("%s", error)
                await asyncio.sleep(1.0)


def _monotonic(record: Mapping[str, Any] | None) -> float:
    """When an attempt ended, on this clock: its exit record labels it in UTC; without one it is over just now."""
    now = time.monotonic()
    ended_at = (record or {}).get("ended_at")
    if not isinstance(ended_at, int | float):
        return now
    return now - max(0.0, time.time() - ended_at)
