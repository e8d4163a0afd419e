"""The fleet core: what may be decided about devices, leases and jobs.

``decide(state, command, now)`` reads the state and returns events or a refusal; ``handle`` applies them and then
grants what has become grantable. Nothing here reads a clock, a file or a socket, so a whole fleet can be run from
one seed and every guarantee tested by repeating, delaying and reordering its messages.

The guards that carry the guarantees are marked with the invariant they hold (I1 to I12, see docs/explanation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tenure.domain import commands as cmd
from tenure.domain import events as ev
from tenure.domain import reports
from tenure.domain.evolve import evolve
from tenure.domain.explain import describe_bound, describe_mismatch
from tenure.domain.grants import grantable, grants
from tenure.domain.job import Ending, JobState, Outcome
from tenure.domain.operate import operate
from tenure.domain.pieces import ended
from tenure.domain.queue import Requirement, order_of
from tenure.domain.refusal import Refusal
from tenure.domain.registration import register
from tenure.domain.reports import StaleReport
from tenure.domain.specs import spec_to
from tenure.domain.state import FleetState, need_of

Decision: TypeAlias = "list[ev.Event] | Refusal"


@dataclass(slots=True)
class Outcomes:
    """What came of a command: the events in order, or a refusal; ``ignored`` says why a report changed nothing."""

    events: list[ev.Event] = field(default_factory=list)
    refusal: Refusal | None = None
    ignored: str = ""


def handle(state: FleetState, command: cmd.Command, now: float) -> Outcomes:
    """Decides one command, applies its events, and grants every device that this made grantable.

    ``now`` is UTC seconds and labels the events. A refusal leaves the state untouched.
    """
    try:
        decided = decide(state, command, now)
    except StaleReport as stale:
        return Outcomes(ignored=str(stale))
    if isinstance(decided, Refusal):
        return Outcomes(refusal=decided)
    done = Outcomes(decided)
    for event in decided:
        evolve(state, event)
    for event in grants(state, decided, now):
        done.events.append(event)
    return done


def decide(state: FleetState, command: cmd.Command, now: float) -> Decision:
    """The events that a command causes, or why it is refused. Raises ``StaleReport`` for a report out of date."""
    return _DECIDE[type(command)](state, command, now)


def _begin(state: FleetState, command: cmd.Begin, now: float) -> Decision:
    # The clock in milliseconds is above every token granted before, also by a ledger that was lost and is now replaced
    # by an older copy of itself: no device is granted a thousand times a second (I4).
    began: list[ev.Event] = [ev.ControllerStarted(at=now, token_floor=int(now * 1000))]
    return began + [
        ev.ContactLost(at=now, agent=agent.id, silent_s=0.0) for agent in state.agents.values() if agent.contact
    ]


# -- what users ask for ------------------------------------------------------------------------------------------------


def _submit(state: FleetState, command: cmd.Submit, now: float) -> Decision:
    if command.key is not None:
        known = state.keys.get((command.owner, command.key))
        if known is not None and known[1] == command.body_hash:  # I11: the same key and body is the same job
            return []
        if known is not None:
            return Refusal(
                "key_reused",
                f"the idempotency key {command.key!r} belongs to job {known[0]}, which asked for something else",
                "use a new key for a new job",
                {"job": known[0]},
            )
    spec = command.spec
    need = state.class_of(spec)
    impossible = _impossible(state, need, need_of(spec))
    if impossible is not None:
        return impossible
    order = order_of(max(now, state.last_arrival), spec.priority, state.sequence + 1)
    if not command.wait and not grantable(state, need, order):
        return _busy(state, need)
    return [
        ev.JobSubmitted(
            at=now,
            actor=command.owner,
            job=command.job,
            owner=command.owner,
            spec=spec_to(spec),
            order=order,
            key=command.key,
            body_hash=command.body_hash,
        )
    ]


def _impossible(state: FleetState, need: Requirement, asked: Requirement) -> Refusal | None:
    """Why no device of the fleet can ever satisfy a requirement, or ``None`` where one can. ``asked`` is the same with
    the bounds as they were asked for."""
    if need.device is not None and need.device not in state.devices:
        names = sorted(state.devices)
        return Refusal(
            "unknown_device",
            f"there is no device {need.device!r} here",
            "the devices are: " + (", ".join(names) if names else "none yet; is an agent running?"),
            {"device": need.device, "devices": names},
        )
    fits = state.fitting(need)
    if fits and need.count == 1:
        return None
    by_host = _by_host(state, fits)
    if by_host and max(by_host.values()) >= need.count:
        return None
    enough = _by_host(state, state.named(need, state.devices.values()))
    if enough and max(enough.values()) >= need.count:  # there are devices for it, and they do not allow its bounds
        return describe_bound(state, asked)
    return describe_mismatch(state, asked, by_host)


def _by_host(state: FleetState, names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        host = state.devices[name].host
        found[host] = found.get(host, 0) + 1
    return found


def _busy(state: FleetState, need: Requirement) -> Refusal:
    fits = sorted(state.fitting(need))
    why = {name: state.devices[name].words for name in fits}
    listed = "; ".join(f"{name} is {words}" for name, words in list(why.items())[:8])
    return Refusal("busy", f"nothing that fits is free now: {listed}", "leave out --no-wait to queue for it", why)


def _cancel(state: FleetState, command: cmd.Cancel, now: float) -> Decision:
    job = state.jobs.get(command.job)
    if job is None or job.state is JobState.ENDED:
        return Refusal("conflict", f"job {command.job} is over already", "", {"job": command.job})
    if job.state is JobState.QUEUED:
        outcome = Outcome(Ending.CANCELLED, cause=f"cancelled by {command.by}", detail=command.reason)
        return [ended(job, outcome, now, command.by)]
    if job.state is JobState.STOPPING:
        return []
    reason = f"cancelled by {command.by}" + (f": {command.reason}" if command.reason else "")
    return [ev.StopRequested(at=now, actor=command.by, job=job.id, attempt=job.attempt, reason=reason)]


def _expire_queued(state: FleetState, command: cmd.ExpireQueued, now: float) -> Decision:
    job = state.jobs.get(command.job)
    if job is None or job.state is not JobState.QUEUED:
        return []
    detail = f"no device became free for it within {command.waited_s:g} s"
    return [ended(job, Outcome(Ending.TIMED_OUT, detail=detail), now, "controller")]


def _lose_contact(state: FleetState, command: cmd.LoseContact, now: float) -> Decision:
    agent = state.agents.get(command.agent)
    if agent is None or not agent.contact:
        return []
    return [ev.ContactLost(at=now, agent=command.agent, silent_s=command.silent_s)]


_DECIDE: Mapping[type[Any], Callable[[FleetState, Any, float], Decision]] = {
    cmd.Begin: _begin,
    cmd.Submit: _submit,
    cmd.Cancel: _cancel,
    cmd.ExpireQueued: _expire_queued,
    cmd.Operate: operate,
    cmd.Register: register,
    cmd.LoseContact: _lose_contact,
    cmd.ReportStarted: reports.started,
    cmd.ReportRefused: reports.refused,
    cmd.ReportEnded: reports.attempt_ended,
    cmd.ReportUse: reports.use_judged,
    cmd.ReportNotice: reports.noticed,
    cmd.ReportDevice: reports.device_seen,
}


def submitted_job(command: cmd.Submit, state: FleetState, events: Iterable[ev.Event]) -> str:
    """The id of the job that a submission stands for: its own, or the one its key had made before."""
    if any(isinstance(event, ev.JobSubmitted) for event in events) or command.key is None:
        return command.job
    return state.keys[(command.owner, command.key)][0]
