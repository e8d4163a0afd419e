"""Which kind of control the jobs of this host get over their whole process trees: each kind tried, the best one taken.

    cgroup2    a cgroup v2 with cgroup.kill: one stroke for all in it, forks in flight included
    freezer    a cgroup in the version 1 freezer: frozen, killed one by one while nobody can fork, thawed
    pidns      a PID namespace, whose init takes everybody along. Only where asked for: it changes what a job sees
    subreaper  nothing but PR_SET_CHILD_SUBREAPER, pidfds and /proc, which every kind rests on

All keep the same promise (tests/contract/test_tree_control.py holds every kind to it); they differ in how many rounds
it takes. So where the kind asked for does not work, the next best is taken and said (docs/decisions/0011).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from tenure.agent import cgroups

Kind = Literal["cgroup2", "freezer", "pidns", "subreaper"]
KINDS: tuple[Kind, ...] = ("cgroup2", "freezer", "pidns", "subreaper")
AUTOMATIC: tuple[Kind, ...] = ("cgroup2", "freezer", "subreaper")
_DEADLINE_S = 5.0

# What a supervisor does for this kind: an init, beside it a process with a /proc of its own, and the init's end.
_TRY_PIDNS = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(1 << 29):
    sys.exit("unshare: " + os.strerror(ctypes.get_errno()))
init = os.fork()
while init == 0:
    signal.pause()
if not os.path.exists(f"/proc/{init}/task/{init}/children"):
    os.kill(init, 9)
    sys.exit("no /proc/PID/task/PID/children (a kernel without CONFIG_PROC_CHILDREN)")
told, tell = os.pipe()
child = os.fork()
if child == 0:
    failed = libc.unshare(1 << 17) or libc.mount(None, b"/", None, 1 << 14 | 1 << 19, None)
    if failed or libc.mount(b"proc", b"/proc", b"proc", 14, None):
        os.write(tell, b"no /proc of its own: " + os.strerror(ctypes.get_errno()).encode())
    elif os.readlink("/proc/self") != str(os.getpid()):
        os.write(tell, b"its /proc is another's")
    os.close(tell)
    while True:
        signal.pause()
os.close(tell)
trouble = os.read(told, 200).decode()
os.kill(init, 9)
_, status = os.waitpid(child, 0)
os.waitpid(init, 0)
sys.exit(trouble or (None if status == 9 else "the end of its init ended nobody else"))
"""


@dataclass(frozen=True, slots=True)
class Control:
    """What supervisors are told. ``parent``: the group under which jobs get theirs, for the kinds that have one.
    ``reason``: what was tried. ``fell_back``: why this is not the kind that was asked for; empty where it is."""

    kind: Kind
    parent: str | None = None
    reason: str = ""
    fell_back: str = ""


@dataclass(frozen=True, slots=True)
class Tried:
    """What trying a kind came to. ``reason``: what was done, or what did not work."""

    works: bool
    reason: str
    parent: str | None = None


def _cgroup(kind: cgroups.Kind) -> Tried:
    found = cgroups.probe(kind=kind)
    return Tried(found.parent is not None, found.reason, found.parent)


def _pidns() -> Tried:
    """Some 100 ms; only where it is asked for."""
    command = [sys.executable, "-I", "-S", "-c", _TRY_PIDNS]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False, env={}, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as e:
        return Tried(False, str(e))
    if ran.returncode == 0:
        return Tried(True, "made, filled and ended a PID namespace with a /proc of its own")
    return Tried(False, ran.stderr.strip() or f"the probe ended with {ran.returncode}")


PROBES: Mapping[Kind, Callable[[], Tried]] = {
    "cgroup2": lambda: _cgroup("cgroup2"),
    "freezer": lambda: _cgroup("freezer"),
    "pidns": _pidns,
    "subreaper": lambda: Tried(True, "needs nothing more"),
}


def choose(wanted: str = "auto", probes: Mapping[Kind, Callable[[], Tried]] = PROBES) -> Control:
    """The kind to use on this host: ``wanted`` (a kind, or "auto") where it works, else the first automatic one that
    does. Blocks for some 30 ms, at most some seconds a kind; never raises."""
    asked = [kind for kind in KINDS if kind == wanted]
    tried: dict[Kind, str] = {}
    for kind in (*asked, *AUTOMATIC):
        if kind in tried:
            continue
        found = probes[kind]()
        tried[kind] = found.reason
        if found.works:
            break
    reason = "; ".join(f"{one}: {why}" for one, why in tried.items())
    fell_back = f"{wanted}: {tried[asked[0]]}" if asked and kind != wanted else ""
    return Control(kind, found.parent, reason, fell_back)
