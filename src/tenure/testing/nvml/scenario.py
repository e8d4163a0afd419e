"""The scenario file that the simulated NVML answers from: made, read and edited while others read it.

Edits happen under an flock on ``<file>.lock`` and replace the file in one rename, so a reader sees the old or the new
one, never half of one. The format is described at the head of ``nvml.c``. Standard library only and cheap to import:
the simulated GPU program registers itself through this within milliseconds.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tenure.errors import TenureError

HEAD = "# Simulated NVML devices. No GPU is behind any of this.\n"


class Scenario:
    """One scenario file. ``device`` is always an index in the file (MIG instances included) or a UUID."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def create(
        cls,
        path: Path | str,
        spec: str,
        *,
        uuids: Sequence[str] = (),
        driver: str = "570.133.20",
        cuda: int = 12080,
    ) -> Scenario:
        """Writes a scenario from a spec such as ``4xH100`` or ``A100,2xGB10``; UUIDs are random unless given."""
        from tenure.testing.nvml.models import MODELS

        models: list[str] = []
        for part in spec.split(","):
            found = re.fullmatch(r"\s*(?:(\d+)\s*[xX])?\s*(\w+)\s*", part)
            if found is None or found[2].upper() not in MODELS:
                known = ", ".join(MODELS)
                raise TenureError(
                    "invalid_request",
                    f"no simulated device is called {part.strip()!r}.",
                    do=f"Use a count and a model, such as 4xH100; models are {known}.",
                )
            models += [found[2].upper()] * int(found[1] or 1)
        lines = [HEAD, f"driver {driver}\n", f"nvml 12.{driver}\n", f"cuda {cuda}\n", "reap on\n"]
        for index, name in enumerate(models):
            model = MODELS[name]
            uuid = uuids[index] if index < len(uuids) else random_uuid("GPU")
            lines += [f"\ndevice {index}\n", f"uuid {uuid}\n", f"pci 00000000:{0x1B + 0x12 * index & 0xFF:02X}:00.0\n"]
            lines += [f"minor {index}\n"]
            no_memory = ("nvmlDeviceGetMemoryInfo*", "NOT_SUPPORTED") in model.faults
            hidden = {"clock_mem", "max_clock_mem", "app_clock_mem"} if no_memory else set()
            lines += [f"{key} {value}\n" for key, value in model.settings.items() if key not in hidden]
            lines += [f"fault {function} {how}\n" for function, how in model.faults]
        scenario = cls(path)
        with scenario._locked():
            scenario._write(lines)
        return scenario

    def devices(self) -> list[str]:
        """UUIDs in the order of the file."""
        return [line.split(None, 1)[1].strip() for line in self._read() if line.startswith("uuid ")]

    def get(self, device: int | str | None, key: str) -> str | None:
        """The value of a setting, of a device or (None) of the head of the file."""
        lines = self._read()
        begin, end = _section(lines, device)
        values = [line.split(None, 1)[1].strip() for line in lines[begin:end] if line.split(None, 1)[:1] == [key]]
        return values[-1] if values else None

    def set(self, device: int | str | None, key: str, value: object) -> None:
        """Sets ``key``; ``None`` as value removes it, after which most calls answer NOT_SUPPORTED."""

        def change(lines: list[str]) -> list[str]:
            kept = [line for line in lines if line.split(None, 1)[:1] != [key]]
            return kept if value is None else [*kept, f"{key} {value}\n"]

        self._edit(device, change)

    def add_process(
        self,
        device: int | str,
        pid: int,
        memory_mb: int | None = 0,
        sm_util: int = 0,
        *,
        kind: str = "compute",
        foreign: bool = False,
    ) -> None:
        """Lists a process on a device. ``memory_mb`` None reads as not available; ``kind`` is compute, graphics or mps.

        A ``foreign`` pid belongs to another namespace: it stays listed whether or not such a process exists here.
        """
        start = 0 if foreign else _start_ticks(pid)
        memory = "NA" if memory_mb is None else str(memory_mb)
        line = f"process {pid} memory_mb={memory} sm={sm_util} kind={kind} start={start} foreign={int(foreign)}\n"
        self._edit(device, lambda lines: [*_without(lines, "process", pid), line])

    def remove_process(self, device: int | str, pid: int) -> None:
        """Takes a process off a device; where accounting is on, its record stays on the driver's books."""

        def change(lines: list[str]) -> list[str]:
            mine = [line.split() for line in lines if line.split()[:2] == ["process", str(pid)]]
            kept = _without(lines, "process", pid)
            if mine and any(line.split() == ["accounting", "1"] for line in lines):
                facts = dict(word.split("=") for word in mine[-1][2:])
                memory = facts["memory_mb"] if facts["memory_mb"] != "NA" else "0"
                kept = _without(kept, "account", pid)
                kept.append(f"account {pid} gpu={facts['sm']} memory=0 max_memory_mb={memory} time_ms=1 running=0\n")
            return kept

        self._edit(device, change)

    def add_account(self, device: int | str, pid: int, *, gpu: int, max_memory_mb: int, time_ms: int = 1) -> None:
        """Puts an ended process on the driver's books (they are read only where ``accounting`` is 1)."""
        line = f"account {pid} gpu={gpu} memory=0 max_memory_mb={max_memory_mb} time_ms={time_ms} running=0\n"
        self._edit(device, lambda lines: [*_without(lines, "account", pid), line])

    def fault(self, device: int | str | None, function: str, how: str) -> None:
        """Makes a function fail: an NVML error's name, ``garbage``, ``hang [S]``, ``delay MS``, ``abort``, ``segv``."""
        self._edit(device, lambda lines: [*_without(lines, "fault", function), f"fault {function} {how}\n"])

    def clear_faults(self, device: int | str | None, function: str | None = None) -> None:
        """Takes back one fault or all of a device (or, with None, of the head)."""
        self._edit(device, lambda lines: _without(lines, "fault", function))

    def add_mig(self, parent: int, *, name: str, memory_mb: int, gpu_instance: int, uuid: str | None = None) -> str:
        """Adds a MIG instance to the ``parent``-th whole card and switches its MIG mode on. Returns its UUID."""
        uuid = uuid or random_uuid("MIG")
        with self._locked():
            lines = self._read()
            begin, end = _section(lines, parent)
            lines[begin:end] = [line for line in lines[begin:end] if not line.startswith("mig ")] + ["mig on\n"]
            capability = next((line for line in lines[begin:end] if line.startswith("capability ")), "")
            lines += [
                f"\ndevice {sum(line.startswith('device ') for line in lines)}\n",
                f"parent {parent}\nuuid {uuid}\nname {name}\nmemory_total_mb {memory_mb}\nmemory_used_mb 0\n",
                f"gpu_instance {gpu_instance}\ncompute_instance 0\n{capability}",
            ]
            self._write(lines)
        return uuid

    def _edit(self, device: int | str | None, change: Callable[[list[str]], list[str]]) -> None:
        with self._locked():
            lines = self._read()
            begin, end = _section(lines, device)
            body = [line for line in lines[begin:end] if line.strip()]
            lines[begin:end] = [*change(body), "\n"]
            self._write(lines)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _read(self) -> list[str]:
        return self.path.read_text().splitlines(keepends=True)

    def _write(self, lines: Sequence[str]) -> None:
        draft = f"{self.path}.{os.getpid()}.new"
        Path(draft).write_text("".join(lines))
        Path(draft).replace(self.path)


