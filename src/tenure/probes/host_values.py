"""One look at the host as flat names, each with a value or with the reason why there is none.

memory_available, swap_zram (memory itself, held compressed), swap_partition, swap_file: bytes
psi_cpu_some ... psi_io_full: per cent of the last 10 s
load1; disk_free: bytes for an unprivileged writer beside the attempts; kills: processes ended for want of memory
by the kernel, since boot
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tenure.domain.reading import Reading, Unavailable, Value
from tenure.probes import host

#: name -> value, and name -> reason.
Flat = tuple[dict[str, float], dict[str, str]]
_SWAPS = ("zram", "partition", "file")


def flat(seen: host.HostSample, disk: Reading[host.Disk], kills: Reading[int]) -> Flat:
    """The values and the reasons of one look."""
    values: dict[str, float] = {}
    missing: dict[str, str] = {}

    def put(name: str, reading: Reading[Any], value: Any = None) -> None:
        if isinstance(reading, Unavailable):
            missing[name] = str(reading.reason)
        else:
            values[name] = reading.value if value is None else value

    put("memory_available", seen.memory_available)
    for kind in _SWAPS:
        areas = seen.swaps.value if isinstance(seen.swaps, Value) else ()
        put(f"swap_{kind}", seen.swaps, sum(area.used for area in areas if area.kind == kind))
    pressures = (("cpu", seen.pressure_cpu), ("memory", seen.pressure_memory), ("io", seen.pressure_io))
    for name, reading in pressures:
        put(f"psi_{name}_some", reading, reading.value.some_avg10 if isinstance(reading, Value) else None)
        if isinstance(reading, Value) and reading.value.full_avg10 is None:
            missing[f"psi_{name}_full"] = "not_supported"
        else:
            put(f"psi_{name}_full", reading, reading.value.full_avg10 if isinstance(reading, Value) else None)
    put("load1", seen.load1)
    put("disk_free", disk, disk.value.free if isinstance(disk, Value) else None)
    put("kills", kills)
    return values, missing


def kills(root: Path = Path("/")) -> Reading[int]:
    """How many processes the kernel has ended for want of memory since boot (Linux 4.13 and later)."""
    return host.counter(root, "vmstat", re.compile(r"^oom_kill (\d+)$", re.MULTILINE))


def resident(pids: Iterable[int], page: int, proc: Path = Path("/proc")) -> int:
    """The sum of resident sizes in bytes. Pages that processes share count in each; one that ended counts nothing."""
    total = 0
    for pid in pids:
        try:
            total += int((proc / str(pid) / "statm").read_bytes().split()[1]) * page
        except (OSError, IndexError, ValueError):
            continue  # it ended
    return total
