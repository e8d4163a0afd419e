"""``replaced`` gives what ``dataclasses.replace`` gives, and the records stay frozen."""

from __future__ import annotations

import dataclasses

import pytest

from tenure.domain.device import CLEAR, Device, DeviceState
from tenure.domain.job import Job, JobSpec, JobState, Lease
from tenure.domain.replacing import replaced
from tenure.domain.state import AgentRecord

DEVICE = Device("h:gpu0", "GPU-1", "nvidia", "h", "a", False, 3, DeviceState.READY, 1.5)
JOB = Job("j1", "ann", JobSpec(("true",)), JobState.QUEUED, 2.5, (2.5, 1))
LEASE = Lease("l", "h:gpu0", "GPU-1", "a", "j1", 1, 4, "held", 3.5)
AGENT = AgentRecord("a", "h", "b", "n", "i", "ann", True, 4.5)


@pytest.mark.parametrize("record", [DEVICE, JOB, LEASE, AGENT])
def test_it_is_the_standard_librarys_replace(record: Device | Job | Lease | AgentRecord) -> None:
    before = dataclasses.asdict(record)
    fresh = replaced(record, version=9)
    assert fresh == dataclasses.replace(record, version=9)
    assert hash(type(fresh)) == hash(type(record))
    assert dataclasses.asdict(record) == before
    assert replaced(record) == record
    with pytest.raises(dataclasses.FrozenInstanceError):
        fresh.version = 10  # type: ignore[misc]


def test_what_is_derived_follows() -> None:
    assert replaced(DEVICE, state=DeviceState.OCCUPIED, condition=dataclasses.replace(CLEAR, detail="X")).words == (
        "occupied (X)"
    )
    assert not replaced(LEASE, state="released").live


def test_a_field_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="Device has no states"):
        replaced(DEVICE, states=DeviceState.BUSY)
