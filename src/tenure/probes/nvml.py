"""The client of the NVML child: asynchronous, every call bounded, one hung or lost card never hides the others.

A round asks the devices one after the other, those that misbehaved last at the end. When a device makes the child hang
or die, the readings of the devices before it are already here; that device reads ``timeout`` (or ``sampling_gap``
where the child died), a fresh child is asked for the rest within the same call, and the device is left out for 1, 2,
4 ... 60 s (its readings say so) before it is asked again. Children that fail before any device is asked (library
missing, version mismatch, a hang in nvmlInit) are replaced after the same growing pause.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tenure.probes.nvml_worker as nvml_worker
from tenure.domain.reading import Reason, Scope, Unavailable
from tenure.probes import nvml_parse as parse
from tenure.probes.child import Child, ChildGone, python_argv
from tenure.probes.nvml_calls import failure
from tenure.probes.nvml_records import DeviceSample, NvmlInventory, NvmlStatistics

MAX_UNDEAD = 4
MAX_ROUNDS = 3  # children that one call may use up
PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 60.0)


@dataclass(slots=True)
class _Suspicion:
    """How often something failed in a row, and when it may be tried again (of the injected clock)."""

    failures: int = 0
    again_at: float = 0.0
    why: Unavailable | None = None


class _Failed(Exception):
    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class NvmlProbe:
    """One source of NVML devices: the system's library, or the one in ``library_dir``.

    ``deadline_s`` bounds the silence between two replies, ``start_deadline_s`` a child's start (nvmlInit takes seconds
    where persistence is off); one call uses up three children at most. ``simulated`` marks every reading; a library
    that says itself that it is simulated is marked whatever was passed. One call at a time.
    """

    def __init__(
        self,
        library_dir: Path | None = None,
        *,
        simulated: bool = False,
        deadline_s: float = 2.0,
        start_deadline_s: float = 20.0,
        scenario: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.library_dir = library_dir
        self.simulated = simulated
        self.library = ""
        self._deadline_s = deadline_s
        self._start_deadline_s = start_deadline_s
        self._scenario = scenario
        self._clock = clock
        self._child: Child | None = None
        self._undead: list[Child] = []
        self._source = _Suspicion()
        self._devices: dict[str, _Suspicion] = {}
        self._lock = asyncio.Lock()
        self._next_id = 0
        self._started = 0
        self._abandoned = 0
        self._last_failure = ""

    async def inventory(self) -> NvmlInventory:
        """Every device of the source, or ``failure`` with the reason why there is no answer."""
        async with self._lock:
            at = self._clock()
            known: dict[int, list[dict[str, Any]]] = {}
            system: dict[str, Any] = {}
            try:
                for _ in range(MAX_ROUNDS):
                    if await self._inventory_round(known, system, at):
                        break
            except _Failed as failed:
                why = self._suspect_source(failed)
                return parse.failed_inventory(why, library=self.library, simulated=self.simulated)
            except BaseException:
                self._abandon("the call was cancelled")
                raise
            devices = [entry for index in sorted(known) for entry in known[index]]
            reply = {"system": system, "devices": devices}
            return parse.inventory(reply, at, library=self.library, simulated=self.simulated)

    async def _inventory_round(self, known: dict[int, list[dict[str, Any]]], system: dict[str, Any], at: float) -> bool:
        """Collects devices until the child is through (true) or one device makes it hang or die (false)."""
        current: int | None = None
        try:
            child = await self._ready_child(at)
            request = await self._ask(child, {"op": "inventory", "skip": list(known)})
            while True:
                reply = await self._reply(child, request, self._deadline_s)
                system.update(reply.get("system", {}))
                if "begin" in reply:
                    current = int(reply["begin"])
                elif "end" in reply:
                    known[int(reply["end"])], current = reply.get("devices", []), None
                elif "done" in reply:
                    self._source = _Suspicion()
                    return True
        except _Failed as failed:
            if current is None:
                raise
            why = Unavailable(failed.reason, at, "nvml", Scope.DEVICE, failed.detail)
            known[current] = [{"index": current, "calls": {"handle": {"u": why}}}]
            return False

    async def sample(
        self, uuids: Sequence[str], *, clocks: bool = True, accounting_pids: Sequence[int] = ()
    ) -> dict[str, DeviceSample]:
        """One sample of each device asked for, in that order. Never raises for a device: unavailable has reasons."""
        async with self._lock:
            at = self._clock()
            results: dict[str, DeviceSample] = {}
            waiting = self._due(uuids, at, results)
            options = {"op": "sample", "clocks": clocks, "pids": list(accounting_pids)}
            try:
                for _ in range(MAX_ROUNDS):
                    if not waiting:
                        break
                    await self._round(waiting, options, self._clock(), results)
                late = Unavailable(
                    Reason.TIMEOUT, at, "nvml", Scope.DEVICE, f"not asked: {MAX_ROUNDS} others hung first"
                )
                for uuid in tuple(waiting):
                    self._give_up(uuid, late, at, waiting, results)
            except BaseException:
                self._abandon("the call was cancelled")
                raise
            return {uuid: results[uuid] for uuid in uuids}

    async def close(self) -> None:
        """Ends the child. Children that cannot die yet are left to the kernel."""
        async with self._lock:
            self._abandon("")
            self._bury()

    def statistics(self) -> NvmlStatistics:
        """What this client went through so far."""
        self._bury()
        return NvmlStatistics(self._started, self._abandoned, len(self._undead), self._last_failure)

    # -- one round over one child

    async def _round(
        self, waiting: list[str], options: dict[str, Any], at: float, results: dict[str, DeviceSample]
    ) -> None:
        """Asks for all of ``waiting`` and takes out of it whatever is settled, at least one device a round."""
        calls: dict[str, dict[str, Any]] = {}
        current = ""
        try:
            child = await self._ready_child(at)
            request = await self._ask(child, {**options, "uuids": list(waiting)})
            while True:
                reply = await self._reply(child, request, self._deadline_s)
                if "begin" in reply:
                    current = str(reply["begin"])
                elif "uuid" in reply:
                    calls.setdefault(str(reply["uuid"]), {}).update(reply.get("calls", {}))
                if reply.get("end") in waiting:
                    self._settle(str(reply["end"]), calls, at, waiting, results)
                elif "done" in reply:
                    break
            self._source = _Suspicion()
            for uuid in tuple(waiting):  # the child skipped it: it said nothing, so nothing is known
                self._give_up(uuid, _gap("the child did not report this device"), at, waiting, results)
        except _Failed as failed:
            if current in waiting:
                seen = calls.get(current)
                why = Unavailable(failed.reason, at, "nvml", Scope.DEVICE, failed.detail)
                self._last_failure = failed.detail
                self._suspect_device(current, why, at)
                results[current] = self._partial(current, seen, why, at)
                waiting.remove(current)
            else:
                why = self._suspect_source(failed)
                for uuid in tuple(waiting):
                    self._give_up(uuid, why, at, waiting, results)

    def _settle(
        self, uuid: str, calls: dict[str, dict[str, Any]], at: float, waiting: list[str], out: dict[str, DeviceSample]
    ) -> None:
        out[uuid] = parse.device_sample(uuid, calls.get(uuid, {}), at, simulated=self.simulated)
        self._devices.pop(uuid, None)
        waiting.remove(uuid)

    def _partial(self, uuid: str, calls: dict[str, Any] | None, why: Unavailable, at: float) -> DeviceSample:
        """What a device answered before it hung stays; the rest carries the reason of the hang."""
        if not calls:
            return parse.unavailable_sample(uuid, why, simulated=self.simulated)
        return parse.device_sample(uuid, calls, at, simulated=self.simulated, missing=why)

    def _give_up(
        self, uuid: str, why: Unavailable, at: float, waiting: list[str], out: dict[str, DeviceSample]
    ) -> None:
        out[uuid] = parse.unavailable_sample(
            uuid, Unavailable(why.reason, at, why.instrument, Scope.DEVICE, why.detail), simulated=self.simulated
        )
        waiting.remove(uuid)

    def _due(self, uuids: Sequence[str], at: float, results: dict[str, DeviceSample]) -> list[str]:
        """Those to ask now, healthy ones first; those in their pause are answered with why and until when."""
        due: list[str] = []
        for uuid in dict.fromkeys(uuids):
            suspicion = self._devices.get(uuid)
            if suspicion is not None and suspicion.why is not None and at < suspicion.again_at:
                rest = suspicion.again_at - at
                detail = f"not asked for {rest:.1f} s more after {suspicion.failures} failures: {suspicion.why.detail}"
                why = Unavailable(suspicion.why.reason, at, suspicion.why.instrument, Scope.DEVICE, detail)
                results[uuid] = parse.unavailable_sample(uuid, why, simulated=self.simulated)
            else:
                due.append(uuid)
        return sorted(due, key=lambda uuid: uuid in self._devices)

    # -- the child

    async def _ready_child(self, at: float) -> Child:
        """The child, started if need be. Raises _Failed while the source is in its pause or when the start fails."""
        if self._child is not None and self._child.reaped():
            self._abandon("ended between two calls")
        if self._child is not None:
            return self._child
        if self._source.why is not None and at < self._source.again_at:
            raise _Failed(self._source.why.reason, self._source.why.detail)
        self._bury()
        if len(self._undead) >= MAX_UNDEAD:
            raise _Failed(
                Reason.TIMEOUT, f"{len(self._undead)} abandoned children have not died yet; no new one is started"
            )
        try:
            child = Child(python_argv(nvml_worker.__file__, *nvml_worker.search_path()), self._environment())
        except OSError as problem:
            raise _Failed(Reason.LIBRARY_MISSING, f"the NVML child cannot be started: {problem}") from problem
        self._child = child
        self._started += 1
        hello = await self._reply(child, None, self._start_deadline_s)
        self.library = str(hello.get("library", ""))
        self.simulated = self.simulated or bool(hello.get("simulated"))
        bad = failure(hello.get("init"), at, "nvml.nvmlInit")
        if bad is not None:
            self._abandon(bad.detail)
            raise _Failed(bad.reason, bad.detail)
        return child

    def _environment(self) -> dict[str, str]:
        env = {"PATH": os.defpath, "LC_ALL": "C"}
        if self.library_dir is not None:
            env["TENURE_NVML_DIR"] = str(self.library_dir)
        scenario = self._scenario or (os.environ.get("TENURE_SIM_SCENARIO") if self.simulated else None)
        if scenario is not None:
            env["TENURE_SIM_SCENARIO"] = str(scenario)
        return env

    async def _ask(self, child: Child, request: dict[str, Any]) -> int:
        self._next_id += 1
        try:
            async with asyncio.timeout(self._deadline_s):
                await child.ask({**request, "id": self._next_id})
        except TimeoutError:
            self._abandon("took no request")
            raise _Failed(Reason.TIMEOUT, f"the child took no request for {self._deadline_s:g} s") from None
        except ChildGone as gone:
            self._abandon(str(gone))
            raise _Failed(Reason.SAMPLING_GAP, str(gone)) from gone
        return self._next_id

    async def _reply(self, child: Child, request: int | None, deadline_s: float) -> dict[str, Any]:
        """The next line that belongs to this request; the child is given up on where none comes in time."""
        deadline = asyncio.get_running_loop().time() + deadline_s
        try:
            while True:
                line = await child.next_line(deadline)
                if line.get("id") == request:
                    return line
        except TimeoutError:
            where = child.progress() or "before its first call"
            self._abandon(f"hung in {where}")
            raise _Failed(Reason.TIMEOUT, f"no answer for {deadline_s:g} s in {where}") from None
        except ChildGone as gone:
            self._abandon(str(gone))
            raise _Failed(Reason.SAMPLING_GAP, str(gone)) from gone

    def _abandon(self, why: str) -> None:
        if self._child is None:
            return
        child, self._child = self._child, None
        child.abandon()
        if why:
            self._abandoned += 1
            self._last_failure = why
        self._undead.append(child)

    def _bury(self) -> None:
        self._undead = [child for child in self._undead if not child.reaped()]

    # -- suspicion

    def _suspect_device(self, uuid: str, why: Unavailable, at: float) -> None:
        suspicion = self._devices.setdefault(uuid, _Suspicion())
        suspicion.failures += 1
        suspicion.again_at = at + PAUSES_S[min(suspicion.failures, len(PAUSES_S) - 1)]
        suspicion.why = why

    def _suspect_source(self, failed: _Failed) -> Unavailable:
        at = self._clock()
        if self._source.why is None or at >= self._source.again_at:
            self._source.failures += 1
            pause = PAUSES_S[min(self._source.failures - 1, len(PAUSES_S) - 1)]
            self._source.again_at = at + pause
            self._source.why = Unavailable(failed.reason, at, "nvml", Scope.HOST, failed.detail)
            self._last_failure = failed.detail
        return Unavailable(failed.reason, at, "nvml", Scope.HOST, failed.detail)


def _gap(detail: str) -> Unavailable:
    return Unavailable(Reason.SAMPLING_GAP, 0.0, "nvml", Scope.DEVICE, detail)
