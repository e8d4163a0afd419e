"""What agents are told to do, derived from the state: an instruction can be sent again at any time.

Instructions are level-triggered. Each says what should be true of one attempt, carries the fencing tokens of all its
devices, and means the same when it arrives twice or late: the agent's own high-water tokens decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tenure.domain import events as ev
from tenure.domain.commands import KnownAttempt
from tenure.domain.job import JobSpec, JobState
from tenure.domain.state import FleetState


@dataclass(frozen=True, slots=True)
class Grant:
    """One device of an attempt: its name, its UUID, the fencing token and the lease's id."""

    device: str
    uuid: str
    token: int
    lease: str


@dataclass(frozen=True, slots=True)
class StartJob:
    """Run this attempt, if every token is higher than any the device has accepted."""

    job: str
    attempt: int
    owner: str
    grants: tuple[Grant, ...]
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class StopJob:
    """End this attempt if it runs, never start it afterwards, and prove its devices empty of it.

    ``boot_id`` is the boot its host was in when it was granted, as far as that is known: a host that has no record of
    the attempt, and has booted since, knows by it that nothing of the attempt can be alive.
    """

    job: str
    attempt: int
    grants: tuple[Grant, ...]
    reason: str
    boot_id: str = ""


Instruction: TypeAlias = StartJob | StopJob


def from_events(state: FleetState, decided: Iterable[ev.Event]) -> list[tuple[str, Instruction]]:
    """The instructions that follow from events just applied, each with the agent it is for."""
    told: list[tuple[str, Instruction]] = []
    for event in decided:
        if isinstance(event, ev.LeaseGranted | ev.StopRequested):
            found = _instruction(state, event.job, event.attempt)
            if found is not None:
                told.append(found)
    return told


def on_register(
    state: FleetState, agent: str, known: Iterable[KnownAttempt], *, forgetful: bool = False
) -> list[Instruction]:
    """What an agent that has just connected must be told again. ``forgetful``: a reboot may empty its record.

    An attempt it does not know was either never delivered (then its start is sent) or its record is gone; then a
    stop makes it look, and report what it can prove. An attempt that only the agent knows is older than a restored
    ledger, or done with: nothing may run without a lease (I3), so it is stopped.
    """
    told: list[Instruction] = []
    held: set[tuple[str, int]] = set()
    for record in known:
        leases = state.live_leases(record.job, record.attempt)
        if any(lease.agent == agent and record.tokens.get(lease.device) == lease.token for lease in leases):
            held.add((record.job, record.attempt))
        else:
            told.append(StopJob(record.job, record.attempt, (), "this controller has no lease for it"))
    for job_id, attempt in sorted(_attempts_on(state, agent)):
        job = state.jobs.get(job_id)
        stopping = job is not None and job.attempt == attempt and job.state is JobState.STOPPING
        if (job_id, attempt) in held and not stopping:
            continue
        found = _instruction(state, job_id, attempt)
        if found is not None:
            told.append(_rather_stopped(state, found[1]) if forgetful else found[1])
    return told


def _rather_stopped(state: FleetState, told: Instruction) -> Instruction:
    """A start that may have been followed in an earlier boot, of which no record is left, becomes a stop: an attempt
    starts once, and nobody can say that this one did not."""
    if isinstance(told, StopJob) or all(_same_boot(state, grant.lease) for grant in told.grants):
        return told
    boot = state.leases[told.grants[0].lease].boot_id
    return StopJob(told.job, told.attempt, told.grants, "its host has rebooted and kept no record of it", boot)


def _same_boot(state: FleetState, lease: str) -> bool:
    found = state.leases[lease]
    return found.boot_id == state.agents[found.agent].boot_id


def floors(state: FleetState, agent: str, known: Iterable[KnownAttempt], *, forgetful: bool = False) -> dict[str, int]:
    """UUID -> the highest token that an agent must never start again, whatever became of its own record (A2, I5).

    The token of an attempt that may still have to be started there is left out, unless the agent knows it, or is
    ``forgetful`` and has rebooted since.
    """
    held = {(record.job, record.attempt) for record in known}
    found: dict[str, int] = {}
    for name in state.devices_of_agent.get(agent, ()):
        device = state.devices[name]
        token = state.tokens.get(device.uuid, 0)
        lease = state.leases.get(device.lease or "")
        unknown = lease is not None and (lease.job, lease.attempt) not in held
        if lease is not None and unknown and not (forgetful and not _same_boot(state, lease.id)):
            job = state.jobs.get(lease.job)
            if job is not None and job.attempt == lease.attempt and job.started_at is None and lease.state == "held":
                token = lease.token - 1
        found[device.uuid] = token
    return found


def _attempts_on(state: FleetState, agent: str) -> set[tuple[str, int]]:
    names = state.devices_of_agent.get(agent, set())
    leases = (state.devices[name].lease for name in names)
    return {(state.leases[lease].job, state.leases[lease].attempt) for lease in leases if lease is not None}


def _instruction(state: FleetState, job_id: str, attempt: int) -> tuple[str, Instruction] | None:
    leases = state.live_leases(job_id, attempt)
    if not leases:
        return None
    grants = tuple(Grant(lease.device, lease.uuid, lease.token, lease.id) for lease in leases)
    job = state.jobs[job_id]
    if job.attempt == attempt and job.state is JobState.STARTING:
        return leases[0].agent, StartJob(job_id, attempt, job.owner, grants, job.spec)
    over = "the attempt is over; its devices are not proved empty yet"
    reason = job.stop or over if job.attempt == attempt and job.state is JobState.STOPPING else over
    return leases[0].agent, StopJob(job_id, attempt, grants, reason, leases[0].boot_id)
