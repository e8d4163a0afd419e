"""Which devices this host has. They are found, never configured; names are bound to their UUIDs elsewhere.

A device of the simulated library is always of the kind "simulated", whatever it claims to be. One CPU device stands
for the host only where it is certain that there is no GPU to lease: a library that does not match its driver, a hung
driver or a card that cannot be opened is a problem, not the absence of one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tenure.domain.label import AnyLabel, Label, UnknownLabel, read_label
from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.probes import host as host_probe
from tenure.probes.identity import HostIdentity
from tenure.probes.nvml import NvmlProbe
from tenure.probes.nvml_records import NvmlDevice, NvmlInventory

MIB = 1 << 20
_NAME = re.compile(r"(?:GPU|MIG|CPU|JETSON)-[0-9A-Za-z][0-9A-Za-z./_-]*")


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """One leasable device. ``memory`` in bytes; ``mig_parent`` is the UUID of the card a MIG instance is cut from.

    ``kind``: nvidia, mig, simulated, jetson or cpu. ``source`` is the library (or file) that told of it.
    """

    uuid: str
    kind: str
    model: Reading[str]
    memory: Reading[int]
    pci: Reading[str]
    capability: Reading[str]
    driver: Reading[str]
    cuda: Reading[str]
    mig_parent: str | None
    simulated: bool
    source: str
    labels: Mapping[str, AnyLabel]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is there and cannot be leased now: a whole source, or one card of it (``index`` then tells)."""

    source: str
    failure: Unavailable
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found. ``parents`` are the UUIDs of cards cut into MIG instances, which are not leased themselves."""

    devices: tuple[FoundDevice, ...]
    problems: tuple[Problem, ...]
    parents: tuple[str, ...]


def device_uuid(text: str) -> str | None:
    """``text`` where it names a device by UUID, a MIG instance included; None for an index or anything else."""
    return text if _NAME.fullmatch(text) else None


def visible_environment(uuids: Iterable[str]) -> dict[str, str]:
    """The variables that show a job exactly its devices, by UUID: indices differ between CUDA and NVML.

    A job on a CPU device sees no GPU. A Jetson's CUDA knows no UUIDs; its one device is 0.
    """
    gpus = [uuid for uuid in uuids if not uuid.startswith("CPU-")]
    shown = "0" if gpus and gpus[0].startswith("JETSON-") else ",".join(gpus)
    return {"CUDA_VISIBLE_DEVICES": shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def short_model(name: str) -> str:
    """The model as people select it: "NVIDIA H100 80GB HBM3" is H100, "NVIDIA GeForce RTX 4090" is RTX-4090."""
    name = re.sub(r"\s+MIG \S+$", "", name.strip())
    words = re.split(r"[\s-]+", re.sub(r"\([^)]*\)", "", name))
    dropped = re.compile(r"NVIDIA|Tesla|GeForce|Quadro|\d+GB|HBM\d\w*|SXM\d*|PCIe|NVL|Laptop|GPU", re.IGNORECASE)
    kept = [word for word in words if word and not dropped.fullmatch(word)]
    return "-".join(kept) or name


async def discover(
    probes: Sequence[NvmlProbe],
    identity: HostIdentity,
    *,
    root: Path = Path("/"),
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> Discovery:
    """Asks every source for its inventory and makes devices of the answers."""
    inventories = [await probe.inventory() for probe in probes]
    return assemble(inventories, identity, read_platform(root), at=clock(), now=wall())


@dataclass(frozen=True, slots=True)
class Platform:
    """What the host itself says: CPUs this process may use, memory, architecture, and a Jetson's model and serial."""

    cpus: int
    memory: Reading[int]
    architecture: str
    device_tree_model: str = ""
    serial: str = ""
    nvhost: bool = False


def read_platform(root: Path = Path("/")) -> Platform:
    """Reads local pseudo-files only."""

    def text(name: str) -> str:
        try:
            return (root / name).read_text(errors="replace").replace("\0", "").strip()
        except OSError:
            return ""

    affinity = getattr(os, "sched_getaffinity", None)
    return Platform(
        cpus=len(affinity(0)) if affinity is not None else (os.cpu_count() or 1),
        memory=host_probe.sample(root).memory_total,
        architecture=os.uname().machine,
        device_tree_model=text("proc/device-tree/model"),
        serial=text("proc/device-tree/serial-number"),
        nvhost=(root / "dev/nvhost-gpu").exists(),
    )


