"""The fleet's state: indexes of frozen records. ``evolve`` is the only writer; deciding only reads.

Only open things live here: devices, agents, jobs that are not over or still hold a lease, and their leases. What is
closed lives in the ledger's rows, so that memory follows the size of the fleet and not the length of its history.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tenure.domain import promises
from tenure.domain import selector as selectors
from tenure.domain.ceilings import Ceilings, Objection, allows, least_ceiling, objection
from tenure.domain.device import Device
from tenure.domain.job import Job, JobSpec, JobState, Lease
from tenure.domain.queue import Queue, Requirement


@dataclass(frozen=True)  # no slots: see replacing
class AgentRecord:
    """An agent as it last registered. Identities are compared for equality only, never ordered."""

    id: str
    host: str
    boot_id: str
    namespace: str
    instance: str
    user: str
    contact: bool
    seen_at: float
    version: int = 0


def need_of(spec: JobSpec) -> Requirement:
    """What a specification asks for, to the second. See ``FleetState.class_of`` for the queue's own."""
    wire = promises.wire_of(spec)
    return Requirement(spec.device, spec.select, spec.count, spec.max_runtime_s, spec.idle_timeout_s, wire)


def objection_of(device: Device, need: Requirement) -> Objection | None:
    """Why a device does not allow the bounds that are asked for, or None where it does."""
    if "bounds" not in device.facts:
        return None
    return objection(Ceilings.of(device.facts), need.max_runtime_s, need.idle_timeout_s)


def _allowed(device: Device, need: Requirement) -> bool:
    if "bounds" not in device.facts:
        return True
    return allows(Ceilings.of(device.facts), need.max_runtime_s, need.idle_timeout_s)


