"""Which waiting job gets which ready device. Called after every change, with what the change touched.

A job that needs one device takes the ready device of the smallest name that fits. A job that needs several of one
host (all or nothing) reserves the host where most of them are ready: until it has them, devices there go to nobody
behind it in the queue. Devices elsewhere stay free for others. So a wide job cannot be starved by narrow ones, at
the price of devices that stand ready for it; both show in ``explain``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tenure.domain import events as ev
from tenure.domain.device import Device, DeviceState
from tenure.domain.evolve import evolve
from tenure.domain.job import JobState
from tenure.domain.queue import Order, QueueClass, Requirement
from tenure.domain.state import FleetState


def grants(state: FleetState, after: Iterable[ev.Event], now: float) -> Iterator[ev.LeaseGranted]:
    """Yields, already applied, every grant that the given events made possible."""
    if not state.queue.length:
        return
    pending = _touched(state, after)
    while pending:
        name = min(pending)
        pending.discard(name)
        granted = _serve(state, name, now)
        if granted is None:
            continue
        evolve(state, granted)
        yield granted
        # The next job of that class may have another ready device, and a reservation may have moved.
        pending |= _reach(state, state.queue.classes[state.need_of(state.jobs[granted.job])])
        pending |= _reserved(state)
        pending &= state.queue.ready


def _touched(state: FleetState, after: Iterable[ev.Event]) -> set[str]:
    """The ready devices for which the answer may have changed."""
    names = _reserved(state)
    for event in after:
        match event:
            case ev.JobSubmitted(job=job) | ev.JobRequeued(job=job):
                found = state.jobs.get(job)
                if found is not None and found.state is JobState.QUEUED:
                    names |= _reach(state, state.queue.classes[state.need_of(found)])
            case ev.JobEnded(job=job):
                # A wide job that left the queue gives up the devices that stood ready for it.
                found = state.jobs.get(job) or state.closed.get(job)
                if found is not None and found.spec.count > 1:
                    need = state.need_of(found)
                    names |= state.queue.classes[need].ready if state.queue.has(need) else set()
            case (
                ev.LeaseReleased(device=device)
                | ev.DeviceObserved(device=device)
                | ev.DeviceCleared(device=device)
                | ev.DeviceResumed(device=device)
                | ev.DeviceRegistered(device=device)
            ):
                names.add(device)
            case ev.AgentRegistered(agent=agent):
                names |= state.devices_of_agent.get(agent, set())
            case _:
                pass
    return names & state.queue.ready


def _reserved(state: FleetState) -> set[str]:
    """The ready devices that a waiting wide job could take: any change anywhere may complete its set."""
    names: set[str] = set()
    for need in state.queue.wide:
        names |= state.queue.classes[need].ready
    return names


def _reach(state: FleetState, found: QueueClass) -> set[str]:
    """Ready devices a new job of a class may get: the first free one, or all of them where some are held back."""
    first = found.first_ready
    if first is None or found.head is None:
        return set()
    if found.need.count == 1 and _best(state, state.devices[first]) is found:
        return {first}
    return set(found.ready)


def _serve(state: FleetState, name: str, now: float) -> ev.LeaseGranted | None:
    device = state.devices[name]
    if device.state is not DeviceState.READY:  # I9: only ready is free
        return None
    found = _best(state, device)
    if found is None or found.head is None:
        return None
    chosen = _enough(state, found, device.host) if found.need.count > 1 else [name]
    if chosen is None:
        return None
    job = state.jobs[found.head[1]]
    leases = []
    for member in chosen:
        uuid = state.devices[member].uuid
        token = max(state.tokens[uuid], state.token_floor) + 1  # I4: strictly increasing, never reused
        leases.append((f"{uuid}#{token}", member, token))
    return ev.LeaseGranted(at=now, job=job.id, attempt=max(job.attempt, job.last_attempt) + 1, leases=tuple(leases))


def _best(state: FleetState, device: Device) -> QueueClass | None:
    """The class whose head is next for this device: the smallest order among those that fit and can use it here."""
    best: QueueClass | None = None
    for need in state.queue.of_device.get(device.name, ()):
        found = state.queue.classes[need]
        if found.head is None or (best is not None and best.head is not None and best.head <= found.head):
            continue
        if need.count > 1 and _reserved_host(state, found) != device.host:
            continue
        best = found
    return best


def _reserved_host(state: FleetState, found: QueueClass) -> str | None:
    """The host on which a class of wide jobs collects its devices: most ready, then most that fit, then name."""
    fits: dict[str, int] = {}
    ready: dict[str, int] = {}
    for name in found.fits:
        device = state.devices[name]
        if device.state in (DeviceState.UNKNOWN, DeviceState.UNHEALTHY):
            continue
        fits[device.host] = fits.get(device.host, 0) + 1
        if device.state is DeviceState.READY:
            ready[device.host] = ready.get(device.host, 0) + 1
    wide = [host for host, count in fits.items() if count >= found.need.count]
    return min(wide, key=lambda host: (-ready.get(host, 0), -fits[host], host), default=None)


def _enough(state: FleetState, found: QueueClass, host: str) -> list[str] | None:
    here = sorted(name for name in found.ready if state.devices[name].host == host)
    return here[: found.need.count] if len(here) >= found.need.count else None


def grantable(state: FleetState, need: Requirement, order: Order) -> bool:
    """Whether a job of this requirement and order would get its devices at once."""
    ready = sorted(state.fitting(need) & state.queue.ready)
    free: dict[str, int] = {}
    for name in ready:
        device = state.devices[name]
        ahead = _best(state, device)
        if ahead is None or ahead.head is None or ahead.head[0] > order:
            free[device.host] = free.get(device.host, 0) + 1
    return bool(free) and max(free.values()) >= need.count