def assemble(
    inventories: Sequence[NvmlInventory], identity: HostIdentity, platform: Platform, *, at: float, now: float
) -> Discovery:
    """The devices out of what all sources said. ``now`` (UTC) stamps the labels. Pure."""
    devices: dict[str, FoundDevice] = {}
    problems: list[Problem] = []
    parents: list[str] = []
    certain = True
    for inventory in inventories:
        if inventory.failure is not None:
            problems.append(Problem(inventory.library or "nvml", inventory.failure))
            # no library and no driver is what a host without a GPU looks like; everything else hides something
            certain = certain and inventory.failure.reason is Reason.LIBRARY_MISSING
        for lost in inventory.lost:
            problems.append(Problem(inventory.library, lost.failure, lost.index))
            certain = False
        for found in inventory.devices:
            if found.mig_enabled:
                parents.append(found.uuid)
                certain = False
            elif found.uuid in devices:
                detail = f"{found.uuid} is told of by {devices[found.uuid].source} already"
                conflict = Unavailable(Reason.CONFLICT, at, "discovery", Scope.DEVICE, detail)
                problems.append(Problem(inventory.library, conflict, found.index))
            else:
                devices[found.uuid] = _from_nvml(found, inventory, platform, now)
    real = any(not device.simulated for device in devices.values())
    if not real and certain and (platform.nvhost or _is_jetson(platform.device_tree_model)):
        jetson = _jetson(identity, platform, at, now)
        devices[jetson.uuid] = jetson
    if not devices and certain:
        cpu = _cpu(identity, platform, at, now)
        devices[cpu.uuid] = cpu
    return Discovery(tuple(devices.values()), tuple(problems), tuple(parents))


def _from_nvml(found: NvmlDevice, inventory: NvmlInventory, platform: Platform, now: float) -> FoundDevice:
    labels = _host_labels(platform, now)
    labels["gpu_name"] = _label(found.name, now)
    labels["gpu_model"] = _label(found.name, now, short_model)
    labels["vram"] = _label(found.memory_total, now, lambda size: f"{size // MIB}M")
    labels["capability"] = _label(found.capability, now)
    labels["driver"] = _label(inventory.driver, now)
    labels["cuda"] = _label(inventory.cuda, now)
    labels["pci"] = _label(found.pci, now)
    profile = re.search(r"MIG (\S+)$", found.name.value) if isinstance(found.name, Value) else None
    if profile is not None:
        labels["mig_profile"] = read_label(profile[1], "detected", now)
    if inventory.simulated:
        labels["simulated"] = read_label(True, "detected", now)
    return FoundDevice(
        uuid=found.uuid,
        kind="simulated" if inventory.simulated else "mig" if found.mig_parent else "nvidia",
        model=found.name,
        memory=found.memory_total,
        pci=found.pci,
        capability=found.capability,
        driver=inventory.driver,
        cuda=inventory.cuda,
        mig_parent=found.mig_parent,
        simulated=inventory.simulated,
        source=inventory.library,
        labels=labels,
    )


def _is_jetson(model: str) -> bool:
    return re.search(r"Jetson|\bOrin\b|\bXavier\b|\bThor\b|Tegra", model) is not None


def _jetson(identity: HostIdentity, platform: Platform, at: float, now: float) -> FoundDevice:
    """The GPU of a Jetson that has no NVML: it is there, and its memory is the host's, so no column of its own."""
    none = Unavailable(Reason.NOT_SUPPORTED, at, "device-tree", Scope.DEVICE, "no NVML on this Jetson")
    name = platform.device_tree_model
    model: Reading[str] = Value(name, at, "device-tree", Scope.DEVICE) if name else none
    labels = _host_labels(platform, now)
    labels |= {"gpu_name": _label(model, now), "gpu_model": _label(model, now, short_model), "vram": _label(none, now)}
    uuid = f"JETSON-{platform.serial or identity.machine_id}"
    return FoundDevice(uuid, "jetson", model, none, none, none, none, none, None, False, "device-tree", labels)


def _cpu(identity: HostIdentity, platform: Platform, at: float, now: float) -> FoundDevice:
    none = Unavailable(Reason.NOT_SUPPORTED, at, "host", Scope.DEVICE, "a CPU device")
    return FoundDevice(
        uuid=f"CPU-{identity.machine_id}",
        kind="cpu",
        model=Value(platform.architecture, at, "host", Scope.DEVICE),
        memory=platform.memory,
        pci=none,
        capability=none,
        driver=none,
        cuda=none,
        mig_parent=None,
        simulated=False,
        source="host",
        labels=_host_labels(platform, now),
    )


def _host_labels(platform: Platform, now: float) -> dict[str, AnyLabel]:
    return {
        "cpus": read_label(platform.cpus, "detected", now),
        "arch": read_label(platform.architecture, "detected", now),
        "mem": _label(platform.memory, now, lambda size: f"{size // MIB}M"),
    }


def _label(reading: Reading[str] | Reading[int], now: float, show: Callable[..., str] = str) -> AnyLabel:
    """A label of a reading: an unavailable one is an unknown label, which no selector matches."""
    if isinstance(reading, Unavailable):
        return UnknownLabel(reading.reason, "detected", now)
    label = read_label(show(reading.value), "detected", now)
    return label if isinstance(label, Label) else UnknownLabel(label.reason, "detected", now)
