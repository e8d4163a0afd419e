"""The whole: the fleet's core with its durable log and contact rule, the network, the hosts, and what must hold.

Two clocks run: ``clock`` is the controller's monotonic one, by which alone silence is measured, and ``wall`` the UTC
that labels events, which may jump. One assumption is built in and stated: a controller that comes back from an old
copy of its ledger has a clock that is not behind what the lost one had reached.
"""

from __future__ import annotations

from tenure.agent import core
from tenure.agent import records as r
from tenure.domain import commands as cmd
from tenure.domain import events as ev
from tenure.domain.contact import ContactRule
from tenure.domain.device import CLEAR, DeviceState
from tenure.domain.evolve import evolve
from tenure.domain.fleet import handle, submitted_job
from tenure.domain.instructions import StartJob, floors, from_events, on_register
from tenure.domain.job import JobSpec, JobState
from tenure.domain.state import FleetState
from tenure.testing.sim.host import SimHost
from tenure.testing.sim.network import SimNetwork
from tenure.testing.sim.truth import Process, bare, check
from tenure.wire import frames


class SimFleet:
    """``hosts`` of ``devices`` each under one controller. ``ephemeral``: how many of them lose their disk at a reboot.

    ``granted`` is the highest token granted per UUID; ``terminal`` how each job ended; ``observed_exit`` what really
    happened to each run; ``declared`` the jobs that an operator declared gone, true or not. ``check`` and the
    witnesses raise ``Violation``.
    """

    def __init__(self, hosts: int = 2, devices: int = 2, *, ephemeral: int = 0) -> None:
        self.log: list[ev.Event] = []
        self.state = FleetState()
        self.network = SimNetwork()
        self.rule = ContactRule()
        self.clock = self.looked = 0.0
        self.wall = self.highest_wall = 1.0
        self.hosts: dict[str, SimHost] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.accepted: set[str] = set()
        self.terminal: dict[str, str] = {}
        self.observed_exit: dict[tuple[r.Key, int], object] = {}
        self.run_of: dict[r.Key, int] = {}
        self.granted: dict[str, int] = {}
        self.starts: list[r.Key] = []
        self.stopped: set[tuple[str, str, int]] = set()
        self.declared: set[str] = set()
        self.noticed: set[int] = set()
        self.jobs = self.said = 0
        self.restored = False
        self.execute(cmd.Begin())
        for h in range(hosts):
            host = SimHost(f"h{h}", {f"h{h}:gpu{d}": f"GPU-{h}-{d}" for d in range(devices)}, self, h < ephemeral)
            self.hosts[host.name] = host
            host.start_agent()

    # -- the controller ------------------------------------------------------------------------------------------------

    def execute(self, command: cmd.Command) -> list[ev.Event]:
        """One command, decided and committed at once, with its instructions put on the network."""
        self.wall += 1.0
        self.highest_wall = max(self.highest_wall, self.wall)
        version = self.state.version
        outcomes = handle(self.state, command, self.wall)
        if outcomes.refusal is not None or outcomes.ignored:
            check(self.state.version == version, "I6", f"{command} was refused or stale and changed something")
        self.log += outcomes.events
        for event in outcomes.events:
            self._witness(event)
        told = [(agent.removeprefix("a-"), one) for agent, one in from_events(self.state, outcomes.events)]
        self.network.to_agent += told
        self.state.validate()
        self.check()
        return outcomes.events

    def _witness(self, event: ev.Event) -> None:
        if isinstance(event, ev.LeaseGranted):
            names, job = {name for _, name, _ in event.leases}, self.state.jobs.get(event.job)
            whole = job is None or len(names) == len(event.leases) == job.spec.count
            together = len({self.state.devices[name].host for name in names}) == 1
            check(whole and together, "L2", f"{event} is not all that was asked for, on one host")
            for _, name, token in event.leases:
                device = self.state.devices[name]
                fit = device.contact and device.quarantine is None and device.condition == CLEAR
                check(fit and device.draining is None, "I9", f"{name} was granted while {device.words}")
                high = self.granted.get(device.uuid, 0)
                check(token > high, "I4", f"token {token} of {name} is not above {high}")
                self.granted[device.uuid] = token
                self.run_of[(event.job, event.attempt)] = max(token for _, _, token in event.leases)
                alive = self._alive(device.uuid)
                check(not alive, "I2", f"{name} was granted with {alive} alive on it")
        elif isinstance(event, ev.JobEnded):
            check(event.job not in self.terminal, "I7", f"{event.job} ended twice")
            self.terminal[event.job] = str(event.outcome["ending"])
            key = (event.job, event.attempt)
            seen = self.observed_exit.get((key, self.run_of.get(key, 0)))
            if seen is not None and event.outcome["ending"] in ("exited", "signaled"):
                check(event.outcome["code"] == getattr(seen, "code", None), "I7", f"{event.job} {seen}, not {event}")
        elif isinstance(event, ev.LeaseReleased):
            self._witness_release(event)
        elif isinstance(event, ev.JobNoticed):
            said = event.notice["facts"]
            check(said["of"] == [event.job, event.attempt], "I6", f"{event} tells of another attempt")
            check(said["number"] not in self.noticed, "I6", f"{event} was on record already")
            self.noticed.add(said["number"])

    def _witness_release(self, event: ev.LeaseReleased) -> None:
        lease = self.state.released.get(event.lease)
        check(lease is not None and lease.token == event.token, "I8", f"{event} releases another token")
        assert lease is not None
        if lease.job not in self.declared or not event.proof.startswith("root declared"):
            for process in self._alive(lease.uuid):
                check(process.tokens[lease.uuid] != lease.token, "I8", f"{event} with {process} alive")
        job = self.state.jobs.get(lease.job) or self.state.closed.get(lease.job)
        over = job is not None and (job.state is JobState.ENDED or job.attempt > lease.attempt or not job.leases)
        check(over, "I8", f"{event}, but its job is {job.state if job else None}")

    def _alive(self, uuid: str) -> list[Process]:
        return [process for host in self.hosts.values() for process in host.on_device(uuid)]

    def submit(self, device: str | None, count: int, priority: int, key: str | None, wait: bool = True) -> None:
        """A user submits; the acknowledgement comes back at once."""
        self.jobs += 1
        spec = JobSpec(("work",), device=device, count=count, priority=priority)
        command = cmd.Submit(f"j{self.jobs}", "ann", spec, key, repr(spec), wait)
        before = self.keys.get(("ann", key or ""))
        events = self.execute(command)
        made = any(isinstance(event, ev.JobSubmitted) for event in events)
        check(before is None or not made, "I11", f"key {key} made {command.job} beside {before}")
        waits = made and command.job in self.state.jobs and self.state.jobs[command.job].state is JobState.QUEUED
        check(wait or not waits, "L2", f"{command.job} waits, and was not to")
        if key and made:
            self.keys[("ann", key)] = command.job
        known = self.state.keys.get(("ann", key)) if key else None
        if known is not None and known[1] == command.body_hash:
            job = submitted_job(command, self.state, events)
            check(self.keys.setdefault(("ann", key or ""), job) == job, "I11", f"key {key} made {job} as well")
            self.accepted.add(job)
        elif made:
            self.accepted.add(command.job)

    def cancel(self, job: str) -> None:
        """A user cancels; where the job waits it is over at once."""
        self.execute(cmd.Cancel(job, "ann", ""))

    def operate(self, device: str, act: str) -> None:
        """An operator acts on a device. Retiring one whose host is silent declares its job gone, true or not."""
        lease = self.state.leases.get(self.state.devices[device].lease or "")
        if lease is not None and act == "retire" and not self.state.devices[device].contact:
            self.declared.add(lease.job)
        self.execute(cmd.Operate(device, act, "root", "because"))

    def crash_controller(self, downtime_s: float = 0.0) -> None:
        """The controller dies and comes back from its durable log: every link is cut, nobody is in contact."""
        state = FleetState()
        for event in self.log:
            evolve(state, event)
        for table in ("devices", "jobs", "leases", "tokens"):
            replayed, kept = getattr(state, table), getattr(self.state, table)
            same = {k: bare(v) for k, v in replayed.items()} == {k: bare(v) for k, v in kept.items()}
            check(same, "replay", f"{table} differ after a replay")
        self.state = state
        self.network.lose_frames()
        for host in self.hosts.values():
            host.connected = False
        self.clock += downtime_s
        self.looked = self.clock
        self.execute(cmd.Begin())

    def restore_backup(self, keep: int) -> None:
        """The controller comes back from an old copy of its ledger. What came later is lost; nobody may be doubled."""
        self.log = self.log[: max(keep, 0)]
        self.restored = True
        self.wall = max(self.wall, self.highest_wall)
        self.stopped.clear()  # a cancel that was lost with the ledger binds nobody
        self.network.to_controller.clear()  # what was on its way to the old controller's sockets died with them
        self.terminal = {e.job: str(e.outcome["ending"]) for e in self.log if isinstance(e, ev.JobEnded)}
        self.accepted = {e.job for e in self.log if isinstance(e, ev.JobSubmitted)}
        self.keys = {(e.owner, e.key): e.job for e in self.log if isinstance(e, ev.JobSubmitted) and e.key}
        self.noticed = {e.notice["facts"]["number"] for e in self.log if isinstance(e, ev.JobNoticed)}
        self.state = FleetState()
        for event in self.log:
            evolve(self.state, event)
        self.crash_controller()

    # -- time and contact ----------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Time passes, at most a second from one look of the controller to the next: whoever can be heard is, and
        silence is told when it is due."""
        end = self.clock + seconds
        while self.clock < end:
            self.clock = min(self.clock + 1.0, end)
            for host in self.hosts.values():
                if host.running is not None and host.connected:
                    self.network.beat(host.name, self.clock)
                    if self.network.gives_up(host.name, self.clock):
                        host.hang_up()
            self.look()

    def away(self, seconds: float) -> None:
        """The controller is stopped for so long and goes on: what was sent meanwhile is in its sockets."""
        before = {name for name, agent in self.state.agents.items() if agent.contact}
        self.clock += seconds
        self.look()
        gone = before - {name for name, agent in self.state.agents.items() if agent.contact}
        for name in gone:
            link = self.network.links.get(name.removeprefix("a-"))
            check(link is None, "I14", f"{name} was given up for the controller's own {seconds} s")

    def look(self) -> None:
        """One round of the contact rule."""
        excused = self.rule.away(self.looked, self.clock)
        if excused:
            self.network.excuse(excused)
        self.looked = self.clock
        heard = {name: link.heard_at for name, link in self.network.links.items()}
        for name, silence in self.rule.silent(heard, self.clock).items():
            del self.network.links[name]
            self.lose_contact(name, silence)
        for name, silence in self.rule.closed(dict(self.network.closed_at), self.clock).items():
            del self.network.closed_at[name]
            self.lose_contact(name, silence)
        self._check_contact()

    def lose_contact(self, name: str, silent_s: float = 15.0) -> None:
        """The controller gives an agent up, which may well be alive."""
        agent = self.state.agents.get(f"a-{name}")
        self.network.links.pop(name, None)
        if agent is not None and agent.contact:
            self.execute(cmd.LoseContact(agent.id, silent_s))

    def _check_contact(self) -> None:
        for agent in self.state.agents.values():
            name = agent.id.removeprefix("a-")
            link, ended = self.network.links.get(name), self.network.closed_at.get(name)
            if agent.contact and link is not None:
                silence = self.clock - link.heard_at
                check(silence <= self.rule.silent_s, "A3", f"{name} was silent for {silence} s and counts as there")
            elif agent.contact:
                late = ended is None or self.clock - ended > self.rule.closed_s
                check(not late, "A3", f"{name} is gone since {ended} and counts as there at {self.clock}")

    # -- the network ---------------------------------------------------------------------------------------------------

    def connect(self, name: str) -> None:
        """The agent dials in, says what it has, is told again what it must do, and sends all it owes."""
        host = self.hosts[name]
        if host.running is None or not self.network.passes(name):
            return
        register = host.register()
        host.connected = True
        self.network.up(name, self.clock)
        self.execute(register)
        known = register.known
        # The welcome is the first frame of any link, and what it says is durable before any other is read.
        if not host.tell(r.FloorsGiven(floors(self.state, register.agent, known, forgetful=host.ephemeral))):
            host.hang_up()
            return
        again = on_register(self.state, register.agent, known, forgetful=host.ephemeral)
        self.network.to_agent += [(name, told) for told in again]
        for report in core.owed(host.running):
            self.send(host, report)

    def send(self, host: SimHost, report: r.ReportQueued) -> None:
        """A report goes out, as a frame that has to be read back."""
        frame = frames.loads(frames.report(report.seq, report.kind, report.body))
        told = frames.read_report(frame, f"a-{host.name}")
        self.network.to_controller.append((host.name, told, report.seq, host.instance))

    def deliver_to_agent(self, index: int, keep: bool = False) -> None:
        """One instruction arrives, in any order; with ``keep`` it will arrive again."""
        waiting = self.network.to_agent
        if not waiting:
            return
        index %= len(waiting)
        name, told = waiting[index]
        host = self.hosts[name]
        if name in self.network.cut_down or not host.connected or host.running is None:
            return
        if not keep:
            waiting.pop(index)
        if host.instructed(told) and not isinstance(told, StartJob):
            self.stopped.add((name, told.job, told.attempt))
        self.check()

    def deliver_to_controller(self, index: int, keep: bool = False) -> None:
        """One report arrives, in any order; the acknowledgement goes back."""
        waiting = self.network.to_controller
        if not waiting:
            return
        index %= len(waiting)
        name, command, seq, instance = waiting[index]
        if name in self.network.cut_up:
            return
        if not keep:
            waiting.pop(index)
        self.execute(command)
        if seq:
            self.network.acks.append((name, seq, instance))

    def deliver_ack(self, index: int) -> None:
        """One acknowledgement arrives at an agent."""
        if not self.network.acks:
            return
        name, seq, instance = self.network.acks[index % len(self.network.acks)]
        host = self.hosts[name]
        if name in self.network.cut_down or host.suspended:
            return  # it waits in a socket
        self.network.acks.pop(index % len(self.network.acks))
        if host.running is not None and host.instance == instance:
            report = host.running.outbox.get(seq)
            if report is not None and report.kind == "ended":
                job = str(report.body["job"])
                known = self.state.jobs.get(job)
                # An attempt whose start was refused first is told as lost by a host that has forgotten it since.
                again = known is not None and (known.attempt > report.body["attempt"] or known.refusals > 0)
                kept = job in self.terminal or again or self.restored
                check(kept, "I13", f"the end of {job} was forgotten by its host only")
            if not host.tell(r.Acked(seq)):
                host.hang_up()  # what could not be written down is sent again on the next link

    def drop(self, index: int) -> None:
        """A message is lost, which a link does only by breaking."""
        if self.network.to_agent and index % 2:
            name, _ = self.network.to_agent.pop(index % len(self.network.to_agent))
        elif self.network.to_controller:
            name, *_ = self.network.to_controller.pop(index % len(self.network.to_controller))
        else:
            return
        self.hosts[name].hang_up()

    def report_device(self, name: str, index: int) -> None:
        """The agent looks at one of its devices and says what it sees."""
        report = self.hosts[name].device_report(index)
        if report is not None:
            self.network.to_controller.append((name, report, 0, self.hosts[name].instance))

    # -- what must always hold -----------------------------------------------------------------------------------------

    def starts_now(self, host: SimHost, process: Process) -> None:
        """A host is about to start an attempt: may it?"""
        for uuid in process.tokens:
            beside = list(host.on_device(uuid))
            check(not beside, "I1", f"{process.key} starts on {uuid} beside {beside}")
        check((host.name, *process.key) not in self.stopped, "I12", f"{process.key} starts after its stop was accepted")
        excused = self.restored or process.job in self.declared  # of what was declared gone its host may know nothing
        over = self.terminal.get(process.job) is not None
        check(not over or excused, "I12", f"{process.key} starts after it ended")
        self.starts.append(process.key)

    def check(self) -> None:
        """The invariants that can be read off the world at any instant."""
        for host in self.hosts.values():
            for device, uuid in host.uuids.items():
                alive = host.on_device(uuid)
                check(len({p.tokens[uuid] for p in alive}) <= 1, "I1", f"{device} has {alive}")
                known = self.state.devices.get(device)
                if known is None:
                    continue
                if known.state is DeviceState.READY:
                    check(not alive, "I2", f"{device} is free with {alive} alive on it")
                if alive and not self.restored and alive[0].job not in self.declared:
                    lease = self.state.leases.get(known.lease or "")
                    check(lease is not None, "I3", f"{device} has {alive} and no lease")
                    assert lease is not None
                    check(alive[0].tokens[uuid] == lease.token, "I3", f"{device} has {alive} under {lease}")
        for job in self.accepted:
            check(job in self.state.jobs or job in self.terminal, "I11", f"{job} was acknowledged and is gone")
        # Nothing stands free while a job that could have it waits (the heart of L2).
        for found in self.state.queue.classes.values():
            if found.waiting and found.need.count == 1 and not self.state.queue.wide:
                check(not found.ready, "L2", f"{found.ready} stand free while {list(found.waiting)} wait")

    # -- healing -------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Everything heals and every job is let end: then all must become over, and all devices free (L1, L2)."""
        self.network.cut_up.clear()
        self.network.cut_down.clear()
        for host in self.hosts.values():
            host.suspended = host.full = False
            host.alive = [p for p in host.alive if p.namespace == host.namespace]  # escapees end too, some time
            host.broken.clear()
        for name in sorted(self.state.devices):
            self.operate(name, "resume")
        for _ in range(40):
            self._heal()
            contact = all(d.contact for d in self.state.devices.values())
            if contact and self._quiet() and not any(h.effects for h in self.hosts.values()):
                break
        check(not self.state.jobs, "L1", f"never over: {[(j.id, str(j.state)) for j in self.state.jobs.values()]}")
        for device in self.state.devices.values():
            check(device.state is DeviceState.READY, "L1", f"{device.name} is {device.words} for ever")
        for host in self.hosts.values():
            check(set(host.uuids) <= set(self.state.devices), "L1", f"{host.name} offers what nobody lists")
            owed = host.agent.outbox if host.agent else {}
            check(not owed, "L1", f"{host.name} owes {owed}")

    def _heal(self) -> None:
        for name, device in sorted(self.state.devices.items()):
            if device.quarantine is not None and not device.quarantine.clears_itself and device.lease is None:
                self.operate(name, "clear")
        for name, host in self.hosts.items():
            host.foreign.clear()
            host.retry()
            host.reap_survivors()
            if host.agent is None:
                host.start_agent()
            if not host.connected or not self.state.agents[f"a-{name}"].contact:
                self.connect(name)
        for _ in range(400):
            if not self.pump():
                break
        for name, host in self.hosts.items():
            for index in range(len(host.uuids)):
                self.report_device(name, index)
            while any(p.supervised for p in host.alive):
                host.exit_job(0, 0)
        self.advance(1.0)

    def _quiet(self) -> bool:
        network = self.network
        return not (network.to_agent or network.to_controller or network.acks or self.state.jobs)

    def pump(self) -> bool:
        """Every effect is carried out and every message arrives, in order; gives whether anything moved."""
        moved = False
        for host in self.hosts.values():
            provable = all(p.supervised for p in host.alive) and not host.foreign
            for _ in range(len(host.effects)):
                moved = moved or not isinstance(host.effects[0], r.Look) or provable
                host.step()
        network = self.network
        for waiting, deliver in (
            (network.to_agent, self.deliver_to_agent),
            (network.to_controller, self.deliver_to_controller),
            (network.acks, self.deliver_ack),
        ):
            for _ in range(len(waiting)):
                if waiting:
                    before = len(waiting)
                    deliver(0)
                    moved = moved or len(waiting) != before
        return moved
