"""Whether this host lets the agent make cgroups for its jobs, of version 2 or of the version 1 freezer: tried.

What a mount table or a version says is not enough: the hierarchy may be read-only (containers), undelegated (a login
session), or its cgroup.kill missing (before Linux 5.14). So the probe does what a supervisor will do: makes a group,
puts a process into it, kills it through the group (in the freezer: while it is frozen), and removes the group.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["cgroup2", "freezer"]
_DEADLINE_S = 5.0
_OWN_FREEZER = r"^\d+:(?:[^:]*,)?freezer(?:,[^:]*)?:(/.*)$"
_NONE = {"cgroup2": "no cgroup2 hierarchy is mounted", "freezer": "no cgroup v1 freezer hierarchy is mounted"}


@dataclass(frozen=True, slots=True)
class Found:
    """``parent``: the group under which jobs get theirs (for spec.json), or None. ``reason``: what was tried."""

    parent: str | None
    reason: str


def probe(
    mountinfo: Path = Path("/proc/self/mountinfo"), own: Path = Path("/proc/self/cgroup"), kind: Kind = "cgroup2"
) -> Found:
    """A usable parent for the cgroups of jobs, with the reason where there is none. Takes some 20 ms; never raises."""
    tried = []
    for parent in _candidates(mountinfo, own, kind):
        trouble = _try(parent, kind)
        if trouble is None:
            return Found(str(parent), f"made, filled, killed and removed a group in {parent}")
        tried.append(f"{parent}: {trouble}")
    return Found(None, "; ".join(tried) or _NONE[kind])


def _candidates(mountinfo: Path, own: Path, kind: Kind) -> Iterator[Path]:
    """For each mount of the hierarchy (version 2: the whole of /sys/fs/cgroup, or ``unified`` beside version 1): this
    process's own group, which is the one that systemd's Delegate=yes hands over. Groups of jobs are made in ``tenure``
    below it."""
    line_of, mounted = (r"^0::(/.*)$", r"cgroup2 ") if kind == "cgroup2" else (_OWN_FREEZER, r"cgroup .*[ ,]freezer\b")
    try:
        place = re.search(line_of, own.read_text(), re.MULTILINE)
        mounts = mountinfo.read_text().splitlines()
    except OSError:
        return  # no /proc, or no cgroups in this kernel
    for line in mounts:
        left, _, right = line.partition(" - ")
        if place is None or re.match(mounted, right) is None:
            continue
        root, point = (field.encode().decode("unicode_escape") for field in left.split()[3:5])
        relative = os.path.relpath(place[1], root)
        if not relative.startswith(".."):  # else the mount shows a part of the hierarchy that we are not in
            yield Path(point) / relative / "tenure" if relative != "." else Path(point) / "tenure"


def _try(parent: Path, kind: Kind) -> str | None:
    """None where everything a supervisor needs worked, else what did not."""
    group = parent / f"probe-{os.getpid()}"
    child: subprocess.Popen[bytes] | None = None
    try:
        parent.mkdir(exist_ok=True)
        for stale in parent.glob("probe-*"):  # of an agent that was killed while it tried
            if not Path("/proc", stale.name.removeprefix("probe-")).exists():
                with suppress(OSError):
                    stale.rmdir()
        group.mkdir()
        if kind == "cgroup2" and not (group / "cgroup.kill").exists():
            return "no cgroup.kill (Linux before 5.14)"
        if kind == "freezer" and not (group / "freezer.state").exists():
            return "no freezer.state"
        child = subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE, env={}, cwd="/")
        (group / "cgroup.procs").write_text(str(child.pid))
        if kind == "cgroup2":
            (group / "cgroup.kill").write_text("1")
        elif (trouble := _kill_frozen(group, child)) is not None:
            return trouble
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


def _kill_frozen(group: Path, child: subprocess.Popen[bytes]) -> str | None:
    """Freezes the group, kills whom it lists, and thaws it."""
    state = group / "freezer.state"
    state.write_text("FROZEN")
    try:
        end = time.monotonic() + 1.0
        while not state.read_text().startswith("FROZEN"):
            if time.monotonic() > end:
                return "a group could not be frozen within a second"
            time.sleep(0.001)
        if (group / "cgroup.procs").read_text().split() != [str(child.pid)]:
            return "a group does not list the process that was put into it"
        child.kill()
    finally:
        state.write_text("THAWED")
    return None
