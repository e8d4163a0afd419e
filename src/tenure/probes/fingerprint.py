"""A worker's fingerprint: what it has, each part a value or unavailable with a reason, and each within a deadline.

A folder on a dead mount hangs whoever lists it, so a child looks, at the lowest priority, and is left behind with the
part that it hangs in; a fresh one goes on with the rest. The child reads files; of a stated few tools whose file has
changed it asks the version.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tenure.probes.fingerprint_worker as worker
from tenure.domain.leftovers import Listing
from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.probes.child import Child, ChildGone, python_argv
from tenure.probes.proc_worker import source_root

#: Where executables are looked for. A ``*`` stands for one folder's name; ``~`` is the agent's own home.
PATH = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/usr/local/*/bin",
    "/opt/*/bin",
    "~/.local/bin",
)
CUDA = ("/usr/local/cuda*", "/opt/cuda*", "/opt/*/envs", "/opt/conda", "/opt/miniconda*", "~/miniconda*")
#: Tools whose version is asked when their file has changed.
VERSIONS = ("nvcc", "gcc", "g++", "clang", "cmake", "ninja", "make", "python3", "git", "nvidia-smi")
MAX_UNDEAD = 4
MAX_ROUNDS = 4

_REASONS = {str(reason): reason for reason in Reason}


@dataclass(frozen=True, slots=True)
class Roots:
    """Where to look. ``root`` stands before every absolute path; ``home`` for ``~``; ``attempts`` holds the scratch.

    ``mounts`` is a mountinfo file; without one it is that of this process, or of the ``root``.
    """

    root: str = "/"
    home: str = ""
    path: Sequence[str] = PATH
    cuda: Sequence[str] = CUDA
    versions: Sequence[str] = VERSIONS
    attempts: str = ""

    def config(self, version_s: float) -> dict[str, Any]:
        """As the child is told."""
        return {
            "path": self.patterns,
            "cuda": [self._at(pattern) for pattern in self.cuda],
            "versions": list(self.versions),
            "version_s": version_s,
            "dpkg": self._at("/var/lib/dpkg/status"),
            "rpm": [self._at("/usr/lib/sysimage/rpm"), self._at("/var/lib/rpm")],
            "mounts": self._at("/proc/self/mountinfo"),
            "attempts": self.attempts,
        }

    @property
    def patterns(self) -> list[str]:
        """The folders of executables, as they are looked at."""
        return [self._at(pattern) for pattern in self.path]

    @property
    def parts(self) -> list[str]:
        """The parts of a fingerprint, in the order in which they are read."""
        tools = [f"tools:{pattern}" for pattern in self.patterns]
        return [*tools, "cuda", "packages:dpkg", "packages:rpm", "packages:python", "mounts", "versions", "scratch"]

    def _at(self, path: str) -> str:
        if path.startswith("~"):
            return (self.home or os.path.expanduser("~")) + path[1:]  # noqa: PTH111 - a pattern, not a path
        return self.root.rstrip("/") + path


@dataclass(frozen=True, slots=True)
class Read:
    """One part as read: its listing, and by what it is known again."""

    listing: Listing
    digest: str
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """One fingerprint. ``same`` are the parts of ``before`` that have not changed, in ``parts`` all the same.

    ``took_s`` is seconds from the request to the last line, ``parts_s`` those that each part took the child.
    """

    parts: Mapping[str, Reading[Read]]
    same: frozenset[str]
    took_s: float
    parts_s: Mapping[str, float] = field(default_factory=dict)


class FingerprintProbe:
    """Takes fingerprints, one at a time. ``deadline_s`` bounds each part, ``version_s`` each tool asked its version."""

    def __init__(
        self,
        roots: Roots,
        *,
        deadline_s: float = 20.0,
        version_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.roots = roots
        self._deadline_s = deadline_s
        self._version_s = version_s
        self._clock = clock
        self._undead: list[Child] = []

    async def look(self, before: Mapping[str, Read]) -> Look:
        """What there is now; ``before`` is what the last look read, whose parts need not be sent again."""
        began = self._clock()
        parts: dict[str, Reading[Read]] = {}
        same: set[str] = set()
        took: dict[str, float] = {}
        waiting = self.roots.parts
        for _ in range(MAX_ROUNDS):
            if not waiting:
                break
            failed = await self._round(waiting, before, parts, same, took)
            if failed is not None:
                parts[waiting[0]] = failed
                waiting = waiting[1:]
            waiting = [part for part in waiting if part not in parts]
        for part in waiting:
            parts[part] = self._unavailable(Reason.TIMEOUT, part, f"not looked at: {MAX_ROUNDS} others blocked first")
        return Look(parts, frozenset(same), self._clock() - began, took)

    async def _round(
        self,
        waiting: list[str],
        before: Mapping[str, Read],
        parts: dict[str, Reading[Read]],
        same: set[str],
        took: dict[str, float],
    ) -> Unavailable | None:
        """One child's answers, put into ``parts``; gives why it did not answer its first unanswered part."""
        self._undead = [child for child in self._undead if not child.reaped()]
        if len(self._undead) >= MAX_UNDEAD:
            return self._unavailable(Reason.TIMEOUT, waiting[0], f"{MAX_UNDEAD} abandoned children have not died yet")
        loop, left = asyncio.get_running_loop(), list(waiting)
        child: Child | None = None
        try:
            env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
            child = Child(python_argv(worker.__file__, source_root()), env)
            async with asyncio.timeout(self._deadline_s):
                await child.ask(self._request(waiting, before))
            while left:
                line = await child.next_line(loop.time() + self._deadline_s)
                part = str(line["part"])
                parts[part] = self._reading(line, part, before)
                took[part] = float(line["took_s"])
                if line.get("same"):
                    same.add(part)
                left.remove(part)
        except TimeoutError:
            problem = self._unavailable(Reason.TIMEOUT, left[0], f"no answer for {self._deadline_s:g} s")
        except (ChildGone, OSError, KeyError, ValueError) as error:
            problem = self._unavailable(Reason.SAMPLING_GAP, left[0], str(error))
        else:
            return None
        finally:
            if child is not None:
                child.abandon()
                self._undead.append(child)
        waiting[:] = left
        return problem

    def _request(self, parts: Sequence[str], before: Mapping[str, Read]) -> dict[str, Any]:
        known: dict[str, Any] = {
            part: {"digest": read.digest, "signature": read.signature} for part, read in before.items() if part in parts
        }
        if "versions" in known:
            known["versions"]["items"] = dict(before["versions"].listing.items)
        return {"parts": list(parts), "config": self.roots.config(self._version_s), "before": known}

    def _reading(self, line: Mapping[str, Any], part: str, before: Mapping[str, Read]) -> Reading[Read]:
        if "e" in line:
            return self._unavailable(_REASONS.get(line["e"], Reason.UNPARSEABLE), part, str(line.get("m", "")))
        if line.get("same"):
            return Value(before[part], self._clock(), "files", Scope.HOST)
        listing = Listing(dict(line["items"]), dict(line["blind"]))
        if "" in listing.blind:
            reason, _, detail = listing.blind[""].partition(": ")
            return self._unavailable(_REASONS.get(reason, Reason.UNPARSEABLE), part, detail)
        return Value(Read(listing, line["digest"], line["signature"]), self._clock(), "files", Scope.HOST)

    def _unavailable(self, reason: Reason, part: str, detail: str) -> Unavailable:
        return Unavailable(reason, self._clock(), f"fingerprint.{part}", Scope.HOST, detail)

    def close(self) -> None:
        """Collects what has died; a child that hangs is left to the kernel."""
        self._undead = [child for child in self._undead if not child.reaped()]


def root_identity(mountinfo: str, boot_id: str, inode: int) -> str:
    """What tells one root file system from the next that takes its place, as far as the kernel shows it.

    A container's overlay has its upper folder, which is made with the container and lives through its restarts. One in
    memory lasts one boot. Of a disk the kind and the subvolume stay the same; the machine's own id tells machines
    apart. ``inode`` is that of the root folder, which stands in for an upper folder that is not shown.
    """
    for line in mountinfo.splitlines():
        front, _, back = line.partition(" - ")
        fields, rest = front.split(" "), back.split(" ")
        if len(fields) < 6 or fields[4] != "/" or len(rest) < 2:
            continue
        kind = rest[0]
        upper = re.search(r"(?:^|,)upperdir=([^,]+)", rest[-1])
        if upper is not None:
            return f"{kind} {upper[1]}"
        if kind in ("tmpfs", "ramfs", "rootfs"):
            return f"{kind} of boot {boot_id}"
        if kind == "overlay" or "fuse" in kind:
            return f"{kind} {inode}"
        return f"{kind} {fields[3]}"
    return f"folder {inode}"
