"""The probe over the real bindings over the simulated library: every kind of answer, failure, hang and death."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.reading import Reading, Reason, Unavailable, Value
from tenure.probes import proc
from tenure.probes.nvml import NvmlProbe
from tenure.probes.nvml_parse import attribute
from tenure.probes.nvml_records import DeviceSample, GpuProcess
from tenure.testing.nvml import Scenario

MIB = 1 << 20
DEADLINE_S = 0.6


class Clock:
    """The probe's clock, which the test moves: pauses pass without waiting."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    return Scenario.create(tmp_path / "scenario", "4xH100")


@pytest.fixture
async def probe(nvml_library: Path, scenario: Scenario, clock: Clock) -> AsyncIterator[NvmlProbe]:
    made = NvmlProbe(nvml_library.parent, deadline_s=DEADLINE_S, scenario=scenario.path, clock=clock)
    yield made
    await made.close()


@pytest.fixture
def program(scenario: Scenario) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the simulated GPU program and waits until it says that it holds its context."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, visible: str = "") -> subprocess.Popen[str]:
        env = {"PATH": os.defpath, "TENURE_SIM_SCENARIO": str(scenario.path), "CUDA_VISIBLE_DEVICES": visible}
        argv = [sys.executable, "-m", "tenure.testing.gpu_program", *arguments]
        process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert "context on" in process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def value(reading: Reading[Any]) -> Any:
    assert isinstance(reading, Value), reading
    return reading.value


def why(reading: Reading[Any]) -> Reason:
    assert isinstance(reading, Unavailable), reading
    return reading.reason


def readings(record: Any) -> Iterator[tuple[str, Reading[Any]]]:
    """Every reading of a record, by name, those inside lists included."""
    for field in fields(record):
        item = getattr(record, field.name)
        if isinstance(item, Value | Unavailable):
            yield field.name, item
            if isinstance(item, Value) and isinstance(item.value, tuple):
                for entry in item.value:
                    yield from readings(entry)
        elif is_dataclass(item):
            yield from readings(item)


def pids(reading: Reading[tuple[GpuProcess, ...]]) -> list[int]:
    return [process.pid for process in value(reading)]


def healthy(sample: DeviceSample) -> bool:
    unread = {name for name, reading in readings(sample) if isinstance(reading, Unavailable)}
    return unread <= {"accounting"}  # accounting is off unless a test turns it on


async def test_values(probe: NvmlProbe, scenario: Scenario) -> None:
    uuids = scenario.devices()
    inventory = await probe.inventory()
    assert inventory.failure is None
    assert [device.uuid for device in inventory.devices] == uuids
    assert inventory.simulated  # the library says so itself; nobody passed simulated=True
    assert value(inventory.driver) == "570.133.20"
    assert value(inventory.cuda) == "12.8"
    first = inventory.devices[0]
    assert (value(first.name), value(first.pci)) == ("NVIDIA H100 80GB HBM3", "00000000:1B:00.0")
    assert (value(first.memory_total), value(first.capability)) == (81559 * MIB, "9.0")
    scenario.add_process(0, os.getpid(), 18000, 90)
    samples = await probe.sample([uuids[2], uuids[0]])
    assert list(samples) == [uuids[2], uuids[0]]
    busy, idle = samples[uuids[0]], samples[uuids[2]]
    assert value(busy.memory_used) == 18004 * MIB
    assert value(busy.utilisation) == 90
    assert pids(busy.compute) == [os.getpid()]
    assert value(busy.compute)[0].memory.value == 18000 * MIB
    assert value(value(busy.process_utilisation)[0].sm) == 90
    assert (value(busy.clocks.sm), value(busy.clocks.throttle_bits)) == (1980, 0)
    assert (value(idle.memory_used), value(idle.utilisation), pids(idle.compute)) == (4 * MIB, 0, [])
    assert value(idle.process_utilisation) == ()  # the driver's "not found" means that nobody has samples
    assert (value(idle.clocks.sm), value(idle.clocks.throttle_bits)) == (345, 1)
    assert busy.simulated
    assert healthy(idle)


