"""The library with NVML's ABI, as the real bindings see it: loaded by name, asked through their own structs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import TenureError
from tenure.testing.nvml import Scenario, build

ASK_EVERYTHING = """
import json, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(1)
pci = n.nvmlDeviceGetPciInfo(h)
v1, v2 = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
listed = n.nvmlDeviceGetComputeRunningProcesses(h)
samples = n.nvmlDeviceGetProcessUtilization(h, 0)
stats = n.nvmlDeviceGetAccountingStats(h, 31337)
print(json.dumps({
    "driver": n.nvmlSystemGetDriverVersion(), "nvml": n.nvmlSystemGetNVMLVersion(),
    "cuda": n.nvmlSystemGetCudaDriverVersion(), "cuda2": n.nvmlSystemGetCudaDriverVersion_v2(),
    "count": n.nvmlDeviceGetCount(), "name": n.nvmlDeviceGetName(h), "uuid": n.nvmlDeviceGetUUID(h),
    "index": n.nvmlDeviceGetIndex(h), "minor": n.nvmlDeviceGetMinorNumber(h),
    "pci": [pci.busId, pci.bus, pci.busIdLegacy],
    "same": [n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h).encode())),
             n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByPciBusId(b"0000:2D:00.0"))],
    "v1": [v1.total >> 20, v1.free >> 20, v1.used >> 20],
    "v2": [v2.total >> 20, v2.reserved >> 20, v2.free >> 20, v2.used >> 20],
    "util": [n.nvmlDeviceGetUtilizationRates(h).gpu, n.nvmlDeviceGetUtilizationRates(h).memory],
    "compute": [[p.pid, p.usedGpuMemory] for p in listed],
    "graphics": len(n.nvmlDeviceGetGraphicsRunningProcesses(h)),
    "mps": len(n.nvmlDeviceGetMPSComputeRunningProcesses(h)),
    "samples": [[s.pid, s.smUtil, s.memUtil] for s in samples],
    "accounting": [n.nvmlDeviceGetAccountingMode(h), n.nvmlDeviceGetAccountingPids(h), stats.gpuUtilization,
                   stats.maxMemoryUsage, stats.isRunning],
    "capability": n.nvmlDeviceGetCudaComputeCapability(h), "persistence": n.nvmlDeviceGetPersistenceMode(h),
    "pstate": n.nvmlDeviceGetPerformanceState(h),
    "temperature": [n.nvmlDeviceGetTemperature(h, 0), n.nvmlDeviceGetTemperatureV(h, 0)],
    "power": [n.nvmlDeviceGetPowerUsage(h), n.nvmlDeviceGetPowerManagementLimit(h),
              n.nvmlDeviceGetEnforcedPowerLimit(h)],
    "clocks": [[n.nvmlDeviceGetClockInfo(h, t), n.nvmlDeviceGetMaxClockInfo(h, t)] for t in (0, 1, 2)],
    "application": [n.nvmlDeviceGetApplicationsClock(h, t) for t in (0, 2)],
    "reasons": [n.nvmlDeviceGetCurrentClocksEventReasons(h), n.nvmlDeviceGetCurrentClocksThrottleReasons(h)],
    "mig": n.nvmlDeviceGetMigMode(h), "words": n.nvmlErrorString(18),
}))
n.nvmlShutdown()
try:
    n.nvmlDeviceGetCount()
except n.NVMLError as error:
    print(json.dumps(error.value))
