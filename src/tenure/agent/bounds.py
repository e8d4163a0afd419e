"""Watches the bounds of one running attempt: warns it while it is idle, and asks for its end where a bound is reached.

A companion (see ``beside``), loaded only for an attempt that has a bound. It looks when the next warning or limit may
be due and, where an idle time is bounded, at signs of life in between; a max runtime alone costs one timer. A fresh
agent goes on with the limits that the attempt began with, and with its true running time, which the kernel knows; the
count of idle time begins anew, since nobody looked meanwhile.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.agent import records as r
from tenure.domain import bounds
from tenure.domain.ceilings import Ceilings, limits_of
from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.durable import LogFailed
from tenure.probes import proc

if TYPE_CHECKING:
    from tenure.agent.runs import Run
    from tenure.agent.shell import Shell

log = logging.getLogger("tenure.agent.bounds")

#: No wait is longer: a machine that slept is noticed, and its clock caught up with.
LONGEST_WAIT_S = 60.0


class BoundsWatch:
    """The companion."""

    def __init__(self, shell: Shell, run: Run) -> None:
        self._shell = shell
        self._run = run
        self._watch = bounds.Watch(bounds.Limits())
        self._began = 0.0

    @property
    def limits(self) -> bounds.Limits:
        """What holds for this attempt."""
        return self._watch.limits

    async def run(self) -> None:
        """Until a bound is reached, or somebody else asked for the end."""
        run, shell = self._run, self._shell
        if run.handle is None:
            return
        self._watch = bounds.Watch(await asyncio.to_thread(limits_in, run.folder))
        if not self.limits.any:
            return
        self._began = await asyncio.to_thread(began_at, run.folder, run.started_at)
        if run.sampler is not None and self.limits.idle_timeout_s:
            run.sampler.note_quiet = True
        while True:
            attempt = shell.state.attempts.get(run.key)
            if attempt is None or attempt.phase == "ended" or attempt.stop is not None:
                return
            instant = await self._look()
            self._watch, decision = bounds.decide(self._watch, instant)
            if isinstance(decision, bounds.Warn):
                notice = {"kind": "idle_soon", "words": decision.words, "utc": time.time(), "facts": decision.facts}
                if self._tell(r.Noticed(*run.key, notice)):
                    self._watch = bounds.warned(self._watch, time.monotonic())
            elif isinstance(decision, bounds.Stop):
                log.info("%s#%d: %s", *run.key, decision.reason)
                if self._tell(r.Overran(*run.key, decision.reason)):
                    return
            await asyncio.sleep(self._wait())

    def measured(self) -> Mapping[str, Any]:
        """The limits that held, the longest idle time seen, and what kept idle time from being told."""
        if not self.limits.any:
            return {}
        told: dict[str, Any] = dataclasses.asdict(self.limits)
        if self.limits.idle_timeout_s:
            told |= {"longest_idle_s": round(self._watch.longest_s, 3), "unread": dict(self._watch.unread)}
        return {"bounds": told}

    def _wait(self) -> float:
        due, now = bounds.due(self._watch), time.monotonic()
        return LONGEST_WAIT_S if due is None else min(max(due - now, 0.01), LONGEST_WAIT_S)

    def _tell(self, message: r.Noticed | r.Overran) -> bool:
        """Whether it is on record for good. Where the journal's disk is full it is told again at the next look."""
        try:
            self._shell.tell(message)
        except LogFailed as error:
            log.error("%s#%d: a bound could not be put on record: %s", *self._run.key, error)
            return False
        return True

    async def _look(self) -> bounds.Instant:
        limits = self.limits
        if not limits.idle_timeout_s:
            now = time.monotonic()
            return bounds.Instant(now, self._ran_s(), Value(0, now, "output", Scope.PROCESS))
        assert self._run.handle is not None
        pid, start = self._run.handle.pid, self._run.handle.start_ticks
        work = limits.idle_signal == "work"
        cpu = await asyncio.to_thread(cpu_used, pid, start) if work else None
        output = await asyncio.to_thread(output_count, self._run.folder, pid)
        gpu = self._gpu() if work else None
        return bounds.Instant(time.monotonic(), self._ran_s(), output, cpu, gpu)

    def _gpu(self) -> Reading[float] | None:
        """Since when no leased GPU was seen at work. One that no instrument can be asked about may always be."""
        attempt = self._shell.state.attempts.get(self._run.key)
        gpus = [g.uuid for g in attempt.grants if not g.uuid.startswith("CPU-")] if attempt is not None else []
        if not gpus:
            return None
        sampler, now = self._run.sampler, time.monotonic()
        if sampler is None or not all(uuid in sampler.devices for uuid in gpus):
            detail = "no instrument tells what it does"
            return Unavailable(Reason.NOT_SUPPORTED, now, "bounds.gpu", Scope.DEVICE, detail)
        return sampler.quiet(now)

    def _ran_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self._began


