"""What a batch of events changed, as rows for each table and for each way of writing them."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.domain import events as ev
from tenure.domain.state import FleetState
from tenure.ledger import rows
from tenure.ledger.rows import Row


class Changes:
    """The rows that a batch touched, sorted by what has to be done with them.

    The events tell which rows are new: a job is born by ``JobSubmitted``, a lease by ``LeaseGranted``; a device is
    written whole when it is registered and in its moving parts otherwise.
    """

    def __init__(self, events: Iterable[ev.Event], state: FleetState) -> None:
        new: set[str] = set()
        registered: set[str] = set()
        for event in events:
            if isinstance(event, ev.JobSubmitted):
                new.add(event.job)
            elif isinstance(event, ev.LeaseGranted):
                new.update(lease for lease, _, _ in event.leases)
            elif isinstance(event, ev.DeviceRegistered):
                registered.add(event.device)
        self.agents: list[Row] = []
        self.tokens: list[Row] = []
        self.devices: list[Row] = []
        self.devices_moved: list[Row] = []
        self.devices_gone: list[Row] = []
        self.jobs: list[Row] = []
        self.jobs_moved: list[Row] = []
        self.leases: list[Row] = []
        self.leases_moved: list[Row] = []
        for table, key in state.touched:
            if table == "devices":
                device = state.devices.get(key)
                if device is None:
                    self.devices_gone.append((key,))
                elif key in registered:
                    self.devices.append(rows.device_row(device))
                else:
                    self.devices_moved.append(rows.device_moving(device))
            elif table == "jobs":
                job = state.jobs.get(key) or state.closed[key]
                if key in new:
                    self.jobs.append(rows.job_row(job))
                else:
                    self.jobs_moved.append(rows.job_moving(job))
            elif table == "leases":
                lease = state.leases.get(key) or state.released[key]
                if key in new:
                    self.leases.append(rows.lease_row(lease))
                else:
                    self.leases_moved.append(rows.lease_moving(lease))
            elif table == "tokens":
                self.tokens.append((key, state.tokens[key]))
            elif table == "agents":
                self.agents.append(rows.agent_row(state.agents[key]))
            else:
                raise KeyError(f"no table {table!r} for {key!r}")