async def test_unified_memory_reads_not_supported_and_the_rest_reads(nvml_library: Path, tmp_path: Path) -> None:
    scenario = Scenario.create(tmp_path / "s", "GB10,THOR")
    probe = NvmlProbe(nvml_library.parent, scenario=scenario.path)
    try:
        inventory = await probe.inventory()
        assert [why(device.memory_total) for device in inventory.devices] == [Reason.NOT_SUPPORTED] * 2
        scenario.add_process(0, os.getpid(), None, 40)
        sample = (await probe.sample(scenario.devices()))[scenario.devices()[0]]
        assert why(sample.memory_used) is Reason.NOT_SUPPORTED
        assert value(sample.utilisation) == 40
        assert why(value(sample.compute)[0].memory) is Reason.NOT_SUPPORTED  # a process without a memory figure
    finally:
        await probe.close()


async def test_two_versions_of_the_memory_call_differ_and_the_newer_counts(
    probe: NvmlProbe, scenario: Scenario
) -> None:
    scenario.set(0, "memory_used_mb", 8)
    scenario.set(0, "memory_reserved_mb", 904)
    uuid = scenario.devices()[0]
    sample = (await probe.sample([uuid]))[uuid]
    assert (value(sample.memory_used), sample.memory_used.instrument) == (8 * MIB, "nvml.nvmlDeviceGetMemoryInfo_v2")
    scenario.fault(0, "nvmlDeviceGetMemoryInfo_v2", "FUNCTION_NOT_FOUND")
    sample = (await probe.sample([uuid]))[uuid]
    assert (value(sample.memory_used), sample.memory_used.instrument) == (912 * MIB, "nvml.nvmlDeviceGetMemoryInfo")
    assert any("nvmlDeviceGetMemoryInfo_v2: function_missing" in note for note in sample.fallbacks)


async def test_older_drivers_know_older_calls_only(probe: NvmlProbe, scenario: Scenario) -> None:
    uuid = scenario.devices()[0]
    scenario.add_process(0, os.getpid(), 700, 5)
    lists = "nvmlDeviceGetComputeRunningProcesses"
    for missing, answers in ((f"{lists}_v3", f"{lists}_v2"), (f"{lists}_v2", lists)):
        scenario.fault(0, missing, "FUNCTION_NOT_FOUND")
        sample = (await probe.sample([uuid]))[uuid]
        assert (pids(sample.compute), sample.compute.instrument) == ([os.getpid()], f"nvml.{answers}")
        assert value(value(sample.compute)[0].memory) == 700 * MIB
    scenario.fault(0, lists, "FUNCTION_NOT_FOUND")
    scenario.fault(0, "nvmlDeviceGetCurrentClocksEventReasons", "FUNCTION_NOT_FOUND")
    sample = (await probe.sample([uuid]))[uuid]
    assert why(sample.compute) is Reason.FUNCTION_MISSING
    assert sample.clocks.throttle_bits.instrument == "nvml.nvmlDeviceGetCurrentClocksThrottleReasons"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("NOT_SUPPORTED", Reason.NOT_SUPPORTED),
        ("NO_PERMISSION", Reason.NO_PERMISSION),
        ("GPU_IS_LOST", Reason.GPU_LOST),
        ("FUNCTION_NOT_FOUND", Reason.FUNCTION_MISSING),
        ("UNKNOWN", Reason.UNPARSEABLE),
        ("TIMEOUT", Reason.TIMEOUT),
        ("LIB_RM_VERSION_MISMATCH", Reason.VERSION_MISMATCH),
        ("RESET_REQUIRED", Reason.GPU_LOST),
        ("IN_USE", Reason.CONFLICT),
    ],
)
async def test_an_error_of_every_call_of_one_card_leaves_the_others(
    probe: NvmlProbe, scenario: Scenario, error: str, reason: Reason
) -> None:
    uuids = scenario.devices()
    await probe.sample(uuids)  # handles are open already, as on a host that has been up for weeks
    scenario.fault(1, "nvmlDeviceGet*", error)
    samples = await probe.sample(uuids)
    assert {why(reading) for _, reading in readings(samples[uuids[1]])} == {reason}
    assert "sample" not in {name for name, _ in readings(samples[uuids[1]])}
    for other in (uuids[0], uuids[2], uuids[3]):
        assert healthy(samples[other])


