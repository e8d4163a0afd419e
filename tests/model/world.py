"""A whole fleet in one thread: the two real cores, a network that misbehaves, and hosts with real truths.

The world knows what no part of the system knows: which processes are alive on which device. Every guarantee is
checked against that truth after every step. The shells are replaced by the least that a shell must do: make events
durable before effects, carry out effects one at a time (a crash may come between any two), resend what is owed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tenure.agent import core
from tenure.agent import records as r
from tenure.domain import commands as cmd
from tenure.domain import events as ev
from tenure.domain.device import CLEAR, Condition, DeviceState
from tenure.domain.evolve import evolve
from tenure.domain.fleet import handle, submitted_job
from tenure.domain.instructions import Instruction, StartJob, floors, from_events, on_register
from tenure.domain.job import Ending, JobSpec, JobState, Outcome
from tenure.domain.state import FleetState
from tenure.wire import frames


class Violation(AssertionError):
    """A guarantee did not hold."""


def check(holds: bool, invariant: str, story: str) -> None:
    """Raises with the invariant's name where it does not hold."""
    if not holds:
        raise Violation(f"{invariant}: {story}")


@dataclass
class Process:
    """A job's process tree on a host. ``supervised`` turns false when its supervisor died without it."""

    job: str
    attempt: int
    tokens: dict[str, int]
    supervised: bool = True
    stopping: bool = False


@dataclass
class Host:
    """One machine: what is alive, what is on disk, and the agent that may be running."""

    name: str
    uuids: dict[str, str]
    boot: int = 1
    alive: list[Process] = field(default_factory=list)
    foreign: set[str] = field(default_factory=set)
    exits: dict[tuple[r.Key, int], Outcome] = field(default_factory=dict)
    ever_started: set[tuple[r.Key, int]] = field(default_factory=set)
    journal: list[r.AgentEvent] = field(default_factory=list)
    agent: core.AgentState | None = None
    effects: list[r.Effect] = field(default_factory=list)
    instance: int = 0
    connected: bool = False

    def on_device(self, uuid: str) -> list[Process]:
        """The trees that have a process on a device."""
        return [process for process in self.alive if uuid in process.tokens]


