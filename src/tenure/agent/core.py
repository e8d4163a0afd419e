"""The agent's core: which instructions it accepts, what it owes the controller, and when it may forget.

Pure, like the fleet's: ``decide`` reads the state and returns events to journal and effects to carry out;
``evolve`` applies events. The shell makes the events durable *before* it carries out any effect, so that a token is
on disk before a process exists under it (I5) and a report is on disk before it is sent (I13).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from tenure.agent import records as r
from tenure.domain.device import Condition
from tenure.domain.ends import Identity, name_end
from tenure.domain.instructions import Grant, StartJob, StopJob
from tenure.domain.job import Ending, Outcome
from tenure.domain.replacing import replaced
from tenure.domain.specs import condition_to, outcome_to

Decision: TypeAlias = tuple[list[r.AgentEvent], list[r.Effect]]

_FORGOTTEN = Outcome(
    Ending.LOST,
    cause="lost_cause_not_established",
    detail="the host accepted it once and has no record of it any more",
)


@dataclass(slots=True)
class AgentState:
    """What the journal says.

    ``identity`` (boot id, namespace, agent instance) and ``conditions`` (UUID -> what was last seen there) are the
    running agent's own and come from its shell; they are never journaled. ``unlooked`` are the attempts of which
    anything may have run since the last look at this worker began, and ``unlooked_more`` how many more there are.
    """

    identity: tuple[str, str, str] = ("", "", "")
    high_water: dict[str, int] = field(default_factory=dict)
    attempts: dict[r.Key, r.Attempt] = field(default_factory=dict)
    outbox: dict[int, r.ReportQueued] = field(default_factory=dict)
    next_seq: int = 1
    conditions: dict[str, Condition] = field(default_factory=dict)
    unlooked: dict[r.Key, None] = field(default_factory=dict)
    unlooked_more: int = 0

    def on_device(self, uuid: str) -> list[r.Attempt]:
        """The attempts that may still have something alive on a device."""
        return [
            attempt
            for attempt in self.attempts.values()
            for grant in attempt.grants
            if grant.uuid == uuid and (attempt.phase != "ended" or grant.device in attempt.unproved)
        ]


#: Attempts since the last look that are known by name.
MAX_UNLOOKED = 512


def decide(state: AgentState, message: r.Message) -> Decision:
    """What a message leads to: events to make durable, then effects to carry out in order."""
    return _DECIDE[type(message)](state, message)


# -- instructions ------------------------------------------------------------------------------------------------------


def _start(state: AgentState, message: StartJob) -> Decision:
    key = (message.job, message.attempt)
    if key in state.attempts:
        return [], []
    reason = _why_not(state, message.grants)
    if reason:
        # The very token that is the highest here: this attempt was accepted once, and there is no record of it.
        ran = any(grant.token == state.high_water.get(grant.uuid, 0) for grant in message.grants)
        return _declined(state, message, reason, _FORGOTTEN if ran else None)
    accepted = r.AttemptAccepted(
        message.job, message.attempt, message.owner, message.grants, message.spec, state.identity
    )
    return [accepted], [r.Spawn(key)]


def _why_not(state: AgentState, grants: tuple[Grant, ...]) -> str:
    """Why a start must not happen, or an empty text."""
    for grant in grants:
        high = state.high_water.get(grant.uuid, 0)
        if grant.token <= high:  # I5: the fence
            return f"{grant.device}: token {grant.token} is not above {high}, the highest accepted here"
        for other in state.on_device(grant.uuid):
            return f"{grant.device}: {other.job}#{other.attempt} is not proved gone from it"
        seen = state.conditions.get(grant.uuid)
        if seen is not None and seen.outcome != "clear":
            return f"{grant.device} is {seen.outcome}: {seen.detail}"
    return ""


def _stop(state: AgentState, message: StopJob) -> Decision:
    attempt = state.attempts.get((message.job, message.attempt))
    if attempt is None and not message.grants:
        return [], []  # it was to be stopped because no lease covers it, and it is gone already
    if attempt is None:
        # Declining raises the high-water tokens: a stop fences too, and no later start of this attempt runs (I5, I12).
        never_seen = all(grant.token > state.high_water.get(grant.uuid, 0) for grant in message.grants)
        return _declined(state, message, message.reason, None if never_seen else _FORGOTTEN)
    if attempt.phase == "ended":
        return [], [r.Look(attempt.key)] if attempt.unproved else []
    events: list[r.AgentEvent] = []
    if attempt.stop is None:
        events.append(r.StopAccepted(message.job, message.attempt, message.reason))
    return events, [r.Signal(attempt.key)]


def _declined(state: AgentState, message: StartJob | StopJob, reason: str, outcome: Outcome | None) -> Decision:
    """Records an attempt that does not run here, says so, and looks at its devices."""
    boot = message.boot_id if isinstance(message, StopJob) and outcome is not None else ""
    identity = (boot, "", "")
    if outcome is not None and boot:  # what the host was at the grant tells more than the want of a record
        cause = name_end(Identity(*identity), Identity(*state.identity), supervisor_alive=False)
        outcome = replace(outcome, cause=cause)
    return _decline(state, r.AttemptDeclined(message.job, message.attempt, message.grants, reason, outcome, identity))


def _decline(state: AgentState, event: r.AttemptDeclined) -> Decision:
    attempt = _declined_attempt(state, event)
    report = _final_report(state, attempt)
    return [event, report], [r.Send(report.seq), r.Look(attempt.key)]


def _declined_attempt(state: AgentState, event: r.AttemptDeclined) -> r.Attempt:
    key = (event.job, event.attempt)
    attempt = state.attempts.get(key) or r.Attempt(event.job, event.attempt, "", event.grants, None, "ended")
    unproved = frozenset(grant.device for grant in event.grants)
    attempt = replaced(attempt, phase="ended", stop=event.reason, unproved=unproved, outcome=event.outcome)
    attempt = replaced(attempt, unasked=event.unasked) if event.unasked else attempt
    return replaced(attempt, identity=event.identity) if event.identity[0] else attempt


def _final_report(state: AgentState, attempt: r.Attempt) -> r.ReportQueued:
    """All that is known of an attempt that is over: how it ended, and what was seen on each of its devices."""
    body: dict[str, Any] = {
        "job": attempt.job,
        "attempt": attempt.attempt,
        "tokens": attempt.tokens,
        "proofs": {name: condition_to(seen) for name, seen in attempt.looks.items()},
    }
    if attempt.outcome is None:
        return r.ReportQueued(state.next_seq, "refused", {**body, "reason": attempt.stop or ""}, attempt.key)
    body |= {"outcome": outcome_to(attempt.outcome), "output_bytes": attempt.output_bytes, "use": attempt.use}
    return r.ReportQueued(state.next_seq, "ended", body, attempt.key)


# -- what the supervisor and the probes tell ---------------------------------------------------------------------------


def _started(state: AgentState, message: r.Started) -> Decision:
    attempt = state.attempts.get((message.job, message.attempt))
    if attempt is None or attempt.phase != "accepted":
        return [], []
    body = {
        "job": attempt.job,
        "attempt": attempt.attempt,
        "tokens": attempt.tokens,
        "pid": message.leader_pid,
        "evidence": message.evidence,
    }
    report = _report(state, "started", body, attempt.key)
    events: list[r.AgentEvent] = [r.SupervisorMade(attempt.job, attempt.attempt, message.supervisor), report]
    effects: list[r.Effect] = [r.Send(report.seq)]
    if attempt.stop is not None:
        effects.append(r.Signal(attempt.key))
    return events, effects


def _not_started(state: AgentState, message: r.NotStarted) -> Decision:
    attempt = state.attempts.get((message.job, message.attempt))
    if attempt is None or attempt.phase != "accepted":
        return [], []
    declined = r.AttemptDeclined(attempt.job, attempt.attempt, attempt.grants, message.detail, unasked=message.unasked)
    return _decline(state, declined)


def _ended(state: AgentState, message: r.Ended) -> Decision:
    attempt = state.attempts.get((message.job, message.attempt))
    if attempt is None or attempt.phase == "ended":
        return [], []
    events: list[r.AgentEvent] = [
        r.AttemptEnded(attempt.job, attempt.attempt, message.outcome, message.output_bytes, message.use)
    ]
    if message.proofs:
        events.append(r.DevicesLooked(attempt.job, attempt.attempt, message.proofs))
    return _reported(state, attempt, events)


def _looked(state: AgentState, message: r.Looked) -> Decision:
    attempt = state.attempts.get((message.job, message.attempt))
    if attempt is None or attempt.phase != "ended" or not attempt.unproved:
        return [], []
    news = {
        name: seen
        for name, seen in message.proofs.items()
        if name in attempt.unproved and attempt.looks.get(name) != seen
    }
    if not news:
        return [], []
    events, effects = _reported(state, attempt, [r.DevicesLooked(attempt.job, attempt.attempt, news)])
    return events, [effect for effect in effects if not isinstance(effect, r.Look)]


def _reported(state: AgentState, attempt: r.Attempt, events: list[r.AgentEvent]) -> Decision:
    """The events with the report that follows from them, and a look at what is still unproved."""
    for event in events:
        if isinstance(event, r.AttemptEnded | r.DevicesLooked):
            attempt = _ended_attempt(attempt, event) if isinstance(event, r.AttemptEnded) else _seen(attempt, event)
    report = _final_report(state, attempt)
    effects: list[r.Effect] = [r.Send(report.seq)]
    if attempt.unproved:
        effects.append(r.Look(attempt.key))
    return [*events, report], effects


def _ended_attempt(attempt: r.Attempt, event: r.AttemptEnded) -> r.Attempt:
    return replaced(attempt, phase="ended", outcome=event.outcome, output_bytes=event.output_bytes, use=event.use)


def _seen(attempt: r.Attempt, event: r.DevicesLooked) -> r.Attempt:
    proved = {name for name, seen in event.proofs.items() if seen.outcome in r.PROVES_EMPTY}
    return replaced(attempt, unproved=attempt.unproved - proved, looks={**attempt.looks, **event.proofs})


def _judged(state: AgentState, message: r.Judged) -> Decision:
    attempt = state.attempts.get((message.job, message.attempt))
    if attempt is None or attempt.phase == "ended":
        return [], []
    body = {"job": attempt.job, "attempt": attempt.attempt, "tokens": attempt.tokens, "use": dict(message.use)}
    report = _report(state, "use", body, attempt.key)
    return [report], [r.Send(report.seq)]


def _noticed(state: AgentState, message: r.Noticed) -> Decision:
    attempt = state.attempts.get((message.job, message.attempt))
    if attempt is None or (attempt.phase == "ended" and not attempt.unproved):
        return [], []  # its leases are given back, or about to be: nobody may be told under its token any more
    body = {"job": attempt.job, "attempt": attempt.attempt, "tokens": attempt.tokens, "notice": dict(message.notice)}
    report = _report(state, "notice", body, attempt.key)
    return [report], [r.Send(report.seq)]


def _overran(state: AgentState, message: r.Overran) -> Decision:
    attempt = state.attempts.get((message.job, message.attempt))
    if attempt is None or attempt.phase == "ended" or attempt.stop is not None:
        return [], []
    return [r.StopAccepted(attempt.job, attempt.attempt, message.reason)], [r.Signal(attempt.key)]


def _floors_given(state: AgentState, message: r.FloorsGiven) -> Decision:
    news = {uuid: token for uuid, token in message.tokens.items() if token > state.high_water.get(uuid, 0)}
    return ([r.Fenced(news)], []) if news else ([], [])


def _worker_looked(state: AgentState, message: r.WorkerLooked) -> Decision:
    running = [key for key, attempt in state.attempts.items() if attempt.phase != "ended"]
    keys = tuple(key for key in dict.fromkeys((*state.unlooked, *running)) if key not in message.over)
    if len(keys) == len(state.unlooked) and not state.unlooked_more:
        return [], []
    return [r.JobsUnlooked(keys)], []


def _report(state: AgentState, kind: str, body: Mapping[str, Any], key: r.Key) -> r.ReportQueued:
    return r.ReportQueued(state.next_seq, kind, body, key)


# -- what the controller has for good ----------------------------------------------------------------------------------


def _acked(state: AgentState, message: r.Acked) -> Decision:
    report = state.outbox.get(message.seq)
    if report is None:
        return [], []
    events: list[r.AgentEvent] = [r.ReportAcked(message.seq)]
    attempt = state.attempts.get(report.key)
    return _forgotten(events, replaced(attempt, owed=attempt.owed - {message.seq}) if attempt else None)


def _output_taken(state: AgentState, message: r.OutputTaken) -> Decision:
    attempt = state.attempts.get((message.job, message.attempt))
    if attempt is None or message.offset <= attempt.output_acked:
        return [], []
    events: list[r.AgentEvent] = [r.OutputAcked(message.job, message.attempt, message.offset)]
    return _forgotten(events, replaced(attempt, output_acked=message.offset))


def _forgotten(events: list[r.AgentEvent], attempt: r.Attempt | None) -> Decision:
    """Adds the end of an attempt's record where the controller has all of it: reports, proofs and output (I13)."""
    if attempt is None or attempt.phase != "ended" or attempt.owed or attempt.unproved:
        return events, []
    if attempt.output_acked < attempt.output_bytes:
        return events, []
    return [*events, r.AttemptForgotten(attempt.job, attempt.attempt)], [r.Discard(attempt.key)]