async def test_garbage_is_out_of_range_and_never_a_number(probe: NvmlProbe, scenario: Scenario) -> None:
    uuid = scenario.devices()[0]
    await probe.sample([uuid])
    scenario.set(0, "accounting", 1)
    scenario.add_process(0, os.getpid(), 100, 10)
    scenario.fault(0, "nvmlDeviceGet*", "garbage")
    sample = (await probe.sample([uuid], accounting_pids=[os.getpid()]))[uuid]
    found = dict(readings(sample))
    numbers = {name: r for name, r in found.items() if isinstance(r, Value) and isinstance(r.value, int)}
    assert numbers == {}
    for name in ("memory_used", "utilisation", "compute", "power", "temperature", "throttle_bits", "persistence"):
        assert why(found[name]) is Reason.OUT_OF_RANGE, name
    scenario.clear_faults(0)
    scenario.fault(0, "nvmlDeviceGetName", "garbage")
    inventory = await probe.inventory()
    assert why(inventory.devices[0].name) is Reason.UNPARSEABLE  # bytes that are no text
    assert len(inventory.devices) == 4


async def test_a_hung_card_costs_itself_only_and_never_the_event_loop(
    probe: NvmlProbe, scenario: Scenario, clock: Clock
) -> None:
    uuids = scenario.devices()
    await probe.sample(uuids)
    scenario.fault(1, "nvmlDeviceGetUtilizationRates", "hang")
    gaps: list[float] = []

    async def tick() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    ticking = asyncio.create_task(tick())
    began = time.monotonic()
    samples = await probe.sample(uuids)
    spent = time.monotonic() - began
    ticking.cancel()
    assert spent < DEADLINE_S * 5
    assert max(gaps) < DEADLINE_S / 2  # the loop kept turning while the child hung
    assert all(healthy(samples[uuid]) for uuid in (uuids[0], uuids[2], uuids[3]))
    hung = samples[uuids[1]]
    assert {why(reading) for _, reading in readings(hung)} == {Reason.TIMEOUT}
    assert isinstance(hung.compute, Unavailable)
    assert f"nvmlDeviceGetUtilizationRates of {uuids[1]}" in hung.compute.detail
    # in its pause the card is not asked at all, and says so
    again = await probe.sample(uuids)
    paused = again[uuids[1]].compute
    assert isinstance(paused, Unavailable)
    assert "not asked" in paused.detail
    assert healthy(again[uuids[0]])
    scenario.clear_faults(1)
    clock.now += 5
    assert healthy((await probe.sample(uuids))[uuids[1]])
    assert probe.statistics().children_abandoned == 1


async def test_cards_that_failed_last_are_asked_last(probe: NvmlProbe, scenario: Scenario, clock: Clock) -> None:
    uuids = scenario.devices()
    for index in (0, 1, 2):
        scenario.fault(index, "nvmlDeviceGetMemoryInfo_v2", "abort")
    first = await probe.sample(uuids)  # one call uses up three children and no more
    assert why(first[uuids[3]].compute) is Reason.TIMEOUT
    assert probe.statistics().children_started == 3
    clock.now += 2
    again = await probe.sample(uuids)
    assert healthy(again[uuids[3]])
    assert {why(again[uuid].compute) for uuid in uuids[:3]} == {Reason.SAMPLING_GAP}


