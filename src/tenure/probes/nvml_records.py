"""What NVML was asked and what it answered, as frozen records. No I/O, no NVML in here.

Units: memory in bytes, utilisation in percent, clocks in MHz, power in mW, temperature in degrees Celsius. Every
figure is a ``Reading``, whose ``instrument`` names the NVML function that answered: two versions of one call may
count differently (one idle card showed 912 MiB by the first memory call and 8 MiB by the second), so compare a figure
only with a baseline of the same instrument.
"""

from __future__ import annotations

from dataclasses import dataclass

from tenure.domain.reading import Reading, Unavailable


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One entry of a device's process list. ``pid`` is as the driver numbers it, which may be another namespace's."""

    pid: int
    memory: Reading[int]
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessUtilisation:
    """The highest figures seen for one process since the sample before; ``samples`` counts what the driver kept."""

    pid: int
    sm: Reading[int]
    memory: Reading[int]
    samples: int


@dataclass(frozen=True, slots=True)
class AccountingRecord:
    """The driver's own book on one process: peak memory in bytes, utilisation over its life, wall time in ms."""

    pid: int
    running: bool
    gpu_utilisation: Reading[int]
    memory_utilisation: Reading[int]
    max_memory: Reading[int]
    time_ms: Reading[int]


@dataclass(frozen=True, slots=True)
class ClockSample:
    """Clocks and what holds them back, for one device at one instant. ``throttle_bits`` keeps unknown bits."""

    sm: Reading[int]
    memory: Reading[int]
    max_sm: Reading[int]
    max_memory: Reading[int]
    application_sm: Reading[int]
    application_memory: Reading[int]
    throttle_bits: Reading[int]
    performance_state: Reading[int]
    temperature: Reading[int]
    power: Reading[int]
    power_limit: Reading[int]
    persistence: Reading[bool]


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """Everything one round asked of one device. ``at`` is monotonic seconds at the beginning of the round.

    ``fallbacks`` names the calls that failed and were replaced by an older one, with the driver's words.
    """

    uuid: str
    at: float
    simulated: bool
    memory_used: Reading[int]
    memory_total: Reading[int]
    utilisation: Reading[int]
    memory_utilisation: Reading[int]
    compute: Reading[tuple[GpuProcess, ...]]
    graphics: Reading[tuple[GpuProcess, ...]]
    mps: Reading[tuple[GpuProcess, ...]]
    process_utilisation: Reading[tuple[ProcessUtilisation, ...]]
    accounting_on: Reading[bool]
    accounting: Reading[tuple[AccountingRecord, ...]]
    clocks: ClockSample
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """One device of an inventory: a whole card, or a MIG instance (then ``mig_parent`` is the card's UUID)."""

    uuid: str
    index: int
    mig_parent: str | None
    mig_enabled: bool
    name: Reading[str]
    pci: Reading[str]
    minor: Reading[int]
    memory_total: Reading[int]
    capability: Reading[str]
    accounting_on: Reading[bool]
    persistence: Reading[bool]


@dataclass(frozen=True, slots=True)
class LostHandle:
    """A device that the driver counts but that could not be opened, so that not even its UUID is known."""

    index: int
    failure: Unavailable


@dataclass(frozen=True, slots=True)
class NvmlInventory:
    """All devices one NVML source knows. ``failure`` says why there is no answer at all; then ``devices`` is empty."""

    devices: tuple[NvmlDevice, ...]
    lost: tuple[LostHandle, ...]
    driver: Reading[str]
    cuda: Reading[str]
    library: str
    simulated: bool
    at: float
    failure: Unavailable | None = None


@dataclass(frozen=True, slots=True)
class NvmlStatistics:
    """What the client went through: children started, given up on, not yet dead; why the last one was replaced."""

    children_started: int
    children_abandoned: int
    children_undead: int
    last_failure: str