def random_uuid(prefix: str) -> str:
    """A UUID as the driver writes them, with the prefix GPU or MIG."""
    digits = os.urandom(16).hex()
    return f"{prefix}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _section(lines: Sequence[str], device: int | str | None) -> tuple[int, int]:
    """The range of lines of one device (after its ``device`` line), or of the head."""
    heads = [at for at, line in enumerate(lines) if line.startswith("device ")]
    if device is None:
        return 0, heads[0] if heads else len(lines)
    if isinstance(device, str) and device.isdigit():
        device = int(device)
    for index, at in enumerate(heads):
        end = heads[index + 1] if index + 1 < len(heads) else len(lines)
        if device == index or f"uuid {device}\n" in lines[at:end]:
            return at + 1, end
    raise TenureError(
        "unknown_device",
        f"the scenario has no device {device}.",
        do="Name one by its index or UUID.",
        facts={"devices": [line.split()[1] for line in lines if line.startswith("uuid ")]},
    )


def _without(lines: Sequence[str], key: str, first: object | None) -> list[str]:
    return [
        line
        for line in lines
        if not (line.split()[:1] == [key] and (first is None or line.split()[1:2] == [str(first)]))
    ]


def _start_ticks(pid: int) -> int:
    """Field 22 of the process's stat file, so that a reused number is told apart; 0 where it does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat[stat.rfind(")") + 2 :].split()[19])
