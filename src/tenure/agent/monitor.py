"""The rounds: leased devices are sampled at their job's pace (every second, unless it asked for another), unleased ones
looked at every other second, all in one loop.

One round asks every due device once, between two readings of /proc, and hands the answers to the samplers (proof of
use) and to the watch (who else is there). What was decided meanwhile counts: a look at a device that was lent or
returned during the round is thrown away, so that a job is never taken for its own intruder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from tenure.agent import opened, watch
from tenure.agent import records as r
from tenure.agent.devices import AgentDevice
from tenure.agent.runs import Run
from tenure.agent.waiting import until_set
from tenure.domain.device import Condition
from tenure.domain.reading import Reading, Value
from tenure.durable import LogFailed
from tenure.errors import TenureError
from tenure.probes import proc
from tenure.probes.nvml_records import DeviceSample

if TYPE_CHECKING:
    from tenure.agent.sampler import JobSampler
    from tenure.agent.shell import Shell
    from tenure.domain.use import Handles

log = logging.getLogger("tenure.agent.monitor")

SYNC_EVERY_S = 1.5
#: A job that has just begun is first looked at this much later, together with all that begin meanwhile. A driver has no
#: context of it any earlier, and a storm of short jobs costs twenty rounds a second, not one (two scans of /proc) each.
GATHER_S = 0.05


class Monitor:
    """The sampling loop. ``hurry`` begins the next round soon: a job has just started, its first instant is due."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._hurry = asyncio.Event()
        self._watched_at = float("-inf")
        self._synced_at = 0.0
        self._claimed_at = 0.0
        self._opened_at = float("-inf")

    def hurry(self) -> None:
        """Does not wait for the next one that is due."""
        self._hurry.set()

    async def run(self) -> None:
        """Rounds until cancelled. A round that fails is logged and followed by the next."""
        while True:
            self._hurry.clear()
            try:
                await self._round(time.monotonic())
            except Exception as error:
                log.exception("a round of looks failed")
                self._could_not_look(error)
            if await until_set(self._hurry, self._rest()):
                await asyncio.sleep(GATHER_S)

    def _rest(self) -> float:
        """Seconds until the next round: until the earliest job's instant, never longer than the agent's own pace."""
        options, now = self._shell.options, time.monotonic()
        due = [run.sampler.due_at() for run in self._shell.runs.live.values() if run.sampler is not None and run.handle]
        rest = min([*due, now + options.sample_every_s, self._watched_at + options.watch_every_s]) - now
        return max(rest, 0.02)

    async def _round(self, now: float) -> None:
        shell = self._shell
        sampled = {run.key: run for run in shell.runs.live.values() if run.sampler is not None and run.handle}
        runs = {key: run for key, run in sampled.items() if run.sampler is not None and run.sampler.due(now)}
        leased: set[str] = set()
        for run in runs.values():
            assert run.sampler is not None
            run.sampler.sampled_at = now
            leased |= run.sampler.devices.keys()
        idle: set[str] = set()
        if now - self._watched_at >= shell.options.watch_every_s - 0.05:
            self._watched_at = now
            idle = {uuid for uuid in shell.devices.by_uuid if not shell.state.on_device(uuid)}
            self._reclaim(now)
        if leased | idle:
            await self.look(runs, leased, idle)
        if sampled and now - self._synced_at >= SYNC_EVERY_S:
            self._synced_at = now
            samplers = [run.sampler for run in sampled.values() if run.sampler is not None]
            await asyncio.to_thread(_sync_all, samplers)

    async def look(self, runs: dict[r.Key, Run], leased: set[str], idle: set[str]) -> None:
        """One round over the given devices."""
        shell = self._shell
        marks = {uuid: shell.state.high_water.get(uuid, 0) for uuid in leased | idle}
        before = await asyncio.to_thread(proc.snapshot) if runs else None
        pids = [pid for run in runs.values() if run.sampler is not None for pid in run.sampler.recent_pids()]
        samples = await shell.devices.sample(sorted(leased | idle), accounting_pids=pids)
        after = await asyncio.to_thread(proc.snapshot) if runs else None
        own: dict[r.Key, set[int]] = {}
        if before is not None and after is not None:
            for run in runs.values():
                own[run.key] = await self._fold(run, samples, before, after)
        holders = await self._holders(idle)
        for uuid in idle:
            device = shell.devices.by_uuid[uuid]
            if shell.state.high_water.get(uuid, 0) == marks[uuid] and not shell.state.on_device(uuid):
                self._seen_idle(device, samples.get(uuid), marks[uuid], holders.get(uuid))
        for run in runs.values():
            for uuid in run.sampler.devices if run.sampler is not None and after is not None else ():
                self._seen_leased(run, uuid, samples.get(uuid), own.get(run.key, set()), after)

    # -- proof of use

    async def _fold(
        self, run: Run, samples: dict[str, DeviceSample], before: proc.ProcTable, after: proc.ProcTable
    ) -> set[int]:
        """Hands one instant to the job's sampler; gives the pids of its tree."""
        sampler, shell = run.sampler, self._shell
        assert sampler is not None
        assert run.handle is not None
        pid, start = run.handle.pid, run.handle.start_ticks
        first, last = (proc.tree(pid, table, start_ticks=start) for table in (before, after))
        tree = last or first
        own = {entry.pid for entry in (*first, *last)}
        attempt = shell.state.attempts.get(run.key)
        if not tree or attempt is None or attempt.phase != "started":
            return own
        at = time.monotonic()
        handles: Reading[Handles] | None = None
        if sampler.look_due(at):
            from tenure.agent.instants import gather_handles

            handles = gather_handles(await shell.proc_probe.handles(tree[1:]), at)
        mine = {uuid: sample for uuid, sample in samples.items() if uuid in sampler.devices}
        news = None
        try:
            news = sampler.observe(
                mine,
                tree,
                {*before.entries, *before.unreadable, *after.entries, *after.unreadable},
                handles=handles,
                same_namespace=self._same_namespace(run, mine, handles),
                resting={uuid: shell.options.resting.get(name, ()) for uuid, name in sampler.devices.items()},
            )
        except (OSError, TenureError) as error:
            # The log's disk failed: the verdict goes on from what was folded; what was not kept is said in it.
            log.error("a sample of %s#%d could not be kept: %s", *run.key, error)
            sampler.trouble = f"samples could not be kept: {error}"
        if news is not None and run.key in shell.runs.live:
            with contextlib.suppress(LogFailed):  # said again at the next instant, and with the end
                shell.tell(r.Judged(*run.key, news))
                sampler.told()
        return own

    def _same_namespace(
        self, run: Run, samples: dict[str, DeviceSample], handles: Reading[Handles] | None = None
    ) -> bool:
        """Whether the pids of the driver's lists are numbers of this PID namespace.

        In the initial namespace they are, and a simulated driver's always are. In another one the driver may count as
        the host does, and a number that happens to be ours proves nothing, unless the process behind it has a GPU open.
        """
        if self._shell.identity.initial_namespace or all(sample.simulated for sample in samples.values()):
            return True
        if isinstance(handles, Value):
            return bool(handles.value.open)
        return run.sampler is not None and run.sampler.gpu_open

    # -- who else is there

    def _reclaim(self, now: float) -> None:
        if now - self._claimed_at < 5.0:
            return
        self._claimed_at = now
        shell = self._shell
        leased = {uuid for uuid in shell.devices.by_uuid if shell.state.on_device(uuid)}
        if shell.devices.take_claims(leased):
            for uuid, device in shell.devices.by_uuid.items():
                if uuid not in leased:
                    shell.saw(device, device.condition, shell.state.high_water.get(uuid, 0))

    def _could_not_look(self, error: Exception) -> None:
        """Nothing was seen: what an earlier round saw must not stand as if it had been seen now."""
        shell = self._shell
        seen = Condition("unknown", f"could not look: a round of looks failed ({type(error).__name__})")
        for uuid, device in shell.devices.by_uuid.items():
            if not shell.state.on_device(uuid) and (device.probe is not None or device.by_open_files):
                shell.saw(device, seen, shell.state.high_water.get(uuid, 0))

    async def _holders(self, idle: set[str]) -> dict[str, Condition]:
        """Who has those devices open that have no list of contexts; none of them where that was read just now."""
        devices = [d for uuid in idle if (d := self._shell.devices.by_uuid[uuid]).by_open_files]
        if not devices or time.monotonic() - self._opened_at < opened.LOOK_EVERY_S:
            return {}
        self._opened_at = time.monotonic()
        resting = self._shell.options.resting
        return {d.uuid: await opened.look(self._shell, resting.get(d.name, ())) for d in devices}

    def _seen_idle(
        self, device: AgentDevice, sample: DeviceSample | None, mark: int, holders: Condition | None
    ) -> None:
        shell = self._shell
        if device.by_open_files:
            if holders is not None:
                shell.saw(device, holders, mark)
            return
        if device.probe is None:
            # A CPU has no list of contexts: what the claim says is all there is to know.
            shell.saw(device, watch.CPU_CLEAR, mark)
            return
        if sample is None:
            shell.saw(device, Condition("unknown", "could not look: its driver gave no answer"), mark)
            return
        resting = shell.options.resting.get(device.name, ())
        everybody = watch.sees_all(sample, shell.identity.initial_namespace)
        if device.claim is not None and isinstance(sample.memory_used, Value):
            try:
                shell.baselines.learn(sample, device.driver, sees_all=everybody)
            except OSError as error:
                log.error("a baseline could not be kept: %s", error)
        baseline = shell.baseline_of(device.uuid)
        shell.saw(device, watch.look(sample, baseline, sees_all=everybody, resting=resting), mark)

    def _seen_leased(
        self, run: Run, uuid: str, sample: DeviceSample | None, own: set[int], here: proc.ProcTable | None
    ) -> None:
        """Contention: somebody beside the job. Pids that were the job's until just now are not somebody, and a number
        that cannot be found here may be the job's own, counted as another namespace counts."""
        shell = self._shell
        attempt = shell.state.attempts.get(run.key)
        device = shell.devices.by_uuid.get(uuid)
        if sample is None or device is None or here is None or run.sampler is None or not own:
            return
        if attempt is None or attempt.phase != "started" or not self._same_namespace(run, {uuid: sample}):
            return
        gone = {pid for pid in run.sampler.pids if pid not in here}
        resting = shell.options.resting.get(device.name, ())
        seen = watch.look_beside(sample, own | gone, here, resting=resting)
        shell.saw(device, seen, shell.state.high_water.get(uuid, 0))


def _sync_all(samplers: list[JobSampler]) -> None:
    for sampler in samplers:
        try:
            sampler.sync()
        except TenureError as error:
            sampler.trouble = f"samples could not be kept: {error}"
            log.error("%s", error)
