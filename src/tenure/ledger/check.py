"""Whether memory, rows and history say the same: for tests, and for a person who wants to know.

Reads the whole history, so its cost grows with it. A ledger of which history was let go (``Ledger.forget``) cannot be
replayed any more: there is nothing then to hold its rows against.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tenure.domain.evolve import evolve
from tenure.domain.job import Job, Lease
from tenure.domain.state import FleetState
from tenure.ledger.rows import device_row, job_row, lease_row
from tenure.ledger.store import Ledger

_ALL = 1_000_000_000


def disagreements(ledger: Ledger, state: FleetState) -> list[str]:
    """One line for each thing on which memory, the rows and a replay of every event do not agree; empty where all do.

    The state must be settled. Compared are all records, open and closed, and what is derived from them: who waits
    where and in what order, which devices are ready, which leases an attempt holds, and the counters.
    """
    found: list[str] = []
    rows = FleetState()
    ledger.load(rows)
    replayed, closed, released = _replayed(ledger)
    found += _compare("rows", _image(state), _image(rows))
    found += _compare("replay", _image(state), _image(replayed))
    stored_jobs = {job.id: job for job in ledger.jobs(limit=_ALL)}
    jobs = {**closed, **replayed.jobs}
    found += _compare("rows of jobs against replay", _each(jobs, job_row), _each(stored_jobs, job_row))
    stored_leases = {lease.id: lease for job in stored_jobs for lease in ledger.leases_of(job)}
    leases = {**released, **replayed.leases}
    found += _compare("rows of leases against replay", _each(leases, lease_row), _each(stored_leases, lease_row))
    keys = {(job.owner, job.key): (job.id, job.body_hash) for job in stored_jobs.values() if job.key is not None}
    if keys != replayed.keys:
        found.append(f"replay: keys {replayed.keys} are not {keys} in the rows")
    found += [f"memory: key {key} means {value}" for key, value in state.keys.items() if keys.get(key) != value]
    try:
        state.validate()
    except AssertionError as error:
        found.append(f"memory: {error}")
    return found


def _replayed(ledger: Ledger) -> tuple[FleetState, dict[str, Job], dict[str, Lease]]:
    state = FleetState()
    closed: dict[str, Job] = {}
    released: dict[str, Lease] = {}
    while page := ledger.events_after(state.version, 500):
        for stored in page:
            if stored.seq != state.version + 1:
                raise AssertionError(f"event {state.version + 1} is missing: the next is {stored.seq}")
            evolve(state, stored.event)
        closed |= state.closed
        released |= state.released
        state.drain()
    return state, closed, released


def _each(records: Mapping[str, Any], row: Callable[[Any], Any]) -> dict[str, Any]:
    return {f"{type(record).__name__} {key}": row(record) for key, record in records.items()}


def _image(state: FleetState) -> dict[str, Any]:
    """Everything a state says, by name, in a form in which equal means equal."""
    image: dict[str, Any] = {
        "version": state.version,
        "sequence": state.sequence,
        "last arrival": state.last_arrival,
        "token floor": state.token_floor,
        "ready": sorted(state.queue.ready),
        "queue length": state.queue.length,
        "wide": sorted(map(repr, state.queue.wide)),
    }
    image |= {f"agent {key}": agent for key, agent in state.agents.items()}
    image |= {f"token of {key}": token for key, token in state.tokens.items()}
    image |= {f"device of {key}": name for key, name in state.uuids.items()}
    image |= {f"devices of {key}": sorted(names) for key, names in state.devices_of_agent.items() if names}
    image |= _each(state.devices, device_row)
    image |= _each(state.jobs, job_row)
    image |= _each(state.leases, lease_row)
    for job, attempt in state.leases_of:
        live = [lease.id for lease in state.live_leases(job, attempt)]
        if live:
            image[f"leases of {job}#{attempt}"] = live
    for need, found in state.queue.classes.items():
        if found.waiting:
            waiting = sorted((order, job) for job, order in found.waiting.items())
            image[f"class {need}"] = (waiting, found.head, sorted(found.fits), sorted(found.ready), found.first_ready)
    return image


def _compare(what: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    names = dict.fromkeys((*ours, *theirs))
    missing = "nothing"
    return [
        f"{what}: {name} is {json.dumps(theirs.get(name, missing), default=repr)}, "
        f"not {json.dumps(ours.get(name, missing), default=repr)}"
        for name in names
        if ours.get(name, missing) != theirs.get(name, missing)
    ]