async def test_pauses_of_a_card_grow_and_are_bounded(probe: NvmlProbe, scenario: Scenario, clock: Clock) -> None:
    uuids = scenario.devices()[:1]
    scenario.fault(0, "nvmlDeviceGetMemoryInfo_v2", "abort")
    asked: list[float] = []
    for _ in range(80):
        before = probe.statistics().children_started
        await probe.sample(uuids)
        if probe.statistics().children_abandoned > len(asked):
            asked.append(clock.now - 1000)
        assert probe.statistics().children_started - before <= 1
        clock.now += 1
    assert asked == [0, 1, 3, 7, 15, 31, 61]


async def test_what_was_read_before_a_hang_is_kept(probe: NvmlProbe, scenario: Scenario) -> None:
    uuid = scenario.devices()[0]
    scenario.add_process(0, os.getpid(), 500, 30)
    scenario.fault(0, "nvmlDeviceGetPowerUsage", "hang")
    sample = (await probe.sample([uuid]))[uuid]
    assert (value(sample.memory_used), pids(sample.compute)) == (504 * MIB, [os.getpid()])
    assert why(sample.clocks.power) is Reason.TIMEOUT
    assert why(sample.clocks.sm) is Reason.TIMEOUT  # it came in the same line as the call that hung


async def test_a_short_delay_is_no_failure(probe: NvmlProbe, scenario: Scenario) -> None:
    scenario.fault(None, "nvmlDeviceGetMemoryInfo_v2", "delay 60")
    scenario.fault(2, "nvmlDeviceGetUtilizationRates", "hang 0.1")
    samples = await probe.sample(scenario.devices())
    assert all(healthy(sample) for sample in samples.values())


@pytest.mark.parametrize(("death", "words"), [("abort", "signal 6"), ("segv", "signal 11"), ("exit", "exited 3")])
async def test_a_death_in_the_driver_costs_one_card_one_sample(
    probe: NvmlProbe, scenario: Scenario, clock: Clock, death: str, words: str
) -> None:
    uuids = scenario.devices()
    scenario.fault(3, "nvmlDeviceGetComputeRunningProcesses_v3", death)
    samples = await probe.sample(uuids)
    dead = samples[uuids[3]].compute
    assert isinstance(dead, Unavailable)
    assert dead.reason is Reason.SAMPLING_GAP
    assert "nvmlDeviceGetComputeRunningProcesses_v3" in dead.detail
    assert words in dead.detail or "closed its end" in dead.detail  # the socket may close before the child is dead
    assert all(healthy(samples[uuid]) for uuid in uuids[:3])
    scenario.clear_faults(3)
    clock.now += 5
    assert healthy((await probe.sample(uuids))[uuids[3]])


