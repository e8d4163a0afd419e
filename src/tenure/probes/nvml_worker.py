"""The child that holds NVML: loads the library once, keeps one handle a device, answers JSON lines on a socket.

Run as ``python -I -S nvml_worker.py DIR-OF-PYNVML PROGRESS-FD PARENT-PID`` with the socket as stdin and stdout. It is
a program of its own because any NVML call can hang for good inside the driver; its parent then leaves it behind. So:
what was measured goes out at once, device by device, and before each call its name goes into the progress file. It
never calls CUDA, imports nothing of Tenure, and ends with its parent.

Each call is reported raw: ``{"v": value}``, ``{"e": code, "m": words}`` for an NVML error, ``{"x": words}`` for any
other failure; what that means is decided in ``nvml_calls``. An older version of a call is made only where the newer
one failed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

FIRST_LOOK_BACK_US = 1_000_000
SM, MEMORY = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
FALL_BACK_ON = (2, 3, 13, 25, 26)  # invalid argument, not supported, function not found, version mismatch, deprecated


def search_path() -> list[str]:
    """Where the parent's interpreter would find pynvml, for a child that runs without ``site``."""
    import importlib.util
    from pathlib import Path

    spec = importlib.util.find_spec("pynvml")
    return [str(Path(spec.origin).parent)] if spec is not None and spec.origin else ["/nonexistent"]


