"""What the figures were taken on: without it none of them can be compared with another."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tenure.mounts import find_mount

ROOT = Path(__file__).resolve().parents[1]


def facts(folder: Path) -> dict[str, Any]:
    """The machine, the versions, and the file system of ``folder``, where every product keeps its state."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores_used": sorted(os.sched_getaffinity(0)),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": sys.version.split()[0],
        "commit": _commit(),
        "state_folder": str(folder),
        "file_system": _file_system(folder),
        "load": os.getloadavg(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _commit() -> str:
    """The commit of this checkout, with ``+changes`` where files differ from it; ``unknown`` outside a checkout."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-c", f"safe.directory={ROOT}", *words], cwd=ROOT, capture_output=True, timeout=20, check=True
        )
        return done.stdout.decode().strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _file_system(folder: Path) -> str:
    mount = find_mount(folder)
    return "unknown" if mount is None else f"{mount.fs_type} ({mount.source})"


def load() -> float:
    """The load of the last minute, in runnable processes."""
    return os.getloadavg()[0]