async def test_a_child_killed_between_two_calls_is_replaced_unnoticed(probe: NvmlProbe, scenario: Scenario) -> None:
    uuids = scenario.devices()
    await probe.sample(uuids)
    assert probe._child is not None
    os.kill(probe._child.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while (entry := proc.read_entry(probe._child.pid)) is not None and entry.state != "Z":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert all(healthy(sample) for sample in (await probe.sample(uuids)).values())
    assert probe.statistics().children_started == 2


async def test_a_lost_card_is_a_lost_handle_and_the_others_go_on(probe: NvmlProbe, scenario: Scenario) -> None:
    uuids = scenario.devices()
    scenario.fault(1, "nvmlDeviceGetHandleByIndex", "UNKNOWN")
    scenario.fault(1, "nvmlDeviceGetHandleByUUID", "GPU_IS_LOST")
    inventory = await probe.inventory()
    assert [device.uuid for device in inventory.devices] == [uuids[0], uuids[2], uuids[3]]
    assert [(lost.index, lost.failure.reason) for lost in inventory.lost] == [(1, Reason.GPU_LOST)]
    samples = await probe.sample([*uuids, "GPU-never-there"])
    assert why(samples[uuids[1]].compute) is Reason.GPU_LOST
    assert why(samples["GPU-never-there"].compute) is Reason.GPU_LOST
    assert healthy(samples[uuids[2]])


async def test_a_card_that_hangs_the_inventory_is_lost_and_the_others_are_found(
    probe: NvmlProbe, scenario: Scenario
) -> None:
    uuids = scenario.devices()
    scenario.fault(2, "nvmlDeviceGetMinorNumber", "hang")
    inventory = await probe.inventory()
    assert [device.uuid for device in inventory.devices] == [uuids[0], uuids[1], uuids[3]]
    assert [(lost.index, lost.failure.reason) for lost in inventory.lost] == [(2, Reason.TIMEOUT)]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("LIB_RM_VERSION_MISMATCH", Reason.VERSION_MISMATCH),
        ("DRIVER_NOT_LOADED", Reason.LIBRARY_MISSING),
        ("hang", Reason.TIMEOUT),
        ("segv", Reason.SAMPLING_GAP),
    ],
)
async def test_where_nvml_does_not_start_everything_is_unavailable_until_it_does(
    nvml_library: Path, scenario: Scenario, clock: Clock, fault: str, reason: Reason
) -> None:
    probe = NvmlProbe(nvml_library.parent, scenario=scenario.path, clock=clock, start_deadline_s=0.5)
    uuids = scenario.devices()
    scenario.fault(None, "nvmlInit", fault)
    try:
        inventory = await probe.inventory()
        assert inventory.failure is not None
        assert (inventory.failure.reason, inventory.devices) == (reason, ())
        samples = await probe.sample(uuids)
        assert {why(reading) for uuid in uuids for _, reading in readings(samples[uuid])} == {reason}
        for _ in range(5):  # in the pause no child is started
            await probe.sample(uuids)
        assert probe.statistics().children_started <= 2
        scenario.clear_faults(None)
        clock.now += 61
        probe._start_deadline_s = 20.0
        assert all(healthy(sample) for sample in (await probe.sample(uuids)).values())
    finally:
        await probe.close()


async def test_no_library_is_library_missing(tmp_path: Path) -> None:
    probe = NvmlProbe(tmp_path)
    inventory = await probe.inventory()
    assert inventory.failure is not None
    assert inventory.failure.reason is Reason.LIBRARY_MISSING
    assert "libnvidia-ml.so.1" in inventory.failure.detail
    await probe.close()


async def test_pids_of_another_namespace_stay_listed_and_resolve_to_nobody(
    probe: NvmlProbe, scenario: Scenario
) -> None:
    uuid = scenario.devices()[0]
    here = proc.snapshot()
    absent = max(here.entries) + 100_000
    scenario.add_process(0, absent, 9000, 88, foreign=True)
    scenario.add_process(0, os.getpid(), 100, 1)
    scenario.add_process(0, os.getppid(), 100, 1)
    listed = (await probe.sample([uuid]))[uuid].compute
    assert sorted(pids(listed)) == sorted([absent, os.getpid(), os.getppid()])
    whose = value(attribute(listed, {os.getpid()}, here))
    assert [p.pid for p in whose.own] == [os.getpid()]
    assert [p.pid for p in whose.foreign] == [os.getppid()]
    assert [p.pid for p in whose.unresolvable] == [absent]
    other = value(attribute(listed, {os.getpid()}, here, same_namespace=False))
    assert (other.own, other.foreign, len(other.unresolvable)) == ((), (), 3)


async def test_a_program_edits_the_scenario_while_it_is_read(
    probe: NvmlProbe, scenario: Scenario, program: Callable[..., subprocess.Popen[str]]
) -> None:
    uuids = scenario.devices()
    assert pids((await probe.sample(uuids))[uuids[1]].compute) == []
    running = program("--memory-mb", "12000", "--util", "70", "--seconds", "60", visible=f"{uuids[1]},{uuids[2]}")
    samples = await probe.sample(uuids)
    assert pids(samples[uuids[1]].compute) == [running.pid]
    assert value(samples[uuids[1]].memory_used) == 12004 * MIB
    assert value(samples[uuids[1]].utilisation) == 70
    assert pids(samples[uuids[2]].compute) == []
    running.terminate()
    assert running.wait(10) == 128 + signal.SIGTERM
    assert pids((await probe.sample(uuids))[uuids[1]].compute) == []
    assert "process" not in scenario.path.read_text()