def limits_at_start(shell: Shell, attempt: r.Attempt) -> dict[str, Any]:
    """What holds for an attempt that is about to start, as plain values: what it asked for, else its devices' defaults.

    They go into its folder before it starts, and are what holds to its end.
    """
    assert attempt.spec is not None
    among = [shell.options.ceilings_of(grant.device) or Ceilings() for grant in attempt.grants]
    return dataclasses.asdict(limits_of(attempt.spec, among))


def limits_in(folder: Path) -> bounds.Limits:
    """The limits that an attempt began with; none where its folder does not tell of any."""
    path = folder / "spec.json"
    try:
        told = json.loads(path.read_bytes()).get("bounds")
        return bounds.Limits() if told is None else bounds.Limits(**told)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log.error("%s cannot be read, so that no bound holds: %s", path, error)
        return bounds.Limits()


def began_at(folder: Path, seen_at: float) -> float:
    """When the command began, on the clock that counts from the boot and goes on while the machine sleeps.

    From the kernel's own account of the first process, which no step of the wall clock moves. Where its record lacks
    it: by the wall clock, or else from when this agent saw it (``seen_at``, monotonic).
    """
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        record = json.loads((folder / "supervisor.json").read_bytes())
        if record.get("leader_start_ticks") is not None:
            # The tick after, so that nothing ends a hair before its time.
            return min(now, (int(record["leader_start_ticks"]) + 1) / proc.TICKS_PER_S)
        return now - max(0.0, time.time() - float(record["started_at"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return now - max(0.0, time.monotonic() - seen_at)


def cpu_used(pid: int, start_ticks: int) -> Reading[float]:
    """CPU-seconds of a supervisor's whole tree, ended processes included. Reads all of /proc: run in a thread."""
    table = proc.snapshot()
    if table.unreadable:
        # One of them may be the job's: set to another user, say, on a host that shows nobody's processes to others.
        detail = f"{len(table.unreadable)} processes, such as {table.unreadable[0]}, cannot be looked at"
        return Unavailable(Reason.NO_PERMISSION, table.at, "proc.stat", Scope.PROCESS, detail)
    tree = proc.tree(pid, table, start_ticks=start_ticks)
    if not tree:
        return Unavailable(Reason.SAMPLING_GAP, table.at, "proc.stat", Scope.PROCESS, "the tree is gone")
    # The supervisor is the subreaper: what nobody waited for is in its own account, so the sum never falls.
    return Value(proc.cpu_seconds(tree), table.at, "proc.stat", Scope.PROCESS)


def output_count(folder: Path, pid: int) -> Reading[int]:
    """A count that grows with every byte of output: what is stored, and what the supervisor took from the pipes.

    The second also grows where nothing can be stored, because the disk is full or a quota was hit. Where the kernel
    keeps no such account, a full disk makes the output one that cannot be read.
    """
    now, stored = time.monotonic(), 0
    try:
        for name in ("output.bin", "output.idx"):
            try:
                stored += (folder / name).stat().st_size
            except FileNotFoundError:
                continue
        taken = _taken(pid)
        if taken is None:
            disk = os.statvfs(folder)
            if disk.f_bavail == 0:
                detail = "the disk is full, so that output is not kept"
                return Unavailable(Reason.NOT_SUPPORTED, now, "output", Scope.PROCESS, detail)
    except OSError as error:
        return Unavailable(Reason.NO_PERMISSION, now, "output", Scope.PROCESS, str(error))
    return Value(stored + (taken or 0), now, "output", Scope.PROCESS)


def _taken(pid: int) -> int | None:
    """Bytes that a process has read, None where the kernel does not say."""
    try:
        for line in Path(f"/proc/{pid}/io").read_text("ascii").splitlines():
            if line.startswith("rchar:"):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None
