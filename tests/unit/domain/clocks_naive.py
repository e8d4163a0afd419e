"""A second, naive reading of the clock gate and of pairs, written from the rules' text and kept apart.

It works on plain dictionaries (the arms of a case file) with exact fractions, and shares nothing with the product.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

Arm = dict[str, Any]

BITS = {
    4: "sw_power_cap",
    8: "hw_slowdown",
    16: "sync_boost",
    32: "sw_thermal_slowdown",
    64: "hw_thermal_slowdown",
    128: "hw_power_brake_slowdown",
}
BENIGN = {1, 2, 256}


def rows(arm: Arm) -> list[tuple[Fraction, int, bool]]:
    """(clock, bits, busy) of every sample."""
    values = arm["sm_mhz"]
    if values and isinstance(values[0], list):
        values = [value for _ in range(values[1]) for value in values[0]]
    pattern = arm.get("busy_cycle", [True])
    found = []
    for number, value in enumerate(values):
        bits = arm.get("throttle_bits", 0)
        bits = arm.get("throttle_bits_at", {}).get(str(number), bits)
        found.append((Fraction(str(value)), bits, pattern[number % len(pattern)]))
    return found


def median(values: list[Fraction]) -> Fraction:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def busy_clocks(arm: Arm) -> list[Fraction]:
    return [clock for clock, _, busy in rows(arm) if busy]


def spread(arm: Arm) -> Fraction:
    """Percent over busy samples."""
    clocks = busy_clocks(arm)
    return 100 * (max(clocks) - min(clocks)) / median(clocks)


def own_reasons(arm: Arm) -> set[str]:
    found = set()
    clocks = busy_clocks(arm)
    if len(clocks) < 30:
        found.add("samples")
    if 2 * len(clocks) < len(rows(arm)):
        found.add("busy_fraction")
    if spread(arm) > 5:
        found.add("spread")
    if arm["persistence"] != "Enabled":
        found.add("persistence" if arm["persistence"] == "Disabled" else "persistence_unknown")
    for bits in {bits for _, bits, _ in rows(arm)}:
        for place in range(64):
            bit = 1 << place
            if bits & bit and bit not in BENIGN:
                found.add("throttle:" + BITS.get(bit, f"unknown_{bit:#x}"))
    if Fraction(str(arm.get("coverage", 1))) < Fraction(95, 100):
        found.add("coverage")
    if arm.get("contended"):
        found.add("contended")
    return found


def apart(one: Fraction, other: Fraction) -> bool:
    """More than one percent, of the smaller."""
    return 100 * abs(one - other) > min(one, other)


def judge(one: Arm, other: Arm, waive: list[str]) -> dict[str, Any]:
    found = own_reasons(one) | own_reasons(other)
    first, second = busy_clocks(one), busy_clocks(other)
    if apart(median(first), median(second)):
        found.add("cross_arm_median")
    if apart(sum(first, Fraction()) / len(first), sum(second, Fraction()) / len(second)):
        found.add("cross_arm_mean")
    found |= {f"static:{key}" for key in ("name", "driver", "max_sm_mhz") if one[key] != other[key]}
    if one["boot_id"] != other["boot_id"]:
        found.add("boot")
    waived = found & set(waive) & {"boot"}
    reasons = found - waived
    return {"verdict": "DISCARD" if reasons else "PAIR", "reasons": sorted(reasons), "caveats": sorted(waived)}
