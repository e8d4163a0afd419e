"""The agent and simulated GPUs: what it offers, who is on them, what a job did with them, and when they are free."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent_kit import FakeController, Host, Job, until

from tenure.agent import claims
from tenure.testing.nvml import install

PROGRAM = (sys.executable, "-m", "tenure.testing.gpu_program")
WINDOW = {"grace_s": 0.0, "span_s": 1.0, "samples": 4, "max_gap_s": 15.0}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host.make(tmp_path, sim="2xH100")
    yield made
    made.close()


@pytest.fixture
async def controller(host: Host) -> AsyncIterator[FakeController]:
    async with FakeController(host.layout.ctl_sock).serving() as serving:
        host.start()
        yield serving


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that belongs to nobody's job."""
    process = subprocess.Popen(["/bin/sleep", "300"])
    yield process
    process.kill()
    process.wait()


def condition(controller: FakeController, name: str) -> dict[str, Any]:
    found: dict[str, Any] = controller.device(name)["condition"]
    return found


async def test_simulated_devices_are_offered_beside_the_cpu_and_say_so(controller: FakeController) -> None:
    register = await controller.connected()
    found = {d["name"]: (d["kind"], d["simulated"], d["condition"]["outcome"]) for d in register["devices"]}
    assert found == {
        "h:cpu0": ("cpu", False, "clear"),
        "h:gpu0": ("simulated", True, "clear"),
        "h:gpu1": ("simulated", True, "clear"),
    }


async def test_a_job_that_works_on_its_gpu_has_used_it(host: Host, controller: FakeController) -> None:
    job = Job(await controller.connected(), "gpu0")
    await controller.tell(job.start(*PROGRAM, "--seconds", "1.5", window=WINDOW))
    body = await controller.wait("ended")
    assert body["use"]["verdict"] == "used"
    assert body["proofs"] == {} or body["proofs"]["h:gpu0"]["outcome"] == "clear"
    assert (host.layout.attempt("j1", 1) / "samples.log").exists()
    uuid = job.grants[0].uuid
    await until(lambda: f"context on {uuid}".encode() in controller.output.get(("j1", 1), b""))
    told = controller.of("use")
    assert any(use["use"]["verdict"] == "used" for use in told)


async def test_a_job_that_never_touches_its_gpus_is_announced_once(controller: FakeController) -> None:
    job = Job(await controller.connected(), "gpu0", "gpu1")
    await controller.tell(job.shell("sleep 4", window=WINDOW))
    told = await until(lambda: [u for u in controller.of("use") if u["use"]["verdict"] == "no_context"], 30)
    assert told[0]["use"]["announcements"][0]["kind"] == "warning"
    assert told[0]["use"]["announcements"][0]["conclusive"] is True
    body = await controller.wait("ended", timeout_s=30)
    assert body["use"]["verdict"] == "no_context"
    assert len(body["use"]["announcements"]) == 1
    assert {name: seen["outcome"] for name, seen in body["proofs"].items()} == {"h:gpu0": "clear", "h:gpu1": "clear"}


async def test_a_bypass_makes_an_unleased_device_occupied_and_its_end_frees_it(
    host: Host, controller: FakeController, bystander: subprocess.Popen[bytes]
) -> None:
    await controller.connected()
    host.scenario.add_process(0, bystander.pid, 500, 50)
    await until(lambda: condition(controller, "gpu0")["outcome"] == "occupied")
    assert condition(controller, "gpu0")["by"] == [f"pid {bystander.pid} (root): sleep"]
    host.scenario.remove_process(0, bystander.pid)
    await until(lambda: condition(controller, "gpu0")["outcome"] == "clear")
    assert condition(controller, "gpu1")["outcome"] == "clear"


async def test_hidden_memory_occupies_too(host: Host, controller: FakeController) -> None:
    await controller.connected()
    host.scenario.set(1, "memory_used_mb", 9000)
    await until(lambda: condition(controller, "gpu1")["outcome"] == "occupied")
    assert "above the resting baseline" in condition(controller, "gpu1")["detail"]


async def test_a_stranger_on_a_leased_device_is_contention(
    host: Host, controller: FakeController, bystander: subprocess.Popen[bytes]
) -> None:
    job = Job(await controller.connected(), "gpu0")
    await controller.tell(job.start(*PROGRAM, "--seconds", "60"))
    await until(lambda: b"context" in controller.output.get(("j1", 1), b""))
    host.scenario.add_process(0, bystander.pid, 500, 50)
    await until(lambda: condition(controller, "gpu0")["outcome"] == "occupied")
    assert condition(controller, "gpu0")["by"] == [f"pid {bystander.pid} (root): sleep"]
    host.scenario.remove_process(0, bystander.pid)
    await until(lambda: condition(controller, "gpu0")["outcome"] == "clear")
    await controller.tell(job.stop())
    await controller.wait("ended")


