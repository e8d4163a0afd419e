"""Whether this host lets the agent make cgroups (version 2) for its jobs: tried, not assumed.

What a mount table or a version says is not enough: the hierarchy may be read-only (containers), undelegated (a login
session), or its cgroup.kill missing (before Linux 5.14). So the probe does what a supervisor will do: makes a group,
puts a process into it, kills it through the group, and removes the group.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class Found:
    """``parent``: the group under which jobs get theirs (for spec.json), or None. ``reason``: what was tried."""

    parent: str | None
    reason: str


def probe(mountinfo: Path = Path("/proc/self/mountinfo"), own: Path = Path("/proc/self/cgroup")) -> Found:
    """A usable parent for the cgroups of jobs, with the reason where there is none. Takes some 20 ms; never raises."""
    tried = []
    for parent in _candidates(mountinfo, own):
        trouble = _try(parent)
        if trouble is None:
            return Found(str(parent), f"made, filled, killed and removed a group in {parent}")
        tried.append(f"{parent}: {trouble}")
    return Found(None, "; ".join(tried) or "no cgroup2 hierarchy is mounted")


def _candidates(mountinfo: Path, own: Path) -> Iterator[Path]:
    """For each cgroup2 mount (the whole of /sys/fs/cgroup, or ``unified`` beside version 1): this process's own group,
    which is the one that systemd's Delegate=yes hands over. Groups of jobs are made in ``tenure`` below it."""
    try:
        place = re.search(r"^0::(/.*)$", own.read_text(), re.MULTILINE)
        mounts = mountinfo.read_text().splitlines()
    except OSError:
        return  # no /proc, or no cgroups in this kernel
    for line in mounts:
        left, _, right = line.partition(" - ")
        if place is None or not right.startswith("cgroup2 "):
            continue
        root, point = (field.encode().decode("unicode_escape") for field in left.split()[3:5])
        relative = os.path.relpath(place[1], root)
        if not relative.startswith(".."):  # else the mount shows a part of the hierarchy that we are not in
            yield Path(point) / relative / "tenure" if relative != "." else Path(point) / "tenure"


def _try(parent: Path) -> str | None:
    """None where everything a supervisor needs worked, else what did not."""
    group = parent / f"probe-{os.getpid()}"
    child: subprocess.Popen[bytes] | None = None
    try:
        parent.mkdir(exist_ok=True)
        group.mkdir()
        if not (group / "cgroup.kill").exists():
            return "no cgroup.kill (Linux before 5.14)"
        child = subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE, env={}, cwd="/")
        (group / "cgroup.procs").write_text(str(child.pid))
        (group / "cgroup.kill").write_text("1")
        if child.wait(_DEADLINE_S) != -9:
            return "a process put into a group was not killed through it"
    except (OSError, subprocess.TimeoutExpired) as e:
        return getattr(e, "strerror", None) or str(e)
    finally:
        if child is not None:
            child.kill()
            if child.stdin is not None:
                child.stdin.close()
            child.wait()
        if group.exists():
            group.rmdir()
    return None