class World:
    """The fleet, its hosts and the network between them."""

    def __init__(self, hosts: int = 2, devices: int = 2) -> None:
        self.log: list[ev.Event] = []
        self.state = FleetState()
        self.now = 1.0
        self.hosts: dict[str, Host] = {}
        self.to_agent: list[tuple[str, Instruction]] = []
        self.to_controller: list[tuple[str, cmd.Command, int]] = []
        self.acks: list[tuple[str, int]] = []
        self.keys: dict[tuple[str, str], str] = {}
        self.accepted: set[str] = set()
        self.terminal: dict[str, str] = {}
        self.observed_exit: dict[tuple[r.Key, int], Outcome] = {}
        self.run_of: dict[r.Key, int] = {}
        self.granted: dict[str, int] = {}
        self.starts: list[r.Key] = []
        self.stopped: set[tuple[str, str, int]] = set()
        self.jobs = 0
        self.restored = False
        self.declared: set[str] = set()
        self.execute(cmd.Begin())
        for h in range(hosts):
            host = Host(f"h{h}", {f"h{h}:gpu{d}": f"GPU-{h}-{d}" for d in range(devices)})
            self.hosts[host.name] = host
            self.start_agent(host.name)

    # -- the controller ------------------------------------------------------------------------------------------------

    def execute(self, command: cmd.Command) -> list[ev.Event]:
        """One command, decided and committed at once, with its instructions put on the network."""
        self.now += 1.0
        version = self.state.version
        outcomes = handle(self.state, command, self.now)
        if outcomes.refusal is not None or outcomes.ignored:
            check(self.state.version == version, "I6", f"{command} was refused or stale and changed something")
        self.log += outcomes.events
        for event in outcomes.events:
            self._witness(event)
        self.to_agent += from_events(self.state, outcomes.events)
        self.state.validate()
        self.check()
        return outcomes.events

    def _witness(self, event: ev.Event) -> None:
        if isinstance(event, ev.LeaseGranted):
            for _, name, token in event.leases:
                device = self.state.devices[name]
                uuid = device.uuid
                fit = device.contact and device.quarantine is None and device.condition == CLEAR
                check(fit, "I9", f"{name} was granted while {device.words}, {device.condition}")
                check(token > self.granted.get(uuid, 0), "I4", f"token {token} of {name} is not above {self.granted}")
                self.granted[uuid] = token
                self.run_of[(event.job, event.attempt)] = max(token for _, _, token in event.leases)
                check(not self._alive(uuid), "I2", f"{name} was granted with {self._alive(uuid)} alive on it")
        if isinstance(event, ev.JobEnded):
            check(event.job not in self.terminal, "I7", f"{event.job} ended twice")
            self.terminal[event.job] = str(event.outcome["ending"])
            key = (event.job, event.attempt)
            seen = self.observed_exit.get((key, self.run_of.get(key, 0)))
            if seen is not None and event.outcome["ending"] in ("exited", "signaled"):
                check(event.outcome["code"] == seen.code, "I7", f"{event.job} exited {seen.code}, recorded {event}")
        if isinstance(event, ev.LeaseReleased):
            lease = self.state.released.get(event.lease)
            if lease is None or lease.token != event.token:
                raise Violation(f"I8: {event} releases another token")
            for process in [] if lease.proof.startswith("root declared") else self._alive(lease.uuid):
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
        events = self.execute(command)
        known = self.state.keys.get(("ann", key)) if key else None
        if known is not None and known[1] == command.body_hash:
            job = submitted_job(command, self.state, events)
            check(self.keys.setdefault(("ann", key or ""), job) == job, "I11", f"key {key} made {job} as well")
            self.accepted.add(job)
        elif any(isinstance(event, ev.JobSubmitted) for event in events):
            self.accepted.add(command.job)

    def cancel(self, job: str) -> None:
        """A user cancels; where the job waits it is over at once."""
        self.execute(cmd.Cancel(job, "ann", ""))

    def operate(self, device: str, act: str) -> None:
        """An operator acts on a device. Retiring one whose host is silent declares its job gone, true or not."""
        lease = self.state.leases.get(self.state.devices[device].lease or "")
        events = self.execute(cmd.Operate(device, act, "root", "because"))
        if lease is not None and any(isinstance(event, ev.DeviceRetired) for event in events):
            self.declared.add(lease.job)

    def crash_controller(self) -> None:
        """The controller dies and comes back from its durable log: every connection is cut, nobody is in contact."""
        state = FleetState()
        for event in self.log:
            evolve(state, event)
        for table in ("devices", "jobs", "leases", "tokens"):
            check(
                {k: _bare(v) for k, v in getattr(state, table).items()}
                == {k: _bare(v) for k, v in getattr(self.state, table).items()},
                "replay",
                f"{table} differ after a replay",
            )
        self.state = state
        self.to_agent.clear()
        self.acks.clear()
        for host in self.hosts.values():
            host.connected = False
        self.execute(cmd.Begin())

    def restore_backup(self, keep: int) -> None:
        """The controller comes back from an old copy of its ledger. What came later is lost; nobody may be doubled."""
        self.log = self.log[: max(keep, 0)]
        self.restored = True
        self.stopped.clear()  # a cancel that was lost with the ledger binds nobody
        self.to_controller.clear()  # what was on its way to the old controller's sockets died with them
        self.terminal = {e.job: str(e.outcome["ending"]) for e in self.log if isinstance(e, ev.JobEnded)}
        self.accepted = {e.job for e in self.log if isinstance(e, ev.JobSubmitted)}
        self.keys = {(e.owner, e.key): e.job for e in self.log if isinstance(e, ev.JobSubmitted) and e.key}
        self.state = FleetState()
        for event in self.log:
            evolve(self.state, event)
        self.crash_controller()

    def lose_contact(self, name: str) -> None:
        """Silence: the controller gives an agent up while it may well be alive."""
        if f"a-{name}" in self.state.agents:
            self.hosts[name].connected = False
            self.execute(cmd.LoseContact(f"a-{name}", 15.0))

    # -- the agent's shell ---------------------------------------------------------------------------------------------

    def start_agent(self, name: str) -> None:
        """A new agent reads its journal, and looks at what became of each attempt it finds there."""
        host = self.hosts[name]
        host.instance += 1
        state = core.AgentState((f"b{host.boot}", "n", f"i{host.instance}"))
        for event in host.journal:
            core.evolve(state, event)
        rebuilt = core.AgentState(state.identity)
        for event in core.snapshot(state):
            core.evolve(rebuilt, event)
        check(_same(state, rebuilt), "journal", "a compacted journal rebuilds another state")
        host.agent, host.effects, host.connected = state, [], False
        for attempt in list(state.attempts.values()):
            self._recover(host, attempt)

    def _recover(self, host: Host, attempt: r.Attempt) -> None:
        running = [p for p in host.alive if (p.job, p.attempt) == attempt.key]
        if attempt.phase == "ended":
            if attempt.unproved:
                host.effects.append(r.Look(attempt.key))
        elif _run_of(attempt) in host.exits:
            self._tell(host, r.Ended(*attempt.key, host.exits[_run_of(attempt)], 0))
        elif any(p.supervised for p in running):
            self._tell(host, r.Started(*attempt.key, (1, 1), 7))
            if attempt.stop is not None:
                host.effects.append(r.Signal(attempt.key))
        elif attempt.phase == "accepted" and _run_of(attempt) not in host.ever_started:
            host.effects.append(r.Spawn(attempt.key))
        elif not running:
            lost = Outcome(Ending.LOST, cause="lost_cause_not_established")
            self._tell(host, r.Ended(*attempt.key, lost, 0))

    def _tell(self, host: Host, message: r.Message) -> None:
        assert host.agent is not None
        events, effects = core.decide(host.agent, message)
        host.journal += events
        for event in events:
            core.evolve(host.agent, event)
        host.effects += effects

    def agent_step(self, name: str) -> None:
        """Carries out one effect."""
        host = self.hosts[name]
        if host.agent is None or not host.effects:
            return
        effect = host.effects.pop(0)
        match effect:
            case r.Spawn(key):
                self._spawn(host, key)
            case r.Signal(key):
                for process in host.alive:
                    if (process.job, process.attempt) == key and process.supervised:
                        process.stopping = True
            case r.Look(key):
                self._look(host, key)
            case r.Send(seq):
                self._send(host, seq)
            case r.Discard():
                pass
        self.check()

    def _spawn(self, host: Host, key: r.Key) -> None:
        assert host.agent is not None
        attempt = host.agent.attempts.get(key)
        if attempt is None or attempt.phase != "accepted" or _run_of(attempt) in host.ever_started:
            return
        if attempt.stop is not None:  # the stop came between the acceptance and the start
            self._tell(host, r.NotStarted(*key, attempt.stop))
            return
        tokens = {grant.uuid: grant.token for grant in attempt.grants}
        durable = core.AgentState()
        for event in host.journal:
            core.evolve(durable, event)
        for uuid, token in tokens.items():
            check(durable.high_water.get(uuid, 0) >= token, "I5", f"{key} starts before token {token} is durable")
            stories = list(host.on_device(uuid))
            check(not stories, "I1", f"{key} starts on {uuid} beside {stories}")
        check((host.name, *key) not in self.stopped, "I12", f"{key} starts after its stop was accepted")
        excused = self.restored or key[0] in self.declared  # of what was declared gone its host may know nothing yet
        check(self.terminal.get(key[0]) is None or excused, "I12", f"{key} starts after it ended")
        host.ever_started.add(_run_of(attempt))
        self.starts.append(key)
        host.alive.append(Process(key[0], key[1], tokens))
        self._tell(host, r.Started(*key, (1, 1), 7))

    def _look(self, host: Host, key: r.Key) -> None:
        assert host.agent is not None
        attempt = host.agent.attempts.get(key)
        if attempt is None or attempt.phase != "ended" or not attempt.unproved:
            return
        proofs = {}
        for grant in attempt.grants:
            if grant.device in attempt.unproved:
                own = [p for p in host.on_device(grant.uuid) if (p.job, p.attempt) == key]
                proofs[grant.device] = (
                    Condition("dirty", f"{own[0].job} left a process") if own else self._seen(host, grant.uuid)
                )
        self._tell(host, r.Looked(*key, proofs))
        if key in host.agent.attempts and host.agent.attempts[key].unproved:
            host.effects.append(r.Look(key))

    def _seen(self, host: Host, uuid: str) -> Condition:
        if uuid in host.foreign:
            return Condition("occupied", "pid 9 of bob", ("bob",))
        return CLEAR

    def _send(self, host: Host, seq: int) -> None:
        assert host.agent is not None
        report = host.agent.outbox.get(seq)
        if report is not None and host.connected:
            self._put(host, report)

    def _put(self, host: Host, report: r.ReportQueued) -> None:
        frame = frames.loads(frames.report(report.seq, report.kind, report.body))
        self.to_controller.append((host.name, frames.read_report(frame, f"a-{host.name}"), report.seq))

    def connect(self, name: str) -> None:
        """The agent dials in, says what it has, is told again what it must do, and sends all it owes."""
        host = self.hosts[name]
        if host.agent is None:
            return
        devices = []
        for device, uuid in host.uuids.items():
            seen = self._seen(host, uuid)
            left = host.agent.on_device(uuid)
            if left:
                seen = Condition("occupied", f"{left[0].job}#{left[0].attempt} of this agent", ("ann",))
            host.agent.conditions[uuid] = self._seen(host, uuid)
            devices.append(cmd.OfferedDevice(device, uuid, "nvidia", False, host.agent.high_water.get(uuid, 0), seen))
        boot, namespace, instance = host.agent.identity
        known = tuple(cmd.KnownAttempt(a.job, a.attempt, a.tokens) for a in host.agent.attempts.values())
        register = cmd.Register(f"a-{name}", name, boot, namespace, instance, "ann", tuple(devices), known)
        host.connected = True
        self.execute(register)
        self._tell(host, r.FloorsGiven(floors(self.state, f"a-{name}", known)))  # the welcome: first on any link
        self.to_agent += [(f"a-{name}", told) for told in on_register(self.state, f"a-{name}", known)]
        for report in core.owed(host.agent):
            self._put(host, report)

    def crash_agent(self, name: str) -> None:
        """kill -9 of the agent: its effects are forgotten, its jobs go on."""
        host = self.hosts[name]
        host.agent, host.effects, host.connected = None, [], False

    # -- the network ---------------------------------------------------------------------------------------------------

    def deliver_to_agent(self, index: int, keep: bool = False) -> None:
        """One instruction arrives, in any order; with ``keep`` it will arrive again."""
        if not self.to_agent:
            return
        index %= len(self.to_agent)
        agent, told = self.to_agent[index] if keep else self.to_agent.pop(index)
        host = self.hosts[agent.removeprefix("a-")]
        if host.agent is not None:
            self._tell(host, told)
            if not isinstance(told, StartJob):
                self.stopped.add((host.name, told.job, told.attempt))
        self.check()

    def deliver_to_controller(self, index: int, keep: bool = False) -> None:
        """One report arrives, in any order; the acknowledgement goes back."""
        if not self.to_controller:
            return
        index %= len(self.to_controller)
        name, command, seq = self.to_controller[index] if keep else self.to_controller.pop(index)
        self.execute(command)
        if seq:
            self.acks.append((name, seq))

    def deliver_ack(self, index: int) -> None:
        """One acknowledgement arrives at an agent."""
        if not self.acks:
            return
        name, seq = self.acks.pop(index % len(self.acks))
        host = self.hosts[name]
        if host.agent is not None:
            report = host.agent.outbox.get(seq)
            if report is not None and report.kind == "ended":
                job = str(report.body["job"])
                check(job in self.terminal or self.restored, "I13", f"the end of {job} was forgotten by its host only")
            self._tell(host, r.Acked(seq))

    def drop(self, index: int) -> None:
        """A message is lost, which a connection does only by breaking."""
        if self.to_agent and index % 2:
            agent, _ = self.to_agent.pop(index % len(self.to_agent))
            self.hosts[agent.removeprefix("a-")].connected = False
        elif self.to_controller:
            name, _, _ = self.to_controller.pop(index % len(self.to_controller))
            self.hosts[name].connected = False

    def report_device(self, name: str, index: int) -> None:
        """The agent looks at one of its devices and says what it sees."""
        host = self.hosts[name]
        if host.agent is None or not host.connected:
            return
        device = sorted(host.uuids)[index % len(host.uuids)]
        uuid = host.uuids[device]
        if any(attempt.phase != "ended" or attempt.unproved for attempt in host.agent.on_device(uuid)):
            return
        host.agent.conditions[uuid] = self._seen(host, uuid)
        report = cmd.ReportDevice(f"a-{name}", device, host.agent.high_water.get(uuid, 0), self._seen(host, uuid))
        self.to_controller.append((name, report, 0))

    # -- the host ------------------------------------------------------------------------------------------------------

    def exit_job(self, name: str, index: int, code: int) -> None:
        """A supervised tree ends by itself or because it was told to: its supervisor writes the record."""
        host = self.hosts[name]
        running = [p for p in host.alive if p.supervised]
        if not running:
            return
        process = running[index % len(running)]
        host.alive.remove(process)
        key = (process.job, process.attempt)
        outcome = Outcome(Ending.SIGNALED, signal=15) if process.stopping else Outcome(Ending.EXITED, code)
        run = (key, max(process.tokens.values()))
        host.exits[run] = self.observed_exit[run] = outcome
        if host.agent is not None:
            self._tell(host, r.Ended(*key, outcome, 0))

    def kill_supervisor(self, name: str, index: int) -> None:
        """A supervisor dies without its tree: the tree is on the device, and nobody has it in hand."""
        host = self.hosts[name]
        running = [p for p in host.alive if p.supervised]
        if running:
            running[index % len(running)].supervised = False

    def reap_survivors(self, name: str) -> None:
        """The agent finds trees without a supervisor and kills them; then it can say that they are lost."""
        host = self.hosts[name]
        for process in [p for p in host.alive if not p.supervised]:
            host.alive.remove(process)
            if host.agent is not None:
                lost = Outcome(Ending.LOST, cause="lost_cause_not_established")
                self._tell(host, r.Ended(process.job, process.attempt, lost, 0))

    def reboot(self, name: str) -> None:
        """Everything on the host is gone but what is on disk."""
        host = self.hosts[name]
        self.crash_agent(name)
        host.boot += 1
        host.alive.clear()
        host.foreign.clear()

    def foreign(self, name: str, index: int) -> None:
        """Somebody comes to, or leaves, a device that no lease covers."""
        host = self.hosts[name]
        uuid = sorted(host.uuids.values())[index % len(host.uuids)]
        host.foreign ^= {uuid}

    # -- what must always hold -----------------------------------------------------------------------------------------

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
            known_job = job in self.state.jobs or job in self.terminal
            check(known_job, "I11", f"{job} was acknowledged and is gone")
        # Nothing stands free while a job that could have it waits (the heart of L2).
        for found in self.state.queue.classes.values():
            if found.waiting and found.need.count == 1 and not self.state.queue.wide:
                check(not found.ready, "L2", f"{found.ready} stand free while {list(found.waiting)} wait")

    def settle(self) -> None:
        """Everything heals and every job is let end: then all must become over, and all devices free (L1, L2)."""
        for name in sorted(self.state.devices):
            self.operate(name, "resume")
        for _ in range(40):
            for name, device in sorted(self.state.devices.items()):
                if device.quarantine is not None and not device.quarantine.clears_itself and device.lease is None:
                    self.operate(name, "clear")
            for name, host in self.hosts.items():
                host.foreign.clear()
                self.reap_survivors(name)
                if host.agent is None:
                    self.start_agent(name)
                if not host.connected:
                    self.connect(name)
            for _ in range(400):
                if not self._pump():
                    break
            for name, host in self.hosts.items():
                for index in range(len(host.uuids)):
                    self.report_device(name, index)
                while any(p.supervised for p in host.alive):
                    self.exit_job(name, 0, 0)
            contact = all(d.contact for d in self.state.devices.values())
            quiet = not self.to_agent and not self.to_controller and not self.acks
            if contact and quiet and not self.state.jobs and not any(h.effects for h in self.hosts.values()):
                break
            for name, host in self.hosts.items():
                agent = self.state.agents.get(f"a-{name}")
                if agent is not None and not agent.contact:
                    host.connected = False
        check(not self.state.jobs, "L1", f"never over: {[(j.id, str(j.state)) for j in self.state.jobs.values()]}")
        for device in self.state.devices.values():
            check(device.state is DeviceState.READY, "L1", f"{device.name} is {device.words} for ever")
        for host in self.hosts.values():
            owed = host.agent.outbox if host.agent else {}
            check(not owed, "L1", f"{host.name} owes {owed}")

    def _pump(self) -> bool:
        moved = False
        for name, host in self.hosts.items():
            for _ in range(len(host.effects)):
                moved = moved or not isinstance(host.effects[0], r.Look) or self._can_prove(host)
                self.agent_step(name)
        while self.to_agent:
            self.deliver_to_agent(0)
            moved = True
        while self.to_controller:
            self.deliver_to_controller(0)
            moved = True
        while self.acks:
            self.deliver_ack(0)
            moved = True
        return moved

    @staticmethod
    def _can_prove(host: Host) -> bool:
        return all(p.supervised for p in host.alive) and not host.foreign