async def test_an_edit_within_one_tick_of_the_clock_is_seen(probe: NvmlProbe, scenario: Scenario) -> None:
    """File times may be as coarse as a kernel tick: then the size and the new file's inode tell."""
    uuid = scenario.devices()[0]
    for util in (11, 22, 33):
        scenario.set(0, "util", util)
        os.utime(scenario.path, ns=(10**18, 10**18))
        assert value((await probe.sample([uuid]))[uuid].utilisation) == util


async def test_a_killed_program_goes_as_a_driver_would_let_it_go(
    probe: NvmlProbe, scenario: Scenario, program: Callable[..., subprocess.Popen[str]]
) -> None:
    uuid = scenario.devices()[0]
    running = program("--device", "0", "--idle", "--seconds", "60")
    sample = (await probe.sample([uuid]))[uuid]
    assert (pids(sample.compute), value(sample.utilisation)) == ([running.pid], 0)  # a context without work
    running.kill()
    running.wait(10)
    assert f"process {running.pid}" in scenario.path.read_text()  # it could not take itself off
    sample = (await probe.sample([uuid]))[uuid]
    assert (pids(sample.compute), value(sample.memory_used)) == ([], 4 * MIB)
    scenario.set(None, "reap", "off")
    assert pids((await probe.sample([uuid]))[uuid].compute) == [running.pid]


async def test_a_short_context_closes_while_the_program_runs_on(
    probe: NvmlProbe, scenario: Scenario, program: Callable[..., subprocess.Popen[str]]
) -> None:
    uuid = scenario.devices()[0]
    running = program("--device", uuid, "--open-for-ms", "100", "--seconds", "60")
    deadline = time.monotonic() + 10
    while pids((await probe.sample([uuid]))[uuid].compute):
        assert time.monotonic() < deadline
    assert running.poll() is None