_DECIDE: Mapping[type[Any], Callable[[AgentState, Any], Decision]] = {
    StartJob: _start,
    StopJob: _stop,
    r.Started: _started,
    r.NotStarted: _not_started,
    r.Ended: _ended,
    r.Looked: _looked,
    r.Judged: _judged,
    r.Noticed: _noticed,
    r.Overran: _overran,
    r.FloorsGiven: _floors_given,
    r.WorkerLooked: _worker_looked,
    r.Acked: _acked,
    r.OutputTaken: _output_taken,
}


def owed(state: AgentState) -> list[r.ReportQueued]:
    """What to send on a new connection: the outbox in order, then, unnumbered, what is known of attempts that are over.

    The latter matters where the controller's ledger is older than what it once acknowledged, and costs little: an
    attempt is forgotten as soon as the controller has all of it.
    """
    again = [
        replace(_final_report(state, attempt), seq=0) for attempt in state.attempts.values() if attempt.phase == "ended"
    ]
    return [state.outbox[seq] for seq in sorted(state.outbox)] + again


# -- applying events ---------------------------------------------------------------------------------------------------


def evolve(state: AgentState, event: r.AgentEvent) -> None:
    """Applies one event, live or from the journal. Never refuses."""
    _APPLY[type(event)](state, event)