class Worker:
    """NVML as one process sees it: the module, the handles by UUID, and where each device's samples were read up to."""

    def __init__(self, nvml: Any, out: int, progress: int) -> None:
        self.nvml = nvml
        self._out = out
        self._progress = progress
        self._handles: dict[str, Any] = {}
        self._seen: dict[str, int] = {}
        self._where = ""

    def send(self, message: dict[str, Any]) -> None:
        """Writes one line, whole."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        while data:
            data = data[os.write(self._out, data) :]

    def call(self, name: str, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Makes one call and reports it raw; its name stands in the progress file meanwhile."""
        os.pwrite(self._progress, f"{name}{self._where}".encode()[:199] + b"\0", 0)
        try:
            return {"v": function(*arguments)}
        except self.nvml.NVMLError as error:
            return {"e": int(error.value), "m": str(error)}
        except Exception as problem:  # garbage of the driver fails in many ways; whichever it is, it is reported
            return {"x": f"{type(problem).__name__}: {problem}"[:200]}

    def newest(self, into: dict[str, Any], *attempts: tuple[Any, ...]) -> None:
        """The first version of a call that the driver knows; all failures on the way are reported too."""
        for name, function, *arguments in attempts:
            into[name] = self.call(name, function, *arguments)
            if into[name].get("e") not in FALL_BACK_ON:
                return

    # -- inventory

    def inventory(self, request: dict[str, Any]) -> None:
        """Sends every card and MIG instance that the driver counts, each as it is found, with its own failures."""
        n, asked = self.nvml, request["id"]
        system = {
            "nvmlDeviceGetCount": self.call("nvmlDeviceGetCount", n.nvmlDeviceGetCount),
            "nvmlSystemGetDriverVersion": self.call("nvmlSystemGetDriverVersion", n.nvmlSystemGetDriverVersion),
            "nvmlSystemGetCudaDriverVersion": self.call("nvmlSystemGetCudaDriverVersion", self._cuda),
        }
        self.send({"id": asked, "system": system})
        for index in range(min(system["nvmlDeviceGetCount"].get("v", 0), 1024)):
            if index in request.get("skip", []):
                continue
            self.send({"id": asked, "begin": index})
            handle, entry = self._describe(index, n.nvmlDeviceGetHandleByIndex, index)
            found = [entry]
            if handle is not None and entry["calls"].get("nvmlDeviceGetMigMode", {}).get("v") == 1:
                found += self._instances(handle, entry["calls"].get("nvmlDeviceGetUUID", {}).get("v", ""))
            self.send({"id": asked, "end": index, "devices": found})
        self.send({"id": asked, "done": True})

    def _instances(self, card: Any, parent: str) -> list[dict[str, Any]]:
        n = self.nvml
        found: list[dict[str, Any]] = []
        limit = self.call("nvmlDeviceGetMaxMigDeviceCount", n.nvmlDeviceGetMaxMigDeviceCount, card)
        for slot in range(min(limit.get("v", 0), 64)):
            _, entry = self._describe(slot, n.nvmlDeviceGetMigDeviceHandleByIndex, card, slot)
            if entry["calls"]["handle"].get("e") not in (2, 6):  # those say: no instance in this slot
                found.append({**entry, "mig_parent": parent})
        return found

    def _cuda(self) -> str:
        version = int(self.nvml.nvmlSystemGetCudaDriverVersion())
        return f"{version // 1000}.{version % 1000 // 10}"

    def _describe(self, index: int, opening: Callable[..., Any], *arguments: Any) -> tuple[Any, dict[str, Any]]:
        n = self.nvml
        self._where = f" of device {index}"
        handle, report = self._open("nvmlDeviceGetHandleByIndex", opening, *arguments)
        calls = {"handle": report}
        if handle is not None:
            for name in ("UUID", "Name", "MinorNumber", "AccountingMode", "PersistenceMode"):
                full = f"nvmlDeviceGet{name}"
                calls[full] = self.call(full, getattr(n, full), handle)
            for full, function in (
                ("nvmlDeviceGetPciInfo", lambda: _text(n.nvmlDeviceGetPciInfo(handle).busId)),
                (
                    "nvmlDeviceGetCudaComputeCapability",
                    lambda: "{}.{}".format(*n.nvmlDeviceGetCudaComputeCapability(handle)),
                ),
                ("nvmlDeviceGetMigMode", lambda: n.nvmlDeviceGetMigMode(handle)[0]),
            ):
                calls[full] = self.call(full, function)
            self._memory(handle, calls)
        self._where = ""
        return handle, {"index": index, "mig_parent": None, "calls": calls}

    def _open(self, name: str, opening: Callable[..., Any], *arguments: Any) -> tuple[Any, dict[str, Any]]:
        report = self.call(name, opening, *arguments)
        return (report["v"], {"v": True}) if "v" in report else (None, report)

    # -- samples

    def sample(self, request: dict[str, Any]) -> None:
        """Sends, for each device: its beginning, what it holds and does, its clocks, its end."""
        asked = request["id"]
        for uuid in request["uuids"]:
            self._where = f" of {uuid}"
            self.send({"id": asked, "begin": uuid})
            handle, opening = self._handle(uuid)
            if handle is None:
                self.send({"id": asked, "uuid": uuid, "calls": {"handle": opening}, "end": uuid})
                continue
            core = self._core(uuid, handle, request.get("pids", []))
            if request.get("clocks", True):
                self.send({"id": asked, "uuid": uuid, "calls": core})
                core = self._clocks(handle)
            self.send({"id": asked, "uuid": uuid, "calls": core, "end": uuid})
        self._where = ""
        self.send({"id": asked, "done": True})

    def _handle(self, uuid: str) -> tuple[Any, dict[str, Any]]:
        if uuid in self._handles:
            return self._handles[uuid], {"v": True}
        handle, report = self._open("nvmlDeviceGetHandleByUUID", self.nvml.nvmlDeviceGetHandleByUUID, uuid.encode())
        if handle is not None:
            self._handles[uuid] = handle
        return handle, report

    def _memory(self, handle: Any, into: dict[str, Any]) -> None:
        n = self.nvml

        def ask(version: int | None) -> dict[str, int]:
            got = n.nvmlDeviceGetMemoryInfo(handle, version=version)
            return {"total": got.total, "used": got.used, "free": got.free}

        versions = (("nvmlDeviceGetMemoryInfo_v2", ask, n.nvmlMemory_v2), ("nvmlDeviceGetMemoryInfo", ask, None))
        self.newest(into, *versions)

    def _core(self, uuid: str, handle: Any, pids: list[int]) -> dict[str, Any]:
        n = self.nvml
        calls: dict[str, Any] = {}
        self._memory(handle, calls)

        def utilisation() -> dict[str, int]:
            rates = n.nvmlDeviceGetUtilizationRates(handle)
            return {"gpu": rates.gpu, "memory": rates.memory}

        calls["nvmlDeviceGetUtilizationRates"] = self.call("nvmlDeviceGetUtilizationRates", utilisation)
        for kind in ("Compute", "Graphics", "MPSCompute"):
            base = f"nvmlDeviceGet{kind}RunningProcesses"
            newer = ((f"{base}_{v}", self._listed, f"{base}_{v}", handle) for v in ("v3", "v2"))
            self.newest(calls, *newer, (base, self._listed_v1, base, handle))
        name = "nvmlDeviceGetProcessUtilization"
        calls[name] = self.call(name, self._process_utilisation, uuid, handle)
        mode = self.call("nvmlDeviceGetAccountingMode", n.nvmlDeviceGetAccountingMode, handle)
        calls["nvmlDeviceGetAccountingMode"] = mode
        if mode.get("v") == 1:
            calls["nvmlDeviceGetAccountingStats"] = {"v": self._accounting(handle, pids)}
        return calls

    def _listed(self, name: str, handle: Any) -> list[dict[str, Any]]:
        entries = getattr(self.nvml, name)(handle)
        return [
            {"pid": e.pid, "memory": e.usedGpuMemory, "gi": e.gpuInstanceId, "ci": e.computeInstanceId} for e in entries
        ]

    def _listed_v1(self, name: str, handle: Any) -> list[dict[str, Any]]:
        """The first version of the list, for drivers older than the bindings care for: entries of (pid, memory)."""

        class Entry(ctypes.Structure):
            _fields_ = (("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong))

        function = self.nvml._nvmlGetFunctionPointer(name)
        count = ctypes.c_uint(0)
        code = function(handle, ctypes.byref(count), None)
        if code == 0:
            return []
        if code != self.nvml.NVML_ERROR_INSUFFICIENT_SIZE:
            raise self.nvml.NVMLError(code)
        count.value = count.value * 2 + 5
        entries = (Entry * count.value)()
        code = function(handle, ctypes.byref(count), entries)
        if code != 0:
            raise self.nvml.NVMLError(code)
        none = 0xFFFFFFFFFFFFFFFF
        return [{"pid": e.pid, "memory": None if e.memory == none else e.memory} for e in entries[: count.value]]

    def _process_utilisation(self, uuid: str, handle: Any) -> list[dict[str, int]]:
        """Samples since the last call. The first call looks at all that the driver kept, of which the past is cut."""
        seen = self._seen.get(uuid, 0)
        samples = self.nvml.nvmlDeviceGetProcessUtilization(handle, seen)
        newest = max((s.timeStamp for s in samples), default=seen)
        if newest < 1 << 63:
            self._seen[uuid] = max(seen, newest)
        floor = newest - FIRST_LOOK_BACK_US if seen == 0 else 0
        return [
            {"pid": s.pid, "at": s.timeStamp, "sm": s.smUtil, "memory": s.memUtil}
            for s in samples
            if s.timeStamp >= floor
        ]

    def _accounting(self, handle: Any, pids: list[int]) -> list[dict[str, Any]]:
        def stats(pid: int) -> dict[str, Any]:
            got = self.nvml.nvmlDeviceGetAccountingStats(handle, pid)
            return {
                "pid": pid,
                "running": got.isRunning,
                "gpu": got.gpuUtilization,
                "memory": got.memoryUtilization,
                "max_memory": got.maxMemoryUsage,
                "time": got.time,
            }

        reports = [self.call("nvmlDeviceGetAccountingStats", stats, pid) for pid in pids]
        return [report for report in reports if report.get("e") != self.nvml.NVML_ERROR_NOT_FOUND]

    def _clocks(self, handle: Any) -> dict[str, Any]:
        n = self.nvml
        calls: dict[str, Any] = {}
        for name in ("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetApplicationsClock"):
            for what, kind in (("sm", SM), ("memory", MEMORY)):
                if name == "nvmlDeviceGetApplicationsClock" and kind == SM:
                    kind = 0  # application clocks know graphics and memory only; SM follows graphics
                calls[f"{name}.{what}"] = self.call(name, getattr(n, name), handle, kind)
        reasons = [f"nvmlDeviceGetCurrentClocks{word}Reasons" for word in ("Event", "Throttle")]
        self.newest(calls, *((name, getattr(n, name), handle) for name in reasons))
        for name in (
            "nvmlDeviceGetPerformanceState",
            "nvmlDeviceGetPowerUsage",
            "nvmlDeviceGetEnforcedPowerLimit",
            "nvmlDeviceGetPersistenceMode",
        ):
            calls[name] = self.call(name, getattr(n, name), handle)
        name = "nvmlDeviceGetTemperature"
        calls[name] = self.call(name, n.nvmlDeviceGetTemperature, handle, 0)
        return calls


def _text(raw: Any) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


def _library(nvml: Any) -> tuple[str, bool]:
    """Loads the library that was named, or the system's. Returns its path and whether it says it is simulated."""
    folder = os.environ.get("TENURE_NVML_DIR")
    names = [f"{folder}/libnvidia-ml.so.1"] if folder else ["libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"]
    problem: OSError | None = None
    for name in names:
        try:
            nvml.nvmlLib = ctypes.CDLL(name)
            break
        except OSError as error:
            problem = problem or error
    else:
        raise problem or OSError("no library")
    with open("/proc/self/maps") as maps:
        paths = [line.split(None, 5)[5].strip() for line in maps if "libnvidia-ml" in line]
    return (paths[0] if paths else name), hasattr(nvml.nvmlLib, "tenure_simulated_nvml")


def _end_with_parent(parent: int) -> None:
    """A child hung in the driver never sees that its socket closed; the kernel tells it all the same."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(0)


def main(argv: list[str]) -> int:
    """Says hello with the outcome of nvmlInit, then answers requests until the socket closes."""
    where, progress, parent = argv[1], int(argv[2]), int(argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent(parent)
    sys.path.append(where)
    out = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not run into the protocol
    try:
        import pynvml
    except ImportError as problem:
        hello = {"init": {"e": 12, "m": f"nvidia-ml-py cannot be imported: {problem}"}}
        os.write(out, json.dumps({"id": None, "library": "", "simulated": False, **hello}).encode() + b"\n")
        return 1
    worker = Worker(pynvml, out, progress)
    library, simulated = "", False
    try:
        library, simulated = _library(pynvml)
        init = worker.call("nvmlInit", pynvml.nvmlInit)
    except OSError as problem:
        init = {"e": 12, "m": f"NVML library not loaded: {problem}"}
    worker.send({"id": None, "init": init, "library": library, "simulated": simulated, "pid": os.getpid()})
    if "v" not in init:
        return 1
    with os.fdopen(0, "rb") as requests:
        for line in requests:
            request = json.loads(line)
            if request["op"] == "inventory":
                worker.inventory(request)
            elif request["op"] == "sample":
                worker.sample(request)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
