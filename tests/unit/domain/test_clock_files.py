"""Clock windows as files: JSON and CSV, what they leave out, and what is wrong in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tenure.domain import clocks
from tenure.domain.clock_files import window_from_csv, window_from_dict

ARMS = [
    arm
    for case in json.loads((Path(__file__).parents[2] / "cases" / "clocks.json").read_text())["cases"]
    for arm in case.get("arms", ())
]


def csv_of(arm: dict[str, Any]) -> str:
    """The same window as CSV, a second between samples."""
    lines = ["at,sm_mhz,throttle_bits,busy,name,driver,boot_id,persistence,max_sm_mhz"]
    for number, sample in enumerate(window_from_dict(arm).window.samples):
        cells = [number, sample.sm_mhz, hex(sample.throttle_bits or 0), int(bool(sample.busy))]
        cells += [arm[key] for key in ("name", "driver", "boot_id", "persistence", "max_sm_mhz")]
        lines.append(",".join(map(str, cells)))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("number", range(len(ARMS)))
def test_json_and_csv_tell_the_same(number: int) -> None:
    arm = ARMS[number]
    by_json, by_csv = window_from_dict(arm).window, window_from_csv(csv_of(arm)).window
    assert clocks.busy_summary(by_csv) == clocks.busy_summary(by_json)
    assert [r for r in clocks.gate(by_json) if r != "coverage"] == list(clocks.gate(by_csv))
    assert (by_csv.name, by_csv.boot_id, by_csv.max_sm_mhz) == (by_json.name, by_json.boot_id, by_json.max_sm_mhz)


def test_what_a_file_leaves_out_is_listed() -> None:
    assert window_from_dict({"sm_mhz": [1]}).assumed == (
        "throttle_bits: none set",
        "busy_cycle: busy in every sample",
        "coverage: the whole span",
        "contended: no",
    )
    whole = {"sm_mhz": [1], "throttle_bits": 0, "busy_cycle": [True], "coverage": 1, "contended": False}
    assert window_from_dict(whole).assumed == ()


def test_null_is_a_reading_that_did_not_come() -> None:
    told = {
        "sm_mhz": [None, 2000],
        "throttle_bits": None,
        "busy_cycle": [True, None],
        "coverage": None,
        "contended": None,
    }
    window = window_from_dict(told).window
    assert [sample.sm_mhz for sample in window.samples] == [None, 2000]
    reasons = clocks.gate(window)
    assert {"clock_unknown", "throttle_unknown", "busy_unknown", "coverage_unknown", "contended_unknown"} <= set(
        reasons
    )


def test_flags_and_masks_in_other_words() -> None:
    window = window_from_dict({"sm_mhz": [1], "persistence": True, "throttle_bits": "0x8040"}).window
    assert window.persistence == "Enabled"
    assert window.samples[0].throttle_bits == 0x8040


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ([], "JSON object"),
        ({}, "sm_mhz"),
        ({"sm_mhz": 2000}, "sm_mhz"),
        ({"sm_mhz": ["fast"]}, "'fast'"),
        ({"sm_mhz": [True]}, "True"),
        ({"sm_mhz": [float("nan")]}, "nan"),
        ({"sm_mhz": [-1]}, "no clock"),
        ({"sm_mhz": [[1, 2]]}, "times"),
        ({"sm_mhz": [[1, 2], "3"]}, "times"),
        ({"sm_mhz": [[1, 2], 10**9]}, "500000 samples"),
        ({"sm_mhz": [1], "busy_cycle": []}, "busy_cycle"),
        ({"sm_mhz": [1], "busy_cycle": ["yes"]}, "busy_cycle"),
        ({"sm_mhz": [1], "throttle_bits": -1}, "-1"),
        ({"sm_mhz": [1], "throttle_bits": 1.5}, "1.5"),
        ({"sm_mhz": [1], "throttle_bits_at": {"7": 1}}, "sample 7"),
        ({"sm_mhz": [1], "throttle_bits_at": {"x": 1}}, "throttle_bits_at"),
        ({"sm_mhz": [1], "coverage": "all"}, "coverage"),
        ({"sm_mhz": [1], "contended": "no"}, "contended"),
        ({"sm_mhz": [1], "name": 3}, "name"),
        ({"sm_mhz": [1], "max_sm_mhz": "3003 MHz"}, "max_sm_mhz"),
    ],
)
def test_what_is_wrong_in_json_is_named(told: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        window_from_dict(told)


SMI = """name, driver_version, clocks.current.sm [MHz], clocks.max.sm [MHz], clocks_event_reasons.active, \
utilization.gpu [%], persistence_mode, pstate, temperature.gpu, power.draw [W], clocks.current.memory [MHz]
NVIDIA GB10, 580.173.02, 2080 MHz, 3003 MHz, 0x0000000000000000, 97 %, Enabled, P0, 61, 55.10 W, [N/A]
NVIDIA GB10, 580.173.02, 2086 MHz, 3003 MHz, 0x0000000000000001, 0 %, Enabled, P8, 60, [N/A], [N/A]
"""


def test_what_nvidia_smi_prints_reads() -> None:
    window = window_from_csv(SMI).window
    first, second = window.samples
    assert (first.sm_mhz, first.throttle_bits, first.busy, first.pstate) == (2080.0, 0, True, "P0")
    assert (first.utilisation, first.temperature_c, first.power_w, first.mem_mhz) == (97.0, 61.0, 55.1, None)
    assert (second.busy, second.throttle_bits, second.power_w) == (False, 1, None)
    assert (window.name, window.max_sm_mhz, window.persistence) == ("NVIDIA GB10", 3003.0, "Enabled")
    assert window.coverage is None  # no times: nobody knows what lies between the samples
    assert window.boot_id == ""


def rows(*times: float) -> str:
    return "at,sm_mhz,throttle_bits,busy\n" + "".join(f"{at},2000,0,1\n" for at in times)


def test_coverage_is_worked_out_from_the_times() -> None:
    found = window_from_csv(rows(0, 1, 2, 3, 9, 10))
    assert found.window.coverage == 0.4
    assert "period: the median gap of 1 s" in found.assumed
    assert window_from_csv(rows(0, 1, 2, 3, 9, 10), period=3).window.coverage == 1.0
    assert window_from_csv(rows(0)).window.coverage is None


def test_utilisation_that_did_not_read_leaves_busy_unknown() -> None:
    window = window_from_csv("sm_mhz,throttle_bits,utilisation,contended\n2000,0,[N/A],no\n2000,0,5,unknown\n").window
    assert [sample.busy for sample in window.samples] == [None, True]
    assert window.contended is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no header"),
        ("at,clock\n1,2\n", "lacks sm_mhz, throttle_bits, busy or utilisation"),
        ("sm_mhz,throttle_bits,busy\n2000,0\n", "row 2 has 2 cells"),
        ("sm_mhz,throttle_bits,busy\nfast,0,1\n", "'fast'"),
        ("sm_mhz,throttle_bits,busy\n2000,x,1\n", "'x'"),
        ("sm_mhz,throttle_bits,busy\n2000,0,maybe\n", "'maybe'"),
        ("sm_mhz,throttle_bits,busy\n1e400,0,1\n", "1e400"),
        ("sm_mhz,throttle_bits,busy,boot_id\n2000,0,1,b1\n2000,0,1,b2\n", "boot_id changes within the window: b1, b2"),
        (rows(1, 0), "do not run forward"),
        ("sm_mhz,throttle_bits,busy\n" + "2000,0,1\n" * 500_001, "more than 500000"),
    ],
)
def test_what_is_wrong_in_csv_is_named(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        window_from_csv(text)