def _raise(state: AgentState, uuid: str, token: int) -> None:
    state.high_water[uuid] = max(token, state.high_water.get(uuid, 0))


def _on_fenced(state: AgentState, event: r.Fenced) -> None:
    for uuid, token in event.tokens.items():
        _raise(state, uuid, token)


def _on_accepted(state: AgentState, event: r.AttemptAccepted) -> None:
    for grant in event.grants:
        _raise(state, grant.uuid, grant.token)
    attempt = r.Attempt(
        event.job, event.attempt, event.owner, event.grants, event.spec, "accepted", identity=event.identity
    )
    state.attempts[attempt.key] = replaced(attempt, unproved=frozenset(attempt.tokens))
    state.unlooked[attempt.key] = None
    while len(state.unlooked) > MAX_UNLOOKED:
        del state.unlooked[next(iter(state.unlooked))]
        state.unlooked_more += 1


def _on_declined(state: AgentState, event: r.AttemptDeclined) -> None:
    for grant in event.grants:  # what was declined once is never started later: a repeated start is fenced too
        _raise(state, grant.uuid, grant.token)
    attempt = _declined_attempt(state, event)
    state.attempts[attempt.key] = attempt
    if event.outcome is None:
        state.unlooked.pop(attempt.key, None)  # nothing of it ran


