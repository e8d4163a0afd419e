"""Presets of simulated devices: what cards of these models say at rest and at work, and what they do not say.

Figures are those that the models' own tools print (MiB, MHz, mW, degrees Celsius); ``busy_`` ones hold while a
process works. A ``fault`` is a call that this model does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Model:
    """One preset: the settings written into the scenario, and faults as (function, how)."""

    settings: Mapping[str, str]
    faults: tuple[tuple[str, str], ...] = ()


def _card(
    name: str,
    memory_mb: int,
    capability: str,
    *,
    rest_mb: int,
    reserved_mb: int,
    clock: tuple[int, int],
    memory_clock: int,
    power_w: tuple[int, int, int],
    mig: bool = False,
) -> dict[str, str]:
    idle_mhz, busy_mhz = clock
    idle_w, busy_w, limit_w = power_w
    settings = {
        "name": name,
        "capability": capability,
        "memory_total_mb": str(memory_mb),
        "memory_used_mb": str(rest_mb),
        "memory_reserved_mb": str(reserved_mb),
        "clock_sm": str(idle_mhz),
        "busy_clock_sm": str(busy_mhz),
        "clock_graphics": str(idle_mhz),
        "busy_clock_graphics": str(busy_mhz),
        "clock_mem": str(memory_clock),
        "clock_video": str(idle_mhz),
        "max_clock_sm": str(busy_mhz),
        "max_clock_graphics": str(busy_mhz),
        "max_clock_mem": str(memory_clock),
        "app_clock_graphics": str(busy_mhz),
        "app_clock_mem": str(memory_clock),
        "temperature": "31",
        "busy_temperature": "58",
        "power_mw": str(idle_w * 1000),
        "busy_power_mw": str(busy_w * 1000),
        "power_limit_mw": str(limit_w * 1000),
        "pstate": "0",
        "persistence": "1",
        "accounting": "0",
        "accounting_buffer": "4000",
    }
    if mig:
        settings["mig"] = "off"
    return settings


_NO_MEMORY = (("nvmlDeviceGetMemoryInfo*", "NOT_SUPPORTED"),)  # unified memory: GPU memory is host memory

MODELS: Mapping[str, Model] = {
    "H100": Model(
        _card(
            "NVIDIA H100 80GB HBM3",
            81559,
            "9.0",
            rest_mb=4,
            reserved_mb=553,
            clock=(345, 1980),
            memory_clock=2619,
            power_w=(70, 620, 700),
            mig=True,
        )
    ),
    "A100": Model(
        _card(
            "NVIDIA A100-SXM4-80GB",
            81920,
            "8.0",
            rest_mb=8,
            reserved_mb=904,
            clock=(210, 1410),
            memory_clock=1593,
            power_w=(55, 370, 400),
            mig=True,
        )
    ),
    "RTX4090": Model(
        _card(
            "NVIDIA GeForce RTX 4090",
            24564,
            "8.9",
            rest_mb=2,
            reserved_mb=446,
            clock=(210, 2520),
            memory_clock=10501,
            power_w=(18, 390, 450),
        ),
        (("nvmlDeviceGetApplicationsClock", "NOT_SUPPORTED"), ("nvmlDeviceGetAccounting*", "NOT_SUPPORTED")),
    ),
    "GB10": Model(
        _card(
            "NVIDIA GB10",
            0,
            "12.1",
            rest_mb=0,
            reserved_mb=0,
            clock=(208, 2405),
            memory_clock=0,
            power_w=(5, 60, 140),
        ),
        (
            *_NO_MEMORY,
            ("nvmlDeviceGetApplicationsClock", "NOT_SUPPORTED"),
            ("nvmlDeviceGetEnforcedPowerLimit", "NOT_SUPPORTED"),
        ),
    ),
    "THOR": Model(
        _card(
            "NVIDIA Thor",
            0,
            "11.0",
            rest_mb=0,
            reserved_mb=0,
            clock=(315, 1575),
            memory_clock=0,
            power_w=(8, 90, 130),
        ),
        (
            *_NO_MEMORY,
            ("nvmlDeviceGetApplicationsClock", "NOT_SUPPORTED"),
            ("nvmlDeviceGetAccounting*", "NOT_SUPPORTED"),
            ("nvmlDeviceGetPower*", "NOT_SUPPORTED"),
            ("nvmlDeviceGetEnforcedPowerLimit", "NOT_SUPPORTED"),
            ("nvmlDeviceGetPersistenceMode", "NOT_SUPPORTED"),
        ),
    ),
}