"""


def bindings(script: str, library: Path, scenario: Path) -> list[Any]:
    """Runs a script over the real bindings, which find the library by its name, and gives the JSON lines it printed."""
    env = {"PATH": os.defpath, "LD_LIBRARY_PATH": str(library.parent), "TENURE_SIM_SCENARIO": str(scenario)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_real_bindings_read_every_value_of_the_scenario(nvml_library: Path, tmp_path: Path) -> None:
    scenario = Scenario.create(tmp_path / "scenario", "H100,A100", uuids=["GPU-first", "GPU-second"])
    scenario.set(1, "memory_used_mb", 8)
    scenario.set(1, "memory_reserved_mb", 904)
    scenario.set(1, "accounting", 1)
    scenario.add_account(1, 31337, gpu=77, max_memory_mb=500)
    scenario.add_process(1, 4242, 18000, 60, foreign=True)
    got, after_shutdown = bindings(ASK_EVERYTHING, nvml_library, scenario.path)
    assert got == {
        "driver": "570.133.20",
        "nvml": "12.570.133.20",
        "cuda": 12080,
        "cuda2": 12080,
        "count": 2,
        "name": "NVIDIA A100-SXM4-80GB",
        "uuid": "GPU-second",
        "index": 1,
        "minor": 1,
        "pci": ["00000000:2D:00.0", 0x2D, "0000:2D:00.0"],
        "same": ["GPU-second", "GPU-second"],
        "v1": [81920, 81920 - 18912, 18912],
        "v2": [81920, 904, 81920 - 18912, 18008],
        "util": [60, 20],
        "compute": [[4242, 18000 << 20]],
        "graphics": 0,
        "mps": 0,
        "samples": [[4242, 60, 20]],
        "accounting": [1, [31337, 4242], 77, 500 << 20, 0],
        "capability": [8, 0],
        "persistence": 1,
        "pstate": 0,
        "temperature": [58, 58],
        "power": [370000, 400000, 400000],
        "clocks": [[1410, 1410], [1410, 1410], [1593, 1593]],
        "application": [1410, 1593],
        "reasons": [0, 0],
        "mig": [0, 0],
        "words": "RM has detected an NVML/RM version mismatch.",
    }
    assert after_shutdown == 1  # uninitialized


def test_without_a_path_the_scenario_beside_the_library_counts(nvml_library: Path, tmp_path: Path) -> None:
    for name in (nvml_library.name, nvml_library.name + ".sha256"):
        (tmp_path / name).write_bytes((nvml_library.parent / name).read_bytes())
    Scenario.create(tmp_path / "scenario", "3xGB10")
    env = {"PATH": os.defpath, "LD_LIBRARY_PATH": str(tmp_path)}
    script = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=30)
    assert (done.stdout.strip(), done.stderr) == ("3", "")


def test_several_builders_at_once_leave_one_whole_library(tmp_path: Path) -> None:
    script = f"from tenure.testing.nvml import build; print(build({str(tmp_path)!r}))"
    builders = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [builder.communicate(timeout=60)[0].strip() for builder in builders]
    assert answers == [str(tmp_path / "libnvidia-ml.so.1")] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["libnvidia-ml.so.1", "libnvidia-ml.so.1.sha256"]
    before = (tmp_path / "libnvidia-ml.so.1").stat()
    build(tmp_path)
    after = (tmp_path / "libnvidia-ml.so.1").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)  # kept: its source is the same
    (tmp_path / "libnvidia-ml.so.1.sha256").write_text("an older source\n")
    build(tmp_path)
    assert (tmp_path / "libnvidia-ml.so.1").stat().st_ino != before.st_ino


def test_without_a_compiler_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nonexistent/cc")
    with pytest.raises(TenureError) as caught:
        build(tmp_path)
    assert caught.value.code == "library_missing"
    assert "C compiler" in str(caught.value)
    assert "Install" in caught.value.do
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_does_not_compile_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/bin/false")
    with pytest.raises(TenureError, match="could not be compiled"):
        build(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_spec_nobody_knows_names_the_models(tmp_path: Path) -> None:
    with pytest.raises(TenureError, match="4xB7") as caught:
        Scenario.create(tmp_path / "scenario", "4xB7")
    assert "H100" in caught.value.do


def test_edits_by_many_programs_at_once_lose_nothing(tmp_path: Path) -> None:
    scenario = Scenario.create(tmp_path / "scenario", "2xH100")
    script = (
        "import sys; from tenure.testing.nvml import Scenario\n"
        f"s = Scenario({str(scenario.path)!r})\n"
        "for i in range(10): s.add_process(int(sys.argv[1]) % 2, int(sys.argv[1]) * 100 + i, 1, 0, foreign=True)"
    )
    editors = [subprocess.Popen([sys.executable, "-c", script, str(k)]) for k in (1, 2, 3, 4)]
    assert [editor.wait(60) for editor in editors] == [0, 0, 0, 0]
    pids = sorted(int(line.split()[1]) for line in scenario.path.read_text().splitlines() if line[:8] == "process ")
    assert pids == sorted(k * 100 + i for k in (1, 2, 3, 4) for i in range(10))