async def test_memory_that_stays_is_dirty_and_clears_when_it_goes(host: Host, controller: FakeController) -> None:
    job = Job(await controller.connected(), "gpu0")
    await controller.tell(job.shell("echo on; sleep 300"))
    await until(lambda: controller.output.get(("j1", 1)))
    host.scenario.set(0, "memory_used_mb", 700)
    await controller.tell(job.stop())
    body = await controller.wait("ended")
    assert "h:gpu0" not in body["proofs"]
    await until(lambda: any(seen["outcome"] == "dirty" for seen in controller.proofs("h:gpu0")))
    assert "left above the resting baseline" in controller.proofs("h:gpu0")[-1]["detail"]
    host.scenario.set(0, "memory_used_mb", 4)
    assert (await controller.proved("h:gpu0"))["outcome"] == "clear"


async def test_a_device_that_cannot_be_looked_at_is_unknown_and_the_agent_goes_on(
    host: Host, controller: FakeController
) -> None:
    await controller.connected()
    host.scenario.fault(0, "nvmlDeviceGetComputeRunningProcesses*", "hang")
    await until(lambda: condition(controller, "gpu0")["outcome"] == "unknown", 30)
    beats = controller.beats
    await until(lambda: controller.beats > beats + 3)
    host.scenario.clear_faults(0)
    await until(lambda: condition(controller, "gpu0")["outcome"] == "clear", 60)


async def test_a_device_that_somebody_else_claimed_is_shown_as_theirs(tmp_path: Path) -> None:
    host = Host.make(tmp_path)
    name = f"CPU-{_machine_uuid(tmp_path)}"
    other = claims.claim(name, "/home/bob/tenure", folder=tmp_path / "claims")
    assert isinstance(other, claims.Claim)
    with contextlib.closing(host):
        async with FakeController(host.layout.ctl_sock).serving() as controller:
            host.start()
            register = await controller.connected()
            assert register["devices"][0]["uuid"] == name
            assert register["devices"][0]["condition"]["outcome"] == "occupied"
            assert register["devices"][0]["condition"]["detail"] == "controller of root"
            await controller.tell(Job(register, "cpu0").shell("true"))
            assert "occupied" in (await controller.wait("refused"))["reason"]
            other.release()
            await until(lambda: condition(controller, "cpu0")["outcome"] == "clear", 20)


def _machine_uuid(_: Path) -> str:
    from tenure.probes.identity import machine_id

    return machine_id()[0]


async def test_the_proof_of_use_goes_on_across_a_restart(host: Host, controller: FakeController) -> None:
    job = Job(await controller.connected(), "gpu0")
    # It works only before the agent dies; afterwards it holds nothing. What was seen stays seen.
    script = f"{' '.join(PROGRAM)} --seconds 1 ; echo over; sleep 300"
    await controller.tell(job.shell(script, window=WINDOW))
    await until(lambda: b"over" in controller.output.get(("j1", 1), b""))
    await until(lambda: controller.of("use"))
    host.kill()
    count = len(controller.registers)
    host.start()
    await until(lambda: len(controller.registers) > count)
    # Taken by the job it knows of, and by nobody else: its own job is no intruder.
    assert controller.device("gpu0")["condition"]["detail"] == "j1#1 of this agent is not proved gone from it"
    await controller.tell(job.stop())
    body = await controller.wait("ended")
    assert body["use"]["verdict"] == "used"
    assert body["use"]["devices"][0]["life"]["instants"] > 5
    assert (await controller.proved("h:gpu0"))["outcome"] == "clear"


async def test_a_library_named_by_the_environment_stands_in_for_the_systems(tmp_path: Path) -> None:
    install(tmp_path / "lib", "1xA100")
    host = Host.make(tmp_path)
    host.environment["TENURE_NVML_LIBRARY_DIR"] = str(tmp_path / "lib")
    with contextlib.closing(host):
        async with FakeController(host.layout.ctl_sock).serving() as controller:
            host.start()
            register = await controller.connected()
            assert {d["name"]: d["kind"] for d in register["devices"]} == {"h:gpu0": "simulated", "h:cpu0": "cpu"}


async def test_a_card_that_goes_is_unknown_and_keeps_its_name_when_it_comes_back(tmp_path: Path) -> None:
    host = Host.make(tmp_path, sim="2xH100", discover_every_s=0.3)
    with contextlib.closing(host):
        async with FakeController(host.layout.ctl_sock).serving() as controller:
            host.start()
            register = await controller.connected()
            uuids = {d["name"]: d["uuid"] for d in register["devices"]}
            whole = host.layout.sim_scenario.read_text()
            host.layout.sim_scenario.write_text(whole[: whole.index("\ndevice 1")])
            await until(lambda: condition(controller, "gpu1")["outcome"] == "unknown", 30)
            assert condition(controller, "gpu0")["outcome"] == "clear"
            host.layout.sim_scenario.write_text(whole)
            await until(lambda: condition(controller, "gpu1")["outcome"] == "clear", 30)
            assert {d["name"]: d["uuid"] for d in controller.registers[-1]["devices"]} == uuids
