"""What the NVML child may report, garbage included: never a crash, never a number that no device can have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.reading import Reason, Scope, Unavailable, Value
from tenure.probes import nvml_parse as parse
from tenure.probes.nvml_calls import failure, number, reason_of

ALL_ONES = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 200),
    st.sampled_from([*ALL_ONES, -1, 1 << 63]),
    st.floats(allow_nan=True),
    st.text(max_size=5),
)
entry = st.dictionaries(st.sampled_from(["pid", "memory", "gi", "ci", "at", "sm", "total", "used", "gpu", "time"]), odd)
raw = st.one_of(odd, entry, st.lists(st.one_of(odd, entry, st.fixed_dictionaries({"v": st.one_of(odd, entry)}))))
report = st.one_of(
    odd,
    st.fixed_dictionaries({"v": raw}),
    st.fixed_dictionaries({"e": odd, "m": odd}),
    st.fixed_dictionaries({"x": odd}),
    st.dictionaries(st.text(max_size=2), odd, max_size=2),
)
NAMES = [
    *parse._EXPECTED,
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetAccountingStats",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "handle",
]


def numbers(item: Any) -> Iterator[int]:
    """Every whole number that stands in a record as a value."""
    if isinstance(item, Value):
        yield from numbers(item.value)
    elif isinstance(item, tuple):
        for part in item:
            yield from numbers(part)
    elif is_dataclass(item) and not isinstance(item, Unavailable):
        for field in fields(item):
            if field.name != "at":
                yield from numbers(getattr(item, field.name))
    elif isinstance(item, int):
        yield item


@given(st.dictionaries(st.sampled_from(NAMES), report))
def test_whatever_is_reported_is_read_without_a_crash_or_an_impossible_number(calls: dict[str, Any]) -> None:
    sample = parse.device_sample("GPU-a", calls, 1.0)
    found = list(numbers(sample))
    assert not set(found) & set(ALL_ONES)
    assert min(found, default=0) >= -60  # only a temperature may be below zero
    again = parse.device_sample("GPU-a", calls, 1.0, missing=Unavailable(Reason.TIMEOUT, 1.0, "nvml", Scope.DEVICE))
    assert not set(numbers(again)) & set(ALL_ONES)


@given(st.dictionaries(st.sampled_from(["nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMigMode"]), report))
def test_a_card_without_a_readable_uuid_is_lost_and_never_a_device(calls: dict[str, Any]) -> None:
    reply = {"system": {}, "devices": [{"index": 3, "calls": {"handle": {"v": True}, **calls}}]}
    got = parse.inventory(reply, 1.0, library="x", simulated=False)
    assert len(got.devices) + len(got.lost) == 1
    assert all(device.uuid.strip() for device in got.devices)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (3, Reason.NOT_SUPPORTED),
        (4, Reason.NO_PERMISSION),
        (9, Reason.LIBRARY_MISSING),
        (12, Reason.LIBRARY_MISSING),
        (13, Reason.FUNCTION_MISSING),
        (15, Reason.GPU_LOST),
        (18, Reason.VERSION_MISMATCH),
        (25, Reason.FUNCTION_MISSING),
        (31337, Reason.UNPARSEABLE),
    ],
)
def test_codes(code: int, reason: Reason) -> None:
    assert reason_of(code) is reason
    got = failure({"e": code, "m": "words"}, 1.0, "nvml.x")
    assert got is not None
    assert (got.reason, got.detail) == (reason, f"words ({code})")


def test_an_unknown_error_is_a_lost_card_only_while_its_handle_is_opened() -> None:
    assert reason_of(999) is Reason.UNPARSEABLE
    assert reason_of(999, handle=True) is Reason.GPU_LOST


def test_a_truth_value_is_no_number() -> None:
    assert isinstance(number(True, 1.0, "x"), Unavailable)


def test_more_used_than_there_is_cannot_be() -> None:
    calls = {"nvmlDeviceGetMemoryInfo_v2": {"v": {"total": 100, "used": 101}}}
    sample = parse.device_sample("GPU-a", calls, 1.0)
    assert isinstance(sample.memory_used, Unavailable)
    assert sample.memory_used.reason is Reason.OUT_OF_RANGE
    assert isinstance(sample.memory_total, Value)


def test_one_impossible_pid_voids_the_list() -> None:
    """Who else is missing from a list that is part garbage cannot be known: so it says nothing of anybody."""
    listed = [{"pid": 77, "memory": 1}, {"pid": 0xFFFFFFFF, "memory": None}]
    calls = {"nvmlDeviceGetComputeRunningProcesses_v3": {"v": listed}}
    compute = parse.device_sample("GPU-a", calls, 1.0).compute
    assert isinstance(compute, Unavailable)
    assert compute.reason is Reason.OUT_OF_RANGE


def test_process_utilisation_takes_the_highest_and_skips_slots_never_filled() -> None:
    samples = [
        {"pid": 7, "at": 5, "sm": 0, "memory": 0},
        {"pid": 7, "at": 6, "sm": 55, "memory": 4},
        {"pid": 0, "at": 0, "sm": 0, "memory": 0},
        {"pid": 8, "at": 6, "sm": 0xFFFFFFFF, "memory": 0},
        {"pid": 9, "at": 6, "sm": 0xFFFFFFFF, "memory": 0},
        {"pid": 9, "at": 7, "sm": 12, "memory": 0},
        {"pid": 10, "at": 6, "sm": 0, "memory": 0},
        {"pid": 10, "at": 7, "sm": 300, "memory": 0},
    ]
    got = parse.device_sample("GPU-a", {"nvmlDeviceGetProcessUtilization": {"v": samples}}, 1.0).process_utilisation
    assert isinstance(got, Value)
    by_pid = {p.pid: p.sm.value if isinstance(p.sm, Value) else p.sm.reason for p in got.value}
    # zero beside garbage is not known to be zero; work seen beside garbage is work seen
    assert by_pid == {7: 55, 8: Reason.OUT_OF_RANGE, 9: 12, 10: Reason.OUT_OF_RANGE}
