"""What a job asks of its agent, and that nothing is asked of one that does not know it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.upgrade.wire1 import records as was

from tenure.domain import promises
from tenure.domain.device import Device, DeviceState
from tenure.domain.explain import reasons
from tenure.domain.job import JobSpec
from tenure.domain.state import FleetState, need_of

#: Fields that came later and whose being ignored breaks no promise: what counts for a bound (the bound itself is one),
#: and the names of variables that an older agent, always on the caller's machine, gives to the job anyway.
HARMLESS = {"idle_signal", "passed"}
ASKED: dict[str, Any] = {
    "max_runtime_s": 60.0,
    "idle_timeout_s": 60.0,
    "needs": ("tool nvcc",),
    "keep": True,
    "stage": {"hash": "ab" * 32},
    "output_quota_bytes": 1,
}


def test_every_field_that_came_after_wire_1_is_a_promise_or_known_to_be_none() -> None:
    known = {each.name for each in dataclasses.fields(was.JobSpec)}
    later = {each.name for each in dataclasses.fields(JobSpec)} - known
    assert later == set(ASKED) | HARMLESS


@pytest.mark.parametrize("field", sorted(ASKED))
def test_each_promise_needs_an_agent_that_keeps_it(field: str) -> None:
    spec = dataclasses.replace(JobSpec(("true",)), **{field: ASKED[field]})
    assert promises.wire_of(spec) == 2
    state = FleetState()
    told_of: dict[str, dict[str, Any]] = {"old:gpu0": {"wire": 1}, "new:gpu0": {}}
    for name, facts in told_of.items():
        host, uuid, ready = name.split(":")[0], f"GPU-{name}", DeviceState.READY
        state.devices[name] = Device(name, uuid, "nvidia", host, host, False, 0, ready, 0.0, facts=facts)
    assert state.match(need_of(spec), state.devices.values()) == {"new:gpu0"}
    told = reasons(state, need_of(spec))
    assert told["new:gpu0"] == "matches"
    assert "speaks wire version 1" in told["old:gpu0"]


@pytest.mark.parametrize("off", [{}, {"max_runtime_s": 0}, {"idle_timeout_s": 0.0, "idle_signal": "output"}])
def test_a_job_that_promises_nothing_fits_anywhere(off: dict[str, Any]) -> None:
    spec = dataclasses.replace(JobSpec(("true",)), **off)
    assert promises.wire_of(spec) == 1