def _on_stop(state: AgentState, event: r.StopAccepted) -> None:
    key = (event.job, event.attempt)
    state.attempts[key] = replaced(state.attempts[key], stop=event.reason)


def _on_made(state: AgentState, event: r.SupervisorMade) -> None:
    key = (event.job, event.attempt)
    state.attempts[key] = replaced(state.attempts[key], phase="started", supervisor=event.supervisor)


def _on_ended(state: AgentState, event: r.AttemptEnded) -> None:
    key = (event.job, event.attempt)
    state.attempts[key] = _ended_attempt(state.attempts[key], event)


def _on_looked(state: AgentState, event: r.DevicesLooked) -> None:
    key = (event.job, event.attempt)
    state.attempts[key] = _seen(state.attempts[key], event)


def _on_queued(state: AgentState, event: r.ReportQueued) -> None:
    state.outbox[event.seq] = event
    state.next_seq = max(state.next_seq, event.seq + 1)
    attempt = state.attempts.get(event.key)
    if attempt is not None:
        state.attempts[event.key] = replaced(attempt, owed=attempt.owed | {event.seq})


def _on_acked(state: AgentState, event: r.ReportAcked) -> None:
    report = state.outbox.pop(event.seq, None)
    state.next_seq = max(state.next_seq, event.seq + 1)
    attempt = state.attempts.get(report.key) if report is not None else None
    if attempt is not None:
        state.attempts[attempt.key] = replaced(attempt, owed=attempt.owed - {event.seq})


