"""One machine: the processes that are there, what is on its disk, and the agent's core with the least of a shell.

The shell here does what the real one must: makes events durable before effects, carries out effects one at a time (a
crash may come between any two), resends what is owed. Its disk may fill up, its state may lie where a reboot empties
it, its PID namespace may be replaced around the agent, and it may be suspended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tenure.agent import core
from tenure.agent import records as r
from tenure.domain import commands as cmd
from tenure.domain.device import CLEAR, Condition
from tenure.domain.ends import Identity, name_end
from tenure.domain.instructions import Instruction
from tenure.domain.job import Ending, Outcome
from tenure.testing.sim.truth import Process, check, run_of

if TYPE_CHECKING:
    from tenure.testing.sim.fleet import SimFleet

#: What a device that is looked at can turn out to be, besides what the host's processes make of it.
LOST_CARD = Condition("fault", "gpu_lost: GPU is lost (15)")
_HIDDEN = Condition("unknown", "foreign_namespace: a listed pid is not to be found here")


@dataclass
class SimHost:
    """``uuids``: device name -> UUID. ``boot`` and ``namespace`` are its identities; ``ephemeral``: a reboot empties
    its disk. ``full``: nothing can be written. ``suspended``: it stands still, and so does its own clock."""

    name: str
    uuids: dict[str, str]
    fleet: SimFleet = field(repr=False)
    ephemeral: bool = False
    boot: int = 1
    namespace: int = 1
    alive: list[Process] = field(default_factory=list)
    foreign: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    exits: dict[tuple[r.Key, int], Outcome] = field(default_factory=dict)
    ever_started: set[tuple[r.Key, int]] = field(default_factory=set)
    journal: list[r.AgentEvent] = field(default_factory=list)
    agent: core.AgentState | None = None
    effects: list[r.Effect] = field(default_factory=list)
    untold: list[r.Message] = field(default_factory=list)
    instance: int = 0
    connected: bool = False
    full: bool = False
    suspended: bool = False

    # -- the agent's shell ---------------------------------------------------------------------------------------------

    @property
    def running(self) -> core.AgentState | None:
        """The agent's state, while there is an agent and time passes for it."""
        return None if self.suspended else self.agent

    def tell(self, message: r.Message) -> bool:
        """Lets the core decide; False where the disk was full and nothing was decided."""
        assert self.agent is not None
        events, effects = core.decide(self.agent, message)
        if events and self.full:
            return False
        self.journal += events
        for event in events:
            core.evolve(self.agent, event)
        self.effects += effects
        return True

    def happened(self, message: r.Message) -> None:
        """Tells the core of what happened here; with a full disk again and again, until there is room."""
        if self.agent is not None and not self.tell(message):
            self.untold.append(message)

    def instructed(self, told: Instruction) -> bool:
        """An instruction arrives. One that cannot be made durable is as good as not heard: the link ends."""
        if self.running is None:
            return False
        if not self.tell(told):
            self.hang_up()
            return False
        return True

    def retry(self) -> None:
        """There may be room again."""
        waiting, self.untold = self.untold, []
        for message in waiting:
            self.happened(message)

    def start_agent(self) -> None:
        """A new agent reads its journal, and looks at what became of each attempt it finds there."""
        self.instance += 1
        state = core.AgentState((f"b{self.boot}", f"n{self.namespace}", f"i{self.instance}"))
        for event in self.journal:
            core.evolve(state, event)
        rebuilt = core.AgentState(state.identity)
        for event in core.snapshot(state):
            core.evolve(rebuilt, event)
        check(_same(state, rebuilt), "journal", "a compacted journal rebuilds another state")
        self.agent, self.effects, self.untold, self.connected = state, [], [], False
        for attempt in list(state.attempts.values()):
            self._recover(attempt)

    def _recover(self, attempt: r.Attempt) -> None:
        mine = [p for p in self.alive if p.key == attempt.key and p.namespace == self.namespace]
        if attempt.phase == "ended":
            if attempt.unproved:
                self.effects.append(r.Look(attempt.key))
        elif run_of(attempt) in self.exits:
            self.happened(r.Ended(*attempt.key, self.exits[run_of(attempt)], 0))
        elif any(p.supervised for p in mine):
            self.happened(r.Started(*attempt.key, (1, 1), 7))
            if attempt.stop is not None:
                self.effects.append(r.Signal(attempt.key))
        elif attempt.phase == "accepted" and run_of(attempt) not in self.ever_started and not self._rebooted(attempt):
            self.effects.append(r.Spawn(attempt.key))
        elif not mine:
            self.happened(r.Ended(*attempt.key, self._lost(attempt), 0))

    def _rebooted(self, attempt: r.Attempt) -> bool:
        return attempt.identity[0] != f"b{self.boot}"

    def _lost(self, attempt: r.Attempt) -> Outcome:
        assert self.agent is not None
        before, after = Identity(*attempt.identity), Identity(*self.agent.identity)
        cause = name_end(before, after, supervisor_alive=False)
        right = "host_rebooted" if self._rebooted(attempt) else "worker_restarted"
        same = attempt.identity[:2] == self.agent.identity[:2]
        check(cause == ("lost_cause_not_established" if same else right), "A5", f"{attempt.key} is {cause}")
        return Outcome(Ending.LOST, cause=cause)

    def crash_agent(self) -> None:
        """kill -9 of the agent: its effects are forgotten, its jobs go on, its link closes."""
        if self.connected:
            self.fleet.network.hung_up(self.name, self.fleet.clock)
        self.agent, self.effects, self.untold, self.connected = None, [], [], False

    def hang_up(self) -> None:
        """The agent closes its link; it dials again."""
        if self.connected:
            self.connected = False
            self.fleet.network.hung_up(self.name, self.fleet.clock)

    def step(self) -> None:
        """Carries out one effect."""
        if self.running is None or not self.effects:
            return
        effect = self.effects.pop(0)
        match effect:
            case r.Spawn(key):
                self._spawn(key)
            case r.Signal(key):
                for process in self.alive:
                    if process.key == key and process.supervised:
                        process.stopping = True
            case r.Look(key):
                self._look(key)
            case r.Send(seq):
                report = self.agent.outbox.get(seq) if self.agent is not None else None
                if report is not None and self.connected:
                    self.fleet.send(self, report)
            case r.Discard():
                pass

    def _spawn(self, key: r.Key) -> None:
        assert self.agent is not None
        attempt = self.agent.attempts.get(key)
        if attempt is None or attempt.phase != "accepted" or run_of(attempt) in self.ever_started:
            return
        if attempt.stop is not None:  # the stop came between the acceptance and the start
            self.happened(r.NotStarted(*key, attempt.stop))
            return
        if self.full:  # its folder cannot be made
            self.happened(r.NotStarted(*key, "no room"))
            return
        process = Process(*key, {grant.uuid: grant.token for grant in attempt.grants}, self.namespace)
        durable = core.AgentState()
        for event in self.journal:
            core.evolve(durable, event)
        for uuid, token in process.tokens.items():
            check(durable.high_water.get(uuid, 0) >= token, "I5", f"{key} starts before token {token} is durable")
        self.fleet.starts_now(self, process)
        self.ever_started.add(process.run)
        self.alive.append(process)
        self.happened(r.Started(*key, (1, 1), 7))

    def _look(self, key: r.Key) -> None:
        assert self.agent is not None
        attempt = self.agent.attempts.get(key)
        if attempt is None or attempt.phase != "ended" or not attempt.unproved:
            return
        proofs = {}
        for grant in attempt.grants:
            if grant.device in attempt.unproved:
                own = [p for p in self.on_device(grant.uuid) if p.key == key and p.namespace == self.namespace]
                left = Condition("dirty", f"{key[0]} left a process")
                proofs[grant.device] = seen = left if own else self.seen(grant.uuid)
                if seen.outcome in r.PROVES_EMPTY:
                    self.agent.conditions[grant.uuid] = seen
        self.happened(r.Looked(*key, proofs))
        if key in self.agent.attempts and self.agent.attempts[key].unproved:
            self.effects.append(r.Look(key))

    def seen(self, uuid: str) -> Condition:
        """What a look at a device finds: somebody else, a pid that is not to be found here, a broken card, nobody."""
        if uuid in self.broken:
            return LOST_CARD
        if any(p.namespace != self.namespace for p in self.on_device(uuid)):
            return _HIDDEN
        return Condition("occupied", "pid 9 of bob", ("bob",)) if uuid in self.foreign else CLEAR

    def register(self) -> cmd.Register:
        """Who the agent is and all it has, as it says hello."""
        assert self.agent is not None
        devices = []
        for device, uuid in self.uuids.items():
            self.agent.conditions[uuid] = seen = self.seen(uuid)
            left = self.agent.on_device(uuid)
            if left:
                seen = Condition("occupied", f"{left[0].job}#{left[0].attempt} of this agent", ("ann",))
            devices.append(cmd.OfferedDevice(device, uuid, "nvidia", False, self.agent.high_water.get(uuid, 0), seen))
        known = tuple(cmd.KnownAttempt(a.job, a.attempt, a.tokens) for a in self.agent.attempts.values())
        return cmd.Register(f"a-{self.name}", self.name, *self.agent.identity, "ann", tuple(devices), known)

    def device_report(self, index: int) -> cmd.ReportDevice | None:
        """What the agent says of a device that it looks at, unless an attempt of its own is not proved gone from it."""
        if self.running is None or not self.connected:
            return None
        device = sorted(self.uuids)[index % len(self.uuids)]
        uuid = self.uuids[device]
        if any(attempt.phase != "ended" or attempt.unproved for attempt in self.running.on_device(uuid)):
            return None
        self.running.conditions[uuid] = seen = self.seen(uuid)
        return cmd.ReportDevice(f"a-{self.name}", device, self.running.high_water.get(uuid, 0), seen)

    # -- the machine ---------------------------------------------------------------------------------------------------

    def on_device(self, uuid: str) -> list[Process]:
        """The trees that have a process on a device."""
        return [process for process in self.alive if uuid in process.tokens]

    def exit_job(self, index: int, code: int) -> None:
        """A supervised tree ends by itself or because it was told to: its supervisor writes the record."""
        running = [p for p in self.alive if p.supervised and p.namespace == self.namespace]
        if self.suspended or not running:
            return
        process = running[index % len(running)]
        self.alive.remove(process)
        outcome = Outcome(Ending.SIGNALED, signal=15) if process.stopping else Outcome(Ending.EXITED, code)
        self.exits[process.run] = self.fleet.observed_exit[process.run] = outcome
        self.happened(r.Ended(*process.key, outcome, 0))

    def bound(self, index: int, *, reached: bool) -> None:
        """The agent warns an attempt of a bound that is near, or ends one that has reached it."""
        running = [p for p in self.alive if p.supervised and p.namespace == self.namespace]
        if self.suspended or not running:
            return
        process = running[index % len(running)]
        if reached:
            self.happened(r.Overran(*process.key, "max runtime of 1 s reached: ran 1.0 s"))
            return
        self.fleet.said += 1
        facts = {"of": list(process.key), "number": self.fleet.said}
        notice = {"kind": "idle_soon", "words": "idle", "utc": self.fleet.wall, "facts": facts}
        self.happened(r.Noticed(*process.key, notice))

    def kill_supervisor(self, index: int) -> None:
        """A supervisor dies without its tree: the tree is on the device, and nobody has it in hand."""
        running = [p for p in self.alive if p.supervised]
        if running:
            running[index % len(running)].supervised = False

    def reap_survivors(self) -> None:
        """The agent finds trees without a supervisor and kills them; then it can say that they are lost."""
        for process in [p for p in self.alive if not p.supervised and p.namespace == self.namespace]:
            self.alive.remove(process)
            self.happened(r.Ended(*process.key, Outcome(Ending.LOST, cause="lost_cause_not_established"), 0))

    def reboot(self) -> None:
        """Everything on the host is gone but what is on disk; where the disk is no disk, that too."""
        self.crash_agent()
        self.suspended = self.full = False
        self.boot += 1
        self.namespace += 1
        self.alive.clear()
        self.foreign.clear()
        self.broken.clear()
        if self.ephemeral:
            self.journal.clear()
            self.exits.clear()
            self.ever_started.clear()

    def restart_worker(self, survivors: bool) -> None:
        """The container around agent and jobs is replaced: another PID namespace on the same boot. What escaped it
        lives on where the new agent cannot see it."""
        self.crash_agent()
        self.namespace += 1
        if not survivors:
            self.alive.clear()
        for process in self.alive:
            process.supervised = False


def _same(one: core.AgentState, other: core.AgentState) -> bool:
    return (one.high_water, one.attempts, one.outbox, one.next_seq) == (
        other.high_water,
        other.attempts,
        other.outbox,
        other.next_seq,
    )
