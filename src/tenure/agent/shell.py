"""The agent's shell: one asyncio process around the core, and the only place that asks the core to decide.

    message -> core.decide -> journal (append and sync, where there are events) -> core.evolve -> effects

Nothing follows from an event before it is durable. Everything else in this room either tells the shell something that
happened or carries out an effect.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

from tenure.agent import control, core, restart, sweeping
from tenure.agent import records as r
from tenure.agent.baseline import Baselines
from tenure.agent.connection import Connection
from tenure.agent.devices import AgentDevice, Devices, is_news
from tenure.agent.folders import discard, key_of
from tenure.agent.identity import AgentIdentity
from tenure.agent.journal import Journal, warm
from tenure.agent.leftovers import Leftovers
from tenure.agent.memory_ceilings import MemoryCeilings
from tenure.agent.monitor import Monitor
from tenure.agent.offers import register, standing
from tenure.agent.options import Options
from tenure.agent.prover import Prover
from tenure.agent.reach import Reach
from tenure.agent.recovery import recover
from tenure.agent.runs import Runs
from tenure.agent.shipper import Shipper
from tenure.agent.spawner import Spawner
from tenure.agent.telemetry import HostSampler
from tenure.agent.waiting import until_set
from tenure.domain.commands import Register
from tenure.domain.device import Condition
from tenure.domain.reading import Reading, Reason, Scope, Unavailable
from tenure.durable import LogFailed
from tenure.errors import TenureError
from tenure.paths import Layout, bind_unix
from tenure.probes.proc_child import ProcProbe
from tenure.wire import frames

log = logging.getLogger("tenure.agent")

FIRST_LOOK_S = 3.0
DISCOVERY_S = 60.0
RESTART_AFTER_S = 3.0
ACK_EVERY_S = 1.0
#: How long what was forgotten may wait for a sync that is made for something else.
FORGET_S = 1.0


class Shell:
    """One running agent. ``run`` serves until ``stop`` is called or something makes going on unsafe."""

    def __init__(
        self,
        layout: Layout,
        options: Options,
        identity: AgentIdentity,
        journal: Journal,
        state: core.AgentState,
        reach: Reach,
    ) -> None:
        self.layout = layout
        self.reach = reach
        self.options = options
        self.identity = identity
        self.journal = journal
        self.state = state
        state.identity = identity.triple
        self.devices = Devices(layout, options, identity)
        self.baselines = Baselines(layout.agent / "baselines.json")
        self.spawner = Spawner()
        self.proc_probe = ProcProbe()
        self.shipper = Shipper()
        self.connection = Connection(reach, self, self.shipper, beat_s=options.beat_every_s)
        self.runs = Runs(self)
        self.prover = Prover(self)
        self.monitor = Monitor(self)
        self.memory_ceilings = MemoryCeilings(self)
        self.host_sampler = HostSampler()
        self.control = control.Control("subreaper")
        self.leftovers = Leftovers(self)
        self._registered: dict[str, Condition] = {}
        self._output_told: dict[r.Key, float] = {}
        self._forgotten: dict[r.Key, None] = {}
        self._forgetting: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._discovered = asyncio.Event()
        self._fatal: BaseException | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._nudges: socket.socket | None = None

    # -- the core

    def tell(self, message: r.Message) -> None:
        """Lets the core decide on a message, makes its events durable, then carries out what follows.

        Raises ``LogFailed`` where the journal could not be written; then nothing was decided. A journal that cannot be
        used any more ends the agent: a fresh one finds out what the disk holds.
        """
        events, effects = core.decide(self.state, message)
        if events:
            try:
                self.journal.record(events)
            except LogFailed as error:
                if not error.usable:
                    self.fail(error)
                raise
            for event in events:
                core.evolve(self.state, event)
        for effect in effects:
            self._carry_out(effect)
        if isinstance(message, r.Ended):
            self.leftovers.ended()
        if events:
            try:
                self.journal.compact(self.state)
            except LogFailed as error:
                self.fail(error)
        if self._forgotten:
            self._discard_forgotten()

    def _carry_out(self, effect: r.Effect) -> None:
        match effect:
            case r.Spawn(key):
                if key in self._forgotten:  # an older attempt of that number: its folder goes before there is a new one
                    del self._forgotten[key]
                    discard(self.layout.attempt(*key))
                self.shipper.add(key, self.layout.attempt(*key), 0)
                self.runs.start(key, fresh=True)
            case r.Signal(key):
                self.runs.signal(key)
            case r.Look(key):
                self.prover.look(key)
            case r.Send(seq):
                self.connection.send_report(seq)
            case r.Discard(key):
                self.shipper.remove(key)
                self._output_told.pop(key, None)
                self._forgotten[key] = None

    def _discard_forgotten(self) -> None:
        """Deletes what was forgotten once that is durable: an attempt that the journal still knows keeps its output."""
        if self.journal.durable:
            gone, self._forgotten = self._forgotten, {}
            for key in gone:
                self.aside(asyncio.to_thread(discard, self.layout.attempt(*key)))
        elif self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().call_later(FORGET_S, self._sync_forgotten)

    def _sync_forgotten(self) -> None:
        self._forgetting = None
        if self._forgotten:
            try:
                self.journal.sync()
            except LogFailed as error:
                self.fail(error)
            else:
                self._discard_forgotten()

    def fail(self, error: BaseException) -> None:
        """Going on is not safe: the agent ends with this error. Jobs go on under their supervisors."""
        if self._fatal is None:
            self._fatal = error
        self._ended.set()

    def stop(self) -> None:
        """Ends the agent and leaves every job running."""
        self._ended.set()

    def aside(self, work: Any) -> None:
        """Runs something beside everything else; a failure is logged."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done_aside)

    def _done_aside(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work aside failed: %s", error, exc_info=error)

    # -- devices

    @property
    def scenario(self) -> str:
        """The file that simulated devices answer from; empty where there are none."""
        if self.options.library_dir is not None:
            return os.environ.get("TENURE_SIM_SCENARIO") or str(self.options.library_dir / "scenario")
        return str(self.layout.sim_scenario) if self.devices.simulated is not None else ""

    def baseline_of(self, uuid: str) -> Reading[int]:
        """The device's memory at rest, comparable with its last sample."""
        device = self.devices.by_uuid.get(uuid)
        if device is None:
            why = "the device was not found since this agent started"
            return Unavailable(Reason.BASELINE_UNKNOWN, time.monotonic(), "baseline", Scope.DEVICE, why)
        memory = device.last.memory_used if device.last is not None else device.found.memory
        return self.baselines.of(uuid, memory, device.driver)

    def saw(self, device: AgentDevice, seen: Condition, mark: int | None = None) -> None:
        """What a look found on a device. News go to the controller with ``mark``, the highest token known before the
        look; without one (a proof, which travels in its own report) nothing is sent."""
        device.condition = seen
        self.state.conditions[device.uuid] = device.offered
        if mark is not None and is_news(self._registered.get(device.uuid), device.offered):
            self._report_device(device, mark)

    def _report_device(self, device: AgentDevice, mark: int) -> None:
        if not self.connection.up:
            return  # the welcome compares again
        self._registered[device.uuid] = device.offered
        body = {"device": device.name, "high_water": mark, "condition": frames.plain(device.offered)}
        self.connection.send_text(frames.report(0, "device", body))

    async def discovered(self) -> None:
        """Waits for the first discovery: before it nothing can be said of a device. Bounded; a driver may hang."""
        if not self._discovered.is_set():
            await until_set(self._discovered, DISCOVERY_S)

    async def _first_discovery(self) -> None:
        try:
            await self._discover(first=True)
        except Exception:
            log.exception("the first discovery failed")
        finally:
            self._discovered.set()

    async def _discover(self, first: bool) -> None:
        changed = await self.devices.discover()
        changed = self.devices.take_claims({u for u in self.devices.by_uuid if self.state.on_device(u)}) or changed
        for device in self.devices.by_uuid.values():
            self.state.conditions[device.uuid] = device.offered
        idle = {uuid for uuid in self.devices.by_uuid if not self.state.on_device(uuid)}
        if first and idle:
            await self.monitor.look({}, set(), idle)
        if changed and self.connection.up:
            self.connection.hang_up()  # the next hello registers what there is now

    async def _keep_discovering(self) -> None:
        while True:
            # A source that failed may come back soon (a driver being loaded); what is there is not asked so often.
            pause = 10.0 if self.devices.problems else self.options.discover_every_s
            await asyncio.sleep(min(pause, self.options.discover_every_s))
            try:
                await self._discover(first=False)
            except Exception:
                log.exception("discovery failed")

    # -- what the connection asks

    def register(self) -> Register:
        """Who this agent is and everything it has, as of now."""
        self._registered = {uuid: standing(self, device) for uuid, device in self.devices.by_uuid.items()}
        return register(self)

    def owed(self) -> list[str]:
        """The frames of everything the controller is to be told on a new connection, in order."""
        return [frames.report(report.seq, report.kind, report.body) for report in core.owed(self.state)]

    def report_frame(self, seq: int) -> str | None:
        """The frame of a report that is still owed."""
        report = self.state.outbox.get(seq)
        return frames.report(seq, report.kind, report.body) if report is not None else None

    async def received(self, frame: dict[str, Any]) -> None:
        """A frame from the controller. One that cannot be read ends the link; what it meant is said again."""
        kind = frame["type"]
        if kind in ("start", "stop"):
            try:
                told = frames.read_instruction(frame)
            except TenureError as error:
                log.error("an instruction that cannot be read was not followed: %s", error)
                return
            self.tell(told)
        elif kind == "ack":
            self.tell(r.Acked(int(frame["seq"])))
        elif kind == "output_ack":
            self._output_acked((str(frame["job"]), int(frame["attempt"])), int(frame["offset"]))
        elif kind == "welcome":
            # Before anything can be started: no start is read ahead of the welcome.
            self.tell(r.FloorsGiven(frames.read_floors(frame)))
            for device in self.devices.by_uuid.values():  # what changed while the hello was under way
                if is_news(self._registered.get(device.uuid), standing(self, device)):
                    self._report_device(device, self.state.high_water.get(device.uuid, 0))
            self.leftovers.tell()
        elif kind == "ask":
            from tenure.agent import cleaning  # nothing that a job waits for

            self.aside(cleaning.answer(self, frame))
        elif kind == "refused":
            raise TenureError.from_dict(frame.get("error") or {})

    def _output_acked(self, key: r.Key, offset: int) -> None:
        """Passes acknowledged offsets on: at once where the attempt is over, else not more often than every second."""
        news = self.shipper.acknowledged(key, offset)
        self.connection.output_ready()
        attempt = self.state.attempts.get(key)
        if news is None or attempt is None:
            return
        now = asyncio.get_running_loop().time()
        if attempt.phase == "ended" or now - self._output_told.get(key, 0.0) >= ACK_EVERY_S:
            self._output_told[key] = now
            self.tell(r.OutputTaken(*key, news))

    def settle_output(self, key: r.Key) -> None:
        """Tells the core of acknowledged output that was held back until the attempt was over."""
        stream, attempt = self.shipper.streams.get(key), self.state.attempts.get(key)
        if stream is not None and attempt is not None and stream.acked > attempt.output_acked:
            self.tell(r.OutputTaken(*key, stream.acked))

    # -- life

    async def run(self) -> None:
        """Serves until stopped. Raises what made going on unsafe."""
        loop = asyncio.get_running_loop()
        self._nudges = bind_unix(self.layout.nudge_sock, socket.SOCK_DGRAM)
        self._nudges.setblocking(False)
        loop.add_reader(self._nudges.fileno(), self._nudged)
        forever: list[asyncio.Task[Any]] = []
        try:
            first = asyncio.create_task(self._first_discovery())
            await self.spawner.open()
            forever = [first, asyncio.create_task(self.connection.run())]
            self.control = await asyncio.to_thread(control.choose, self.options.control)
            log.info("control of jobs: %s (%s)", self.control.kind, self.control.reason)
            if self.control.fell_back:
                said = "the control asked for does not work here (%s): jobs get %s, which keeps the same promise"
                log.warning(said, self.control.fell_back, self.control.kind)
            log.info("%s", self.memory_ceilings.words)
            await asyncio.wait([first], timeout=FIRST_LOOK_S)
            self.connection.ready.set()
            self.aside(recover(self))
            self.aside(asyncio.to_thread(warm))
            forever += [
                asyncio.create_task(self.monitor.run()),
                asyncio.create_task(self.leftovers.run()),
                asyncio.create_task(sweeping.run(self)),
                asyncio.create_task(self._keep_discovering()),
                asyncio.create_task(self._keep_controller()),
            ]
            ended = asyncio.create_task(self._ended.wait())
            await asyncio.wait([ended, *forever[1:]], return_when=asyncio.FIRST_COMPLETED)
            for task in forever[1:]:
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    self.fail(error)
        finally:
            await self._close(forever)
        if self._fatal is not None:
            raise self._fatal

    async def _close(self, forever: list[asyncio.Task[Any]]) -> None:
        if self._nudges is not None:
            asyncio.get_running_loop().remove_reader(self._nudges.fileno())
            self._nudges.close()
        if self._forgetting is not None:
            self._forgetting.cancel()  # the next agent sweeps up
        for task in (*forever, *self._tasks):
            task.cancel()
        await asyncio.gather(*forever, *self._tasks, return_exceptions=True)
        await self.prover.stop()
        await self.runs.stop()
        await self.spawner.close()
        await self.devices.close({uuid for uuid in self.devices.by_uuid if self.state.on_device(uuid)})
        await self.proc_probe.close()
        self.leftovers.close()
        try:
            self.journal.close()
        except LogFailed as error:
            log.error("%s", error)

    def _nudged(self) -> None:
        """Datagrams of supervisors: something of an attempt is to be read. Lost or forged ones do no harm."""
        assert self._nudges is not None
        for _ in range(64):
            try:
                data = self._nudges.recv(4096)
            except (BlockingIOError, InterruptedError):
                return
            try:
                body = json.loads(data)
                key = key_of(Path(str(body["dir"])))
                what = body["what"]
            except (ValueError, KeyError, TypeError):
                continue
            if what == "output":
                self.connection.output_ready()
            elif key is not None:
                self.runs.nudge(key)

    async def _keep_controller(self) -> None:
        """Embedded mode: starts the controller again when it has been gone for some seconds and is owed something."""
        if not self.options.restart_controller:
            await asyncio.Event().wait()
        keeper = restart.ControllerKeeper(self.layout)
        while True:
            await asyncio.sleep(0.5)
            gone_s = 0.0 if self.connection.up else asyncio.get_running_loop().time() - self.connection.down_since
            owed = bool(self.state.outbox) or any(a.phase != "ended" for a in self.state.attempts.values())
            keeper.look(gone_s if owed else 0.0, RESTART_AFTER_S)