def _run_of(attempt: r.Attempt) -> tuple[r.Key, int]:
    """One run on a host. After a restored ledger the same attempt number may come again, under a higher token."""
    return attempt.key, max(grant.token for grant in attempt.grants)


def _bare(record: object) -> object:
    """A record without the number of the event that last changed it."""
    return repr(record)


def _same(one: core.AgentState, other: core.AgentState) -> bool:
    return (one.high_water, one.attempts, one.outbox, one.next_seq) == (
        other.high_water,
        other.attempts,
        other.outbox,
        other.next_seq,
    )


#: The random driver's moves and how often each is made.
MOVES = {
    "submit": 4,
    "cancel": 1,
    "to_agent": 6,
    "to_agent_again": 1,
    "to_controller": 6,
    "to_controller_again": 1,
    "ack": 4,
    "drop": 1,
    "effect": 12,
    "exit": 4,
    "kill_supervisor": 1,
    "reap": 1,
    "reboot": 1,
    "foreign": 1,
    "look": 3,
    "crash_agent": 1,
    "start_agent": 3,
    "connect": 6,
    "lose_contact": 1,
    "crash_controller": 1,
    "operate": 1,
}


def move(world: World, what: str, rng: random.Random) -> None:
    """One move, with its details drawn from ``rng``."""
    name = rng.choice(sorted(world.hosts))
    n = rng.randrange(1 << 16)
    match what:
        case "submit":
            devices = sorted(world.state.devices)
            device = rng.choice(devices) if devices and rng.random() < 0.3 else None
            key = f"k{rng.randrange(6)}" if rng.random() < 0.3 else None
            count = 1 if device or rng.random() < 0.7 else 2
            world.submit(device, count, rng.randrange(-2, 3), key, rng.random() < 0.9)
        case "cancel":
            if world.state.jobs:
                world.cancel(rng.choice(sorted(world.state.jobs)))
        case "to_agent":
            world.deliver_to_agent(n)
        case "to_agent_again":
            world.deliver_to_agent(n, keep=True)
        case "to_controller":
            world.deliver_to_controller(n)
        case "to_controller_again":
            world.deliver_to_controller(n, keep=True)
        case "ack":
            world.deliver_ack(n)
        case "drop":
            world.drop(n)
        case "effect":
            world.agent_step(name)
        case "exit":
            world.exit_job(name, n, n % 3)
        case "kill_supervisor":
            world.kill_supervisor(name, n)
        case "reap":
            world.reap_survivors(name)
        case "reboot":
            world.reboot(name)
        case "foreign":
            world.foreign(name, n)
        case "look":
            world.report_device(name, n)
        case "crash_agent":
            world.crash_agent(name)
        case "start_agent":
            if world.hosts[name].agent is None:
                world.start_agent(name)
        case "connect":
            if not world.hosts[name].connected:
                world.connect(name)
        case "lose_contact":
            world.lose_contact(name)
        case "crash_controller":
            world.crash_controller()
        case "operate":
            if world.state.devices:
                act = rng.choice(("drain", "resume", "quarantine", "clear", "retire"))
                world.operate(rng.choice(sorted(world.state.devices)), act)
        case "restore":
            world.restore_backup(len(world.log) - rng.randrange(40))
