"""Cgroups with a memory limit: where they can be made on this host, and making, limiting and removing them.

Two levels, of version 2 or 1 alike: one parent with the ceiling of all jobs together, and below it a group for each
attempt. Under version 2 the attempt's group is also what its supervisor makes its own group in, so that memory and
``cgroup.kill`` are one hierarchy. Groups are made below this process's own group, never at the root: whatever limits
the agent (a container, a pilot in somebody's allocation) limits its jobs too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tenure.agent.survivors import remove_cgroup
from tenure.domain.reading import Value
from tenure.probes import memory_group


class NoGroup(Exception):
    """No group with a memory limit can be had; the text says what was tried."""


def parents(
    name: str, mountinfo: Path = Path("/proc/self/mountinfo"), own: Path = Path("/proc/self/cgroup")
) -> Iterator[tuple[int, Path]]:
    """(version, group) that could be the parent, version 2 first: ``name`` below this process's own group."""
    try:
        places = dict(re.findall(r"^\d+:([^:]*):(/.*)$", own.read_text(), re.MULTILINE))
        mounts = mountinfo.read_text().splitlines()
    except OSError:
        return
    found = []
    for line in mounts:
        left, _, right = line.partition(" - ")
        kind, _, rest = right.partition(" ")
        if kind == "cgroup2":
            number, place = 2, places.get("")
        elif kind == "cgroup" and "memory" in rest.split()[-1].split(","):
            number, place = 1, next((p for names, p in places.items() if "memory" in names.split(",")), None)
        else:
            continue
        root, point = (field.encode().decode("unicode_escape") for field in left.split()[3:5])
        relative = os.path.relpath(place, root) if place is not None else ".."
        if not relative.startswith(".."):
            found.append((number, Path(point) / relative))
    for number, group in sorted(found, key=lambda pair: -pair[0]):
        yield number, Path(os.path.normpath(group)) / name


def make_parent(name: str) -> tuple[int, Path]:
    """The first parent whose limit can be written; raises NoGroup with what was tried of each."""
    tried = []
    for number, group in parents(name):
        try:
            if number == 2:
                _hand_down(group.parent)
            group.mkdir(exist_ok=True)
            if memory_group.version(group) != number:
                raise OSError(0, "it has no memory controller")
            if number == 2:
                _hand_down(group)
            return number, group
        except OSError as error:
            with suppress(OSError):
                group.rmdir()
            tried.append(f"{group}: {error.strerror or error}")
    raise NoGroup("; ".join(tried) or "no memory controller of cgroups is mounted")


def _hand_down(group: Path) -> None:
    """Lets the groups below a version 2 group have the memory controller."""
    control = group / "cgroup.subtree_control"
    if "memory" in control.read_text().split():
        return
    try:
        control.write_text("+memory")
    except OSError as error:
        why = "processes sit in it: give the unit Delegate=yes and DelegateSubgroup=agent" if error.errno == 16 else ""
        raise OSError(error.errno, f"memory is not handed down to groups below it ({why or error.strerror})") from error


def limit(group: Path, number: int, wanted: int) -> int:
    """Sets the limit of memory and swap together, and gives the limit that holds (whole pages). Raises OSError."""
    if number == 2:
        with suppress(FileNotFoundError):  # a kernel without swap
            (group / "memory.swap.max").write_text("0")
        (group / "memory.max").write_text(str(wanted))
        with suppress(OSError):
            (group / "memory.oom.group").write_text("1")
    else:
        both, alone = group / "memory.memsw.limit_in_bytes", group / "memory.limit_in_bytes"
        names = [alone, both] if both.exists() else [alone]
        now = _limit_of(group)
        # The limit of both is never below that of memory alone, so the order depends on the direction.
        for file in names if now is None or wanted <= now else reversed(names):
            file.write_text(str(wanted))
    holds = _limit_of(group)
    if holds is None or holds > wanted:
        raise OSError(0, f"its limit reads {holds} after {wanted} was written")
    return holds


def _limit_of(group: Path) -> int | None:
    found = memory_group.look(group).limit
    return found.value if isinstance(found, Value) else None


def fresh(group: Path) -> None:
    """Makes a group whose counters begin at zero. One of that name that is there and empty is replaced."""
    if group.exists() and not remove_cgroup(group):
        raise OSError(16, f"{group} is there already and not empty")
    group.mkdir()


def remove(group: Path) -> bool:
    """Removes an empty group and those below it; False where one stays."""
    return remove_cgroup(group)
