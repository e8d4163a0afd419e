"""What an agent offers rests on its claim and on its last look: where either is gone, the device is not clear."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenure.agent import claims, identity, opened
from tenure.agent.core import AgentState
from tenure.agent.devices import AgentDevice, Devices
from tenure.agent.monitor import Monitor
from tenure.agent.options import Options
from tenure.agent.prover import Prover
from tenure.domain.device import CLEAR, Condition
from tenure.domain.reading import Reason, Scope, Unavailable
from tenure.paths import Layout
from tenure.probes.discovery import Platform, assemble
from tenure.probes.identity import HostIdentity
from tenure.probes.nvml import NvmlProbe

HOST = HostIdentity("0" * 31 + "1", "/etc/machine-id", "boot", 1, True, "h", None)


def device(kind: str) -> AgentDevice:
    """A device as discovery makes it on such a host."""
    tree = "NVIDIA Jetson AGX Orin" if kind == "jetson" else ""
    memory = Unavailable(Reason.NOT_SUPPORTED, 0.0, "meminfo", Scope.HOST)
    found = assemble([], HOST, Platform(4, memory, "aarch64", tree, "142", bool(tree)), at=0.0, now=0.0)
    (one,) = found.devices
    assert one.kind == kind
    return AgentDevice(f"h:{kind}", one, None)


@pytest.fixture
def devices(tmp_path: Path) -> Devices:
    (tmp_path / "claims").mkdir()
    options = Options(claims_dir=str(tmp_path / "claims"), library_dir=tmp_path)
    layout = Layout(tmp_path / "home", "m")
    return Devices(layout, options, identity.AgentIdentity(tmp_path / "identity.json", "a1", "h"))


def test_a_claim_whose_file_was_removed_is_taken_again(devices: Devices, tmp_path: Path) -> None:
    one = device("cpu")
    devices.by_uuid[one.uuid] = one
    devices.take_claims()
    assert one.claim is not None
    one.claim.path.unlink()
    devices.take_claims()
    other = claims.claim(one.uuid, "somebody else", folder=tmp_path / "claims")
    assert isinstance(other, claims.Occupied)
    one.claim.path.unlink()
    theirs = claims.claim(one.uuid, "somebody else", folder=tmp_path / "claims")
    assert isinstance(theirs, claims.Claim)  # they were quicker: now it is theirs, and shown so
    assert devices.take_claims()
    assert one.offered.outcome == "occupied"
    theirs.close()


async def test_a_device_that_comes_back_is_looked_at_before_it_is_clear(devices: Devices) -> None:
    devices.real = devices.simulated = None  # a host without any driver: its CPU device is what is found
    await devices.discover()
    (one,) = devices.by_uuid.values()
    one.condition, one.missing = CLEAR, Condition("unknown", "the driver no longer lists it")
    await devices.discover()
    assert one.offered == Condition("unknown", "not looked at since the driver lists it again")
    one.condition = CLEAR
    await devices.discover()
    assert one.offered.outcome == "clear"


class Sayings:
    """As much of the agent's shell as a round of looks speaks to."""

    def __init__(self, *found: AgentDevice) -> None:
        self.state = AgentState()
        self.options = Options()
        self.devices = SimpleNamespace(by_uuid={d.uuid: d for d in found}, sample=self._sample, take_claims=bool)
        self.runs = SimpleNamespace(live={})
        self.identity = SimpleNamespace(initial_namespace=True)
        self.said = asyncio.Event()

    async def _sample(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}

    def saw(self, one: AgentDevice, seen: Condition, mark: int | None = None) -> None:
        one.condition = seen
        self.said.set()


async def a_round(shell: Any) -> None:
    monitor = Monitor(shell)
    running = asyncio.create_task(monitor.run())
    async with asyncio.timeout(10):
        await shell.said.wait()
    running.cancel()


async def test_a_round_that_failed_leaves_nothing_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    one = device("cpu")
    one.probe, one.condition = NvmlProbe(Path("/nowhere")), CLEAR
    shell = Sayings(one)

    async def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no sample")

    monkeypatch.setattr(shell.devices, "sample", fails)
    await a_round(shell)
    assert (one.condition.outcome, "RuntimeError" in one.condition.detail) == ("unknown", True)


async def test_a_driver_that_leaves_a_device_out_of_its_answer_has_not_seen_it() -> None:
    one = device("cpu")
    one.probe, one.condition = NvmlProbe(Path("/nowhere")), CLEAR
    await a_round(Sayings(one))
    assert one.condition.outcome == "unknown"


@pytest.mark.parametrize("seen", [Condition("unknown", "not every process"), Condition("occupied", "ann", ("ann",))])
async def test_a_jetson_is_ready_by_its_open_files_only(monkeypatch: pytest.MonkeyPatch, seen: Condition) -> None:
    async def look(*_: Any) -> Condition:
        return seen

    monkeypatch.setattr(opened, "look", look)
    one = device("jetson")
    one.condition = CLEAR
    await a_round(Sayings(one))
    assert one.condition == seen


async def test_a_jetson_is_not_empty_because_its_jobs_tree_is(tmp_path: Path) -> None:
    one = device("jetson")
    shell: Any = Sayings(one)
    shell.layout = SimpleNamespace(attempt=lambda *key: tmp_path)
    grant = SimpleNamespace(device=one.name, uuid=one.uuid, lease="l1")
    attempt: Any = SimpleNamespace(grants=[grant], key=(f"nobody-{tmp_path.name}", 1))
    assert await Prover(shell).at_once(attempt, SimpleNamespace(), "tree empty") == {}  # type: ignore[arg-type]


async def test_this_very_process_is_found_by_what_it_has_open(tmp_path: Path) -> None:
    from tenure.probes.proc_child import ProcProbe

    probe = ProcProbe()
    shell: Any = SimpleNamespace(proc_probe=probe, identity=SimpleNamespace(initial_namespace=True))
    file = tmp_path / "nvhost-gpu"  # the name tells, wherever a container mounts it
    try:
        with file.open("w"):
            seen = await opened.look(shell)
        assert seen.outcome == "occupied"
        assert any(by.startswith(f"pid {os.getpid()} ") for by in seen.by)
    finally:
        await probe.close()
