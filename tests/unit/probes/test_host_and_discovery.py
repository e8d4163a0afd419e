"""The host's own figures and identity, and the devices that are made of what the sources said."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tenure.domain.label import Label, UnknownLabel
from tenure.domain.reading import Reason, Scope, Unavailable, Value
from tenure.probes import discovery, host, identity, nvml_parse
from tenure.probes.nvml_records import NvmlInventory

WHO = identity.HostIdentity("a" * 32, "/etc/machine-id", "b1", 1, True, "host", None)
BOX = discovery.Platform(96, Value(1 << 40, 1.0, "proc.meminfo", Scope.HOST), "x86_64")
MIB = 1 << 20


def card(index: int, uuid: str, name: str, *, mig: int | None = None, parent: str | None = None) -> dict[str, object]:
    calls = {
        "handle": {"v": True},
        "nvmlDeviceGetUUID": {"v": uuid},
        "nvmlDeviceGetName": {"v": name},
        "nvmlDeviceGetMigMode": {"e": 3, "m": "Not Supported"} if mig is None else {"v": mig},
        "nvmlDeviceGetMemoryInfo_v2": {"v": {"total": 81559 * MIB, "used": 0}},
        "nvmlDeviceGetCudaComputeCapability": {"v": "9.0"},
    }
    return {"index": index, "mig_parent": parent, "calls": calls}


def inventory(*devices: dict[str, object], simulated: bool = False) -> NvmlInventory:
    system = {"nvmlDeviceGetCount": {"v": len(devices)}, "nvmlSystemGetDriverVersion": {"v": "570.1"}}
    reply = {"system": system, "devices": list(devices)}
    return nvml_parse.inventory(reply, 1.0, library="/lib/libnvidia-ml.so.1", simulated=simulated)


def failed(reason: Reason) -> NvmlInventory:
    return nvml_parse.failed_inventory(Unavailable(reason, 1.0, "nvml", Scope.HOST, "words"))


def assemble(*inventories: NvmlInventory, box: discovery.Platform = BOX) -> discovery.Discovery:
    return discovery.assemble(inventories, WHO, box, at=1.0, now=1700000000.0)


def test_a_card_is_a_device_with_labels() -> None:
    found = assemble(inventory(card(0, "GPU-a", "NVIDIA H100 80GB HBM3"))).devices
    assert [(d.uuid, d.kind, d.simulated) for d in found] == [("GPU-a", "nvidia", False)]
    labels = found[0].labels
    assert labels["gpu_model"] == Label("H100", "detected", 1700000000.0)
    assert labels["vram"] == Label("81559M", "detected", 1700000000.0)
    assert labels["driver"] == Label("570.1", "detected", 1700000000.0)
    assert isinstance(labels["cuda"], UnknownLabel)  # was not reported, so no selector matches it
    assert "simulated" not in labels


def test_a_device_of_the_simulated_library_is_simulated_whatever_it_claims() -> None:
    found = assemble(inventory(card(0, "GPU-a", "NVIDIA H100 80GB HBM3"), simulated=True)).devices
    assert [(d.kind, d.simulated) for d in found] == [("simulated", True)]
    assert found[0].labels["simulated"] == Label("true", "detected", 1700000000.0)


def test_instances_are_leased_instead_of_their_card() -> None:
    mig = card(0, "MIG-1", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", parent="GPU-a")
    got = assemble(inventory(card(0, "GPU-a", "NVIDIA A100-SXM4-80GB", mig=1), mig, card(1, "GPU-b", "x", mig=0)))
    assert [(d.uuid, d.kind, d.mig_parent) for d in got.devices] == [
        ("MIG-1", "mig", "GPU-a"),
        ("GPU-b", "nvidia", None),
    ]
    assert got.parents == ("GPU-a",)
    assert got.devices[0].labels["mig_profile"] == Label("1g.10gb", "detected", 1700000000.0)
    assert got.devices[0].labels["gpu_model"] == Label("A100", "detected", 1700000000.0)


@pytest.mark.parametrize("inventories", [(), (failed(Reason.LIBRARY_MISSING),), (inventory(),)])
def test_no_gpu_at_all_is_exactly_one_cpu_device(inventories: tuple[NvmlInventory, ...]) -> None:
    found = assemble(*inventories).devices
    assert [(d.uuid, d.kind) for d in found] == [("CPU-" + "a" * 32, "cpu")]
    assert found[0].labels["cpus"] == Label("96", "detected", 1700000000.0)
    assert found[0].memory == BOX.memory


@pytest.mark.parametrize(
    "inventories",
    [
        (failed(Reason.VERSION_MISMATCH),),
        (failed(Reason.TIMEOUT),),
        (inventory({"index": 0, "calls": {"handle": {"e": 15, "m": "GPU is lost"}}}),),
        (inventory(card(0, "GPU-a", "A100", mig=1)),),  # cut up, with no instance made yet
    ],
)
def test_a_gpu_that_cannot_be_used_now_is_no_reason_to_offer_the_cpu(inventories: tuple[NvmlInventory, ...]) -> None:
    got = assemble(*inventories)
    assert got.devices == ()
    assert got.problems or got.parents


def test_a_lost_card_leaves_the_others_and_is_a_problem() -> None:
    lost = {"index": 1, "calls": {"handle": {"e": 999, "m": "Unknown Error"}}}
    got = assemble(inventory(card(0, "GPU-a", "A100"), lost))
    assert [d.uuid for d in got.devices] == ["GPU-a"]
    assert [(p.index, p.failure.reason) for p in got.problems] == [(1, Reason.GPU_LOST)]


def test_two_sources_that_tell_of_one_card_conflict() -> None:
    got = assemble(inventory(card(0, "GPU-a", "A100")), inventory(card(0, "GPU-a", "A100")))
    assert [d.uuid for d in got.devices] == ["GPU-a"]
    assert [p.failure.reason for p in got.problems] == [Reason.CONFLICT]


def test_a_jetson_with_nvml_is_one_device_not_two() -> None:
    box = discovery.Platform(12, BOX.memory, "aarch64", "NVIDIA Jetson AGX Orin", "142", True)
    assert [d.kind for d in assemble(inventory(card(0, "GPU-o", "Orin (nvgpu)")), box=box).devices] == ["nvidia"]
    without = assemble(failed(Reason.LIBRARY_MISSING), box=box).devices
    assert [(d.uuid, d.kind) for d in without] == [("JETSON-142", "jetson")]
    assert discovery.visible_environment(["JETSON-142"])["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA GB10", "GB10"),
        ("NVIDIA Thor", "Thor"),
        ("Orin (nvgpu)", "Orin"),
        ("Tesla T4", "T4"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada-Generation"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA", "NVIDIA"),
    ],
)
def test_short_models(name: str, short: str) -> None:
    assert discovery.short_model(name) == short


def test_a_cpu_job_sees_no_gpu_and_names_are_never_numbers() -> None:
    assert discovery.visible_environment(["CPU-abc"]) == {
        "CUDA_VISIBLE_DEVICES": "",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert discovery.visible_environment(["GPU-a", "MIG-b"])["CUDA_VISIBLE_DEVICES"] == "GPU-a,MIG-b"
    assert discovery.device_uuid("MIG-GPU-8f/1/0") == "MIG-GPU-8f/1/0"
    assert [discovery.device_uuid(text) for text in ("0", "gpu0", "GPU-", "GPU-a,GPU-b", "")] == [None] * 5


def test_this_host_reads() -> None:
    sample = host.sample()
    text = Path("/proc/meminfo").read_text()
    total = re.search(r"MemTotal:\s+(\d+)", text)
    assert total is not None
    assert isinstance(sample.memory_total, Value)
    assert sample.memory_total.value == int(total[1]) * 1024
    assert isinstance(sample.memory_available, Value)
    assert 0 < sample.memory_available.value <= sample.memory_total.value
    assert isinstance(sample.load1, Value)


def test_what_a_kernel_does_not_have_is_not_supported_and_never_zero(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\n")
    sample = host.sample(tmp_path)
    assert isinstance(sample.memory_available, Unavailable)
    assert sample.memory_available.reason is Reason.UNPARSEABLE
    for reading in (sample.pressure_memory, sample.swaps, sample.load1):
        assert isinstance(reading, Unavailable)
        assert reading.reason is Reason.NOT_SUPPORTED


def test_identity_of_this_host() -> None:
    who = identity.read()
    assert who.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    link = Path("/proc/self/ns/pid").readlink()
    assert str(link) == f"pid:[{who.pid_namespace}]"
    assert who.boot is not None
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert who.boot.earliest <= who.boot.latest <= time.time() - uptime + 0.02


def test_the_machine_id_comes_from_the_first_file_that_holds_one(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("uninitialized\n")
    (tmp_path / "var/lib/dbus").mkdir(parents=True)
    (tmp_path / "var/lib/dbus/machine-id").write_text("c" * 32 + "\n")
    assert identity.machine_id(tmp_path) == ("c" * 32, "/var/lib/dbus/machine-id")
    (tmp_path / "var/lib/dbus/machine-id").unlink()
    first = identity.machine_id(tmp_path, "box")
    assert first == identity.machine_id(tmp_path, "box")  # stable
    assert first[1] == "derived:hostname"
    assert first[0] != identity.machine_id(tmp_path, "other")[0]
    for name, mac in (("eth0", "02:00:00:00:00:01"), ("veth1", "aa:00:00:00:00:02")):
        (tmp_path / "sys/class/net" / name).mkdir(parents=True)
        (tmp_path / "sys/class/net" / name / "address").write_text(mac + "\n")
    (tmp_path / "sys/class/net/eth0/device").mkdir()
    with_network = identity.machine_id(tmp_path, "box")
    assert with_network[1] == "derived:hostname+network"
    (tmp_path / "sys/class/net/veth1/address").write_text("aa:00:00:00:00:03\n")
    assert identity.machine_id(tmp_path, "box") == with_network  # a container's interface is not the machine


def test_derived_boot_is_bounded_on_both_sides_of_the_reading() -> None:
    boot = identity.derive_boot("100.25 300.00\n", 5000.0, 5000.5)
    assert boot is not None
    assert (boot.earliest, boot.latest) == (4899.74, 4900.25)
    assert identity.derive_boot("rubbish", 1.0, 1.0) is None


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = (
        "import sys, tenure.probes; print([m for m in ('asyncio', 'json', 'subprocess', 'pynvml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