class FleetState:
    """All that the fleet core knows. ``ceilings``: of max runtimes and of idle timeouts, those of any device.

    ``touched`` collects what changed since the ledger last took it: pairs of table and key, in order of change.
    """

    def __init__(self) -> None:
        self.devices: dict[str, Device] = {}
        self.uuids: dict[str, str] = {}
        self.agents: dict[str, AgentRecord] = {}
        self.devices_of_agent: dict[str, set[str]] = {}
        self.jobs: dict[str, Job] = {}
        self.leases: dict[str, Lease] = {}
        self.leases_of: dict[tuple[str, int], tuple[str, ...]] = {}
        self.tokens: dict[str, int] = {}
        self.token_floor = 0
        self.keys: dict[tuple[str, str], tuple[str, str]] = {}
        self.queue = Queue()
        self.ceilings: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
        self.version = 0
        self.sequence = 0
        self.last_arrival = 0.0
        self.touched: dict[tuple[str, str], None] = {}
        self.closed: dict[str, Job] = {}
        self.released: dict[str, Lease] = {}

    def need_of(self, job: Job) -> Requirement:
        """The requirement under which a job waits."""
        return self.class_of(job.spec)

    def class_of(self, spec: JobSpec) -> Requirement:
        """What a specification asks for, with its bounds raised to the next ceiling of any device.

        No device tells the difference, and jobs that differ in nothing but their bounds share a class: a class for
        each of a thousand max runtimes would make every grant a thousand times as dear.
        """
        runtimes, idles = self.ceilings
        runtime, idle = least_ceiling(spec.max_runtime_s, runtimes), least_ceiling(spec.idle_timeout_s, idles)
        return Requirement(spec.device, spec.select, spec.count, runtime, idle, promises.wire_of(spec))

    def note_ceilings(self) -> bool:
        """Takes in what ceilings the devices have now; gives whether that changed, and with it what a class is."""
        told = [Ceilings.of(device.facts) for device in self.devices.values() if "bounds" in device.facts]
        runtimes = {one.max_runtime_ceiling_s for one in told if one.max_runtime_ceiling_s is not None}
        idles = {one.idle_ceiling_s for one in told if one.idle_ceiling_s is not None}
        before, self.ceilings = self.ceilings, (tuple(sorted(runtimes)), tuple(sorted(idles)))
        return self.ceilings != before

    def requeue(self) -> None:
        """Builds the queue anew from the jobs and devices, after what a class is has changed."""
        before, self.queue = self.queue, Queue()
        for name in before.ready:
            self.queue.set_ready(name, True)
        waiting = [job for found in before.classes.values() for job in found.waiting.items()]
        for name, order in sorted(waiting, key=lambda one: one[1]):
            need = self.need_of(self.jobs[name])
            if not self.queue.has(need):
                self.queue.open(need, self.match(need, self.devices.values()))
            self.queue.add(name, order, need)

    def fitting(self, need: Requirement) -> set[str]:
        """Every registered device that fits a requirement, whatever its state."""
        found = self.queue.classes.get(need)
        return found.fits if found is not None else self.match(need, self.devices.values())

    def match(self, need: Requirement, among: Iterable[Device]) -> set[str]:
        """Which of some devices fit a requirement: by name or labels, and by the bounds that they allow."""
        return self.named(need, (device for device in among if _allowed(device, need)))

    def named(self, need: Requirement, among: Iterable[Device]) -> set[str]:
        """Which of some devices fit by name or labels, and have an agent that can keep what is asked, whatever bounds
        they allow."""
        if need.wire > 1:
            among = [device for device in among if promises.keeps(device, need.wire)]
        if need.device is not None:
            return {device.name for device in among if device.name == need.device}
        wanted = selectors.parse(need.select)
        return {device.name for device in among if selectors.matches(wanted, device.labels)}

    def live_leases(self, job: str, attempt: int) -> list[Lease]:
        """The leases of one attempt that are not released yet."""
        return [
            lease
            for lease in (self.leases.get(key) for key in self.leases_of.get((job, attempt), ()))
            if lease is not None and lease.live
        ]

    def drain(self) -> None:
        """Forgets what changed and what was closed: the ledger has it now."""
        self.touched.clear()
        self.closed.clear()
        self.released.clear()

    def become(self, other: FleetState) -> None:
        """Turns into another state, which must not be used afterwards; whoever holds this one sees the new."""
        self.__dict__.update(other.__dict__)

    def validate(self) -> None:
        """Checks every index against the records it derives from; raises AssertionError with what disagrees.

        Called by tests after each step; linear in the size of the state.
        """
        live: dict[str, str] = {}
        for lease in self.leases.values():
            assert lease.live, f"released lease {lease.id} still in memory"
            assert lease.device not in live, f"two live leases on {lease.device}: {live[lease.device]}, {lease.id}"
            live[lease.device] = lease.id
            assert lease.token <= self.tokens.get(lease.uuid, 0), f"token of {lease.id} above the device's"
        for name, device in self.devices.items():
            assert device.lease == live.get(name), f"{name}: lease {device.lease} is not {live.get(name)}"
            assert (device.state == "ready") == (name in self.queue.ready), f"{name}: ready index disagrees"
            assert self.uuids[device.uuid] == name, f"{name}: uuid index disagrees"
            if device.lease is not None:
                assert device.lease_ending == (self.leases[device.lease].state == "ending"), name
        waiting = {job for found in self.queue.classes.values() for job in found.waiting}
        queued = {job.id for job in self.jobs.values() if job.state is JobState.QUEUED}
        assert waiting == queued, f"queue {waiting} is not the queued jobs {queued}"
        assert self.queue.length == len(queued), "queue length disagrees"
        for found in self.queue.classes.values():
            assert found.fits == self.match(found.need, self.devices.values()), found.need
            assert found.ready == found.fits & self.queue.ready, found.need
            assert (min(found.ready) if found.ready else None) == found.first_ready, found.need
            best = min(((order, job) for job, order in found.waiting.items()), default=None)
            assert best == found.head, found.need
            assert (found.need in self.queue.wide) == (found.need.count > 1 and bool(found.waiting)), found.need
