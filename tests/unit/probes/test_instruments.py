"""Every line of the field cases: what instruments print out there, and how it must be read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.reading import Reading, Reason, Unavailable, Value
from tenure.probes import command, discovery, nvml_parse, proc, smi

CASES = json.loads((Path(__file__).parents[2] / "cases/instruments.json").read_text())["cases"]
AT = 1.0
MIB = 1 << 20


def plain(reading: Reading[Any] | proc.Vanished) -> Any:
    assert not isinstance(reading, proc.Vanished)
    return str(reading.reason) if isinstance(reading, Unavailable) else reading.value


def csv_row(raw: str) -> Any:
    return {name: plain(reading) for name, reading in smi.query_csv(raw, AT)[0].items()}


def text_row(raw: str) -> Any:
    return [plain(smi.text_field(cell, AT)) for cell in smi.rows(raw)[0]]


def second_field(raw: str) -> Any:
    return plain(smi.number_field(smi.rows(raw)[0][1], AT))


def pair(raw: str) -> Any:
    return [plain(smi.number_field(cell, AT)) for cell in smi.rows(raw)[0]]


def nvml_memory(raw: Mapping[str, int]) -> Any:
    """Both calls answered; the sample takes the newer one."""
    calls = {
        "nvmlDeviceGetMemoryInfo": {"v": {"total": 81920 * MIB, "used": raw["v1_mb"] * MIB}},
        "nvmlDeviceGetMemoryInfo_v2": {"v": {"total": 81920 * MIB, "used": raw["v2_mb"] * MIB}},
    }
    used = nvml_parse.device_sample("GPU-a", calls, AT).memory_used
    assert isinstance(used, Value)
    return {"used_mb": used.value // MIB}


def nvml_utilisation(raw: str) -> Any:
    calls = {"nvmlDeviceGetUtilizationRates": {"v": {"gpu": int(raw), "memory": 0}}}
    return plain(nvml_parse.device_sample("GPU-a", calls, AT).utilisation)


def nvml_memory_bytes(raw: str) -> Any:
    calls = {"nvmlDeviceGetMemoryInfo_v2": {"v": {"total": int(raw), "used": 0}}}
    return plain(nvml_parse.device_sample("GPU-a", calls, AT).memory_total)


def nvml_error(raw: str) -> Any:
    code = int(raw.removeprefix("NVMLError(").removesuffix(")"))
    calls = {"nvmlDeviceGetPowerUsage": {"e": code, "m": "Function Not Found"}}
    return plain(nvml_parse.device_sample("GPU-a", calls, AT).clocks.power)


def as_nobody(question: Callable[[], str]) -> str:
    """Asks in a fork that gave up root: the interpreter itself may lie where nobody else can start it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # nothing may escape into the parent's test run
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os.write(write, question().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text


def proc_fd(raw: str) -> Any:
    """A process of another user, looked at for real by one who may not (root's own, or pid 1 for anyone else)."""
    assert raw == "EACCES"
    victim = os.getpid() if os.geteuid() == 0 else 1
    return as_nobody(lambda: str(plain(proc.handles(victim))))


READERS: Mapping[str, Callable[[Any], Any]] = {
    "smi_csv": csv_row,
    "smi_row": text_row,
    "smi_field": lambda raw: plain(smi.number_field(raw, AT)),
    "smi_process_table": lambda raw: plain(smi.process_table(raw, AT)),
    "nvml_memory": nvml_memory,
    "smi_compute_app": lambda raw: plain(smi.compute_app(raw, AT, {1, 2})),
    "smi_field_second": second_field,
    "proc_fd": proc_fd,
    "dcgm_field": lambda raw: plain(smi.dcgm_field(raw, AT)),
    "nvml_utilisation": nvml_utilisation,
    "nvml_memory_bytes": nvml_memory_bytes,
    "nvml_error": nvml_error,
    "smi_error": lambda raw: plain(smi.error(raw, AT)),
    "smi_header": smi.throttle_reason,
    "visible_for_nvml0": lambda raw: discovery.visible_environment([raw["nvml0"]])["CUDA_VISIBLE_DEVICES"],
    "device_name": discovery.device_uuid,
    "smi_pair": pair,
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
async def test_case(case: dict[str, Any]) -> None:
    if case["kind"] == "probe_command":
        began = time.monotonic()
        got = await command.run(["sh", "-c", case["input"]], deadline_s=0.5)
        assert time.monotonic() - began < 2
        assert plain(got) == case["right"]
        return
    assert READERS[case["kind"]](case["input"]) == case["right"]


def test_every_case_is_here() -> None:
    assert len(CASES) == 19


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("", Reason.UNPARSEABLE),
        ("ERR!", Reason.UNPARSEABLE),
        ("[Function Not Found]", Reason.FUNCTION_MISSING),
        ("[GPU requires reset]", Reason.GPU_LOST),
        ("18446744073709551615 MiB", Reason.OUT_OF_RANGE),
        ("4294967295", Reason.OUT_OF_RANGE),
        ("1.2.3", Reason.UNPARSEABLE),
        ("0x10", Reason.UNPARSEABLE),
        ("nan", Reason.UNPARSEABLE),
    ],
)
def test_what_is_no_number(raw: str, reason: Reason) -> None:
    got = smi.number_field(raw, AT)
    assert isinstance(got, Unavailable)
    assert got.reason is reason
    assert got.detail == raw  # its own words stay, as evidence


def test_both_spellings_of_the_throttle_headers() -> None:
    assert smi.throttle_reason("clocks_throttle_reasons.hw_slowdown [x]") == "hw_slowdown"
    assert smi.throttle_reason("clocks_event_reasons.hw_slowdown") == "hw_slowdown"
    assert smi.throttle_reason("clocks.sm [MHz]") is None


def test_the_lost_card_is_named() -> None:
    assert smi.lost_address("Unable to determine the device handle for GPU 0000:0A:00.0: Unknown Error") == (
        "00000000:0A:00.0"
    )
    assert smi.lost_address("Failed to initialize NVML: Driver/library version mismatch") is None


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_blanks_of_dcgm_say_why(offset: int) -> None:
    reasons = ["out_of_range", "out_of_range", "not_supported", "no_permission"]
    assert plain(smi.dcgm_field(f"power {140737488355328 + offset}.0", AT)) == reasons[offset]
    assert plain(smi.dcgm_field(f"power {0x7FFFFFF0 + offset}", AT)) == reasons[offset]
    assert plain(smi.dcgm_field("power 61.25", AT)) == 61.25