def _on_output(state: AgentState, event: r.OutputAcked) -> None:
    key = (event.job, event.attempt)
    attempt = state.attempts[key]
    state.attempts[key] = replaced(attempt, output_acked=max(event.offset, attempt.output_acked))


def _on_forgotten(state: AgentState, event: r.AttemptForgotten) -> None:
    state.attempts.pop((event.job, event.attempt), None)


def _on_unlooked(state: AgentState, event: r.JobsUnlooked) -> None:
    state.unlooked, state.unlooked_more = dict.fromkeys(event.keys), event.more


_APPLY: Mapping[type[Any], Callable[[AgentState, Any], None]] = {
    r.Fenced: _on_fenced,
    r.AttemptAccepted: _on_accepted,
    r.AttemptDeclined: _on_declined,
    r.StopAccepted: _on_stop,
    r.SupervisorMade: _on_made,
    r.AttemptEnded: _on_ended,
    r.DevicesLooked: _on_looked,
    r.ReportQueued: _on_queued,
    r.ReportAcked: _on_acked,
    r.OutputAcked: _on_output,
    r.AttemptForgotten: _on_forgotten,
    r.JobsUnlooked: _on_unlooked,
}


def snapshot(state: AgentState) -> list[r.AgentEvent]:
    """Events that rebuild the state: what a compacted journal holds instead of its history."""
    events: list[r.AgentEvent] = [r.Fenced(dict(state.high_water))]
    for a in state.attempts.values():
        if a.spec is not None:
            events.append(r.AttemptAccepted(a.job, a.attempt, a.owner, a.grants, a.spec, a.identity))
            events += [r.SupervisorMade(a.job, a.attempt, a.supervisor)] if a.supervisor is not None else []
        ran = a.phase == "ended" and a.outcome is not None and a.spec is not None
        if ran and a.outcome is not None:
            events += [r.StopAccepted(a.job, a.attempt, a.stop)] if a.stop is not None else []
            events.append(r.AttemptEnded(a.job, a.attempt, a.outcome, a.output_bytes, a.use))
        elif a.phase == "ended":
            events.append(r.AttemptDeclined(a.job, a.attempt, a.grants, a.stop or "", a.outcome, a.identity, a.unasked))
        elif a.stop is not None:
            events.append(r.StopAccepted(a.job, a.attempt, a.stop))
        events += [r.DevicesLooked(a.job, a.attempt, a.looks)] if a.looks else []
        events += [r.OutputAcked(a.job, a.attempt, a.output_acked)] if a.output_acked else []
    if state.unlooked or state.unlooked_more or state.attempts:
        events.append(r.JobsUnlooked(tuple(state.unlooked), state.unlooked_more))
    events += list(state.outbox.values())
    if state.next_seq > 1 and (not state.outbox or max(state.outbox) < state.next_seq - 1):
        events.append(r.ReportAcked(state.next_seq - 1))
    return events
