"""A fleet's state out of its rows: what is open, never history, with the indexes that derive from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import sqlalchemy as sa

from tenure.domain.device import DeviceState
from tenure.domain.job import JobState, Lease
from tenure.domain.state import FleetState
from tenure.ledger import rows, tables

_T = TypeVar("_T")
_CHUNK = 500


def loaded(connection: sa.Connection) -> FleetState:
    """The state that the rows describe. A handful of queries, each answered from an index or from a small table."""

    def read(query: sa.Select[Any], record: Callable[[Mapping[str, Any]], _T]) -> list[_T]:
        return [record(row._asdict()) for row in connection.execute(query)]

    state = FleetState()
    head = connection.execute(sa.select(tables.head)).mappings().one()
    state.version, state.sequence = head["version"], head["sequence"]
    state.last_arrival, state.token_floor = head["last_arrival"], head["token_floor"]
    state.agents = {agent.id: agent for agent in read(sa.select(tables.agents), rows.agent_from)}
    for uuid, token in connection.execute(sa.select(tables.tokens.c.uuid, tables.tokens.c.token)):
        state.tokens[uuid] = token
    for device in read(sa.select(tables.devices).order_by(tables.devices.c.name), rows.device_from):
        state.devices[device.name] = device
        state.uuids[device.uuid] = device.name
        state.devices_of_agent.setdefault(device.agent, set()).add(device.name)
        state.queue.set_ready(device.name, device.state is DeviceState.READY)
    state.note_ceilings()
    members: dict[tuple[str, int], list[Lease]] = {}
    for lease in read(sa.select(tables.leases).where(tables.LIVE), rows.lease_from):
        state.leases[lease.id] = lease
        members.setdefault((lease.job, lease.attempt), []).append(lease)
    for attempt, leases in members.items():  # a grant lists its devices by name
        state.leases_of[attempt] = tuple(lease.id for lease in sorted(leases, key=lambda lease: lease.device))
    holding = sorted({job for job, _ in members})
    found = {job.id: job for job in read(sa.select(tables.jobs).where(tables.UNFINISHED), rows.job_from)}
    for start in range(0, len(holding), _CHUNK):
        among = tables.jobs.c.id.in_(holding[start : start + _CHUNK])
        found |= {job.id: job for job in read(sa.select(tables.jobs).where(among), rows.job_from)}
    state.jobs = found
    for job in sorted(found.values(), key=lambda job: job.order):
        if job.state is JobState.QUEUED:
            need = state.need_of(job)
            if not state.queue.has(need):
                state.queue.open(need, state.match(need, state.devices.values()))
            state.queue.add(job.id, job.order, need)
    return state