async def test_mig_instances_are_devices_of_their_own(probe: NvmlProbe, scenario: Scenario) -> None:
    parent = scenario.devices()[2]
    mig = scenario.add_mig(2, name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", memory_mb=9856, gpu_instance=7)
    scenario.fault(2, "nvmlDeviceGetMemoryInfo*", "NO_PERMISSION")  # the parent hides it: ask the instance
    inventory = await probe.inventory()
    found = {device.uuid: device for device in inventory.devices}
    assert (found[mig].mig_parent, value(found[mig].memory_total)) == (parent, 9856 * MIB)
    assert found[parent].mig_enabled
    assert why(found[parent].memory_total) is Reason.NO_PERMISSION
    scenario.add_process(mig, os.getpid(), 300, 50)
    sample = (await probe.sample([mig]))[mig]
    assert value(sample.memory_used) == 300 * MIB
    assert [(p.pid, p.gpu_instance) for p in value(sample.compute)] == [(os.getpid(), 7)]
    assert why(sample.utilisation) is Reason.NOT_SUPPORTED


async def test_accounting_keeps_a_process_that_ended(
    probe: NvmlProbe, scenario: Scenario, program: Callable[..., subprocess.Popen[str]]
) -> None:
    uuid = scenario.devices()[0]
    scenario.set(0, "accounting", 1)
    running = program("--device", uuid, "--memory-mb", "777", "--util", "33", "--seconds", "60")
    sample = (await probe.sample([uuid], accounting_pids=[running.pid, 1]))[uuid]
    assert [(r.pid, r.running) for r in value(sample.accounting)] == [(running.pid, True)]  # pid 1 is not on the books
    running.terminate()
    running.wait(10)
    sample = (await probe.sample([uuid], accounting_pids=[running.pid]))[uuid]
    record = value(sample.accounting)[0]
    assert (record.running, value(record.max_memory), value(record.gpu_utilisation)) == (False, 777 * MIB, 33)
    scenario.set(0, "accounting", 0)
    sample = (await probe.sample([uuid], accounting_pids=[running.pid]))[uuid]
    assert (value(sample.accounting_on), why(sample.accounting)) == (False, Reason.NOT_SUPPORTED)


async def test_a_cancelled_call_leaves_a_probe_that_works(probe: NvmlProbe, scenario: Scenario) -> None:
    uuids = scenario.devices()
    scenario.fault(0, "nvmlDeviceGetMemoryInfo_v2", "hang")
    call = asyncio.create_task(probe.sample(uuids))
    deadline = time.monotonic() + 10
    while probe._child is None or "MemoryInfo" not in probe._child.progress():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    scenario.clear_faults(0)
    assert all(healthy(sample) for sample in (await probe.sample(uuids)).values())


async def test_abandoned_children_are_collected_and_none_is_left(probe: NvmlProbe, scenario: Scenario) -> None:
    scenario.fault(0, "nvmlDeviceGetMemoryInfo_v2", "hang")
    await probe.sample(scenario.devices())
    await probe.close()
    deadline = time.monotonic() + 10
    while probe.statistics().children_undead:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    mine = proc.tree(os.getpid(), proc.snapshot())
    assert [entry.comm for entry in mine if entry.pid != os.getpid() and entry.state != "Z"] == []


async def test_a_child_hung_in_the_driver_ends_with_its_parent(nvml_library: Path, scenario: Scenario) -> None:
    """It never sees its socket close, so nothing but the kernel can end it when the agent is killed."""
    scenario.fault(None, "nvmlDeviceGetCount", "hang")
    script = (
        "import asyncio, os, pathlib, sys\n"
        "from tenure.probes.nvml import NvmlProbe\n"
        "async def main():\n"
        "    probe = NvmlProbe(pathlib.Path(sys.argv[1]), scenario=pathlib.Path(sys.argv[2]), deadline_s=60)\n"
        "    call = asyncio.create_task(probe.inventory())\n"
        "    while probe._child is None or 'GetCount' not in probe._child.progress(): await asyncio.sleep(0.01)\n"
        "    print(probe._child.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    argv = [sys.executable, "-c", script, str(nvml_library.parent), str(scenario.path)]
    parent = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    try:
        async with asyncio.timeout(30):
            output, _ = await parent.communicate()
    finally:
        if parent.returncode is None:
            parent.kill()
    child = int(output)
    deadline = time.monotonic() + 10
    while (entry := proc.read_entry(child)) is not None and entry.state != "Z":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_the_probe_works_on_the_loop_that_servers_use(nvml_library: Path, scenario: Scenario) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def once() -> dict[str, DeviceSample]:
        scenario.fault(1, "nvmlDeviceGetUtilizationRates", "hang")
        probe = NvmlProbe(nvml_library.parent, deadline_s=DEADLINE_S, scenario=scenario.path)
        try:
            return await probe.sample(scenario.devices())
        finally:
            await probe.close()

    samples = list(uvloop.run(once()).values())
    assert [healthy(sample) for sample in samples] == [True, False, True, True]


def test_the_simulated_program_starts_fast(scenario: Scenario) -> None:
    """It stands for a job's process; what it imports must not be what a test of a short job measures."""
    env = {"PATH": os.defpath, "TENURE_SIM_SCENARIO": str(scenario.path)}
    argv = [sys.executable, "-m", "tenure.testing.gpu_program", "--device", "0", "--seconds", "0"]
    spent: list[float] = []
    for _ in range(3):
        running = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        assert running.returncode == 0
        spent.append(usage.ru_utime + usage.ru_stime)  # its own time: the machine may be busy with other tests
    assert min(spent) < 0.1, spent
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", *argv[1:]], env=env, check=True, capture_output=True, text=True
    )
    assert not {"asyncio", "pynvml", "subprocess", "psutil"} & set(loaded.stderr.replace("|", " ").split())
