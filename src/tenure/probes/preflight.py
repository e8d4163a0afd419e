"""Whether a host meets a job's requirements, looked at as the job would meet it, before anything of it is started.

All are looked at side by side in one child that can be left behind; whatever has no answer within ``LOOK_S`` seconds
could not be looked at, with what it was last about to do. What the driver says of the leased devices is known already
and only judged here.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import tenure.probes.preflight_worker as worker
from tenure.domain.reading import Reading, Reason, Unavailable
from tenure.domain.requirement import Kind, Look, Requirement, Result
from tenure.domain.versions import reaches
from tenure.probes.child import Child, ChildGone, python_argv

#: For all requirements of a job together. A command that is asked something has 5 s of it (``COMMAND_S``).
LOOK_S = 10.0
MAX_UNDEAD = 8
_undead: list[Child] = []


@dataclass(frozen=True, slots=True)
class LeasedDevice:
    """What the driver says of one leased device."""

    name: str
    driver: Reading[str]
    capability: Reading[str]


@dataclass(frozen=True, slots=True)
class Start:
    """How the command would start: its environment, working directory, first word, and the folder of its own."""

    env: Mapping[str, str]
    cwd: str
    program: str
    scratch: str


async def look(
    needs: Sequence[Requirement], start: Start, devices: Sequence[LeasedDevice], *, deadline_s: float = LOOK_S
) -> tuple[Look, ...]:
    """What was found of each requirement, in their order. Cancelled, it leaves nothing running."""
    by_devices = (Kind.DRIVER, Kind.COMPUTE)
    found = {need: of_devices(need, devices) for need in needs if need.kind in by_devices}
    rest = [need for need in needs if need.kind not in by_devices]
    if rest:
        found |= dict(zip(rest, await _ask(rest, start, deadline_s), strict=True))
    return tuple(found[need] for need in needs)


def of_devices(need: Requirement, devices: Sequence[LeasedDevice]) -> Look:
    """``driver`` or ``compute``: one device below it is enough to fail, one that does not say enough not to know."""
    below: list[tuple[str, str]] = []
    met: list[tuple[str, str]] = []
    unknown: list[tuple[Reason, str]] = []
    for device in devices:
        told = device.driver if need.kind is Kind.DRIVER else device.capability
        if isinstance(told, Unavailable):
            unknown.append((told.reason, f"{device.name}: {told.detail or told.reason}"))
            continue
        enough = reaches(told.value, need.least)
        if enough is None:
            unknown.append((Reason.UNPARSEABLE, f"{device.name}: {told.value!r} has no order"))
        else:
            (met if enough else below).append((device.name, told.value))
    what = "driver" if need.kind is Kind.DRIVER else "compute capability"
    version = ", ".join(sorted({value for _, value in below or met}))
    if below:
        words = f"{what} " + ", ".join(f"{value} on {name}" for name, value in below) + f", below {need.least}"
        return Look(need, Result.ABSENT, words, version=version)
    if unknown or not met:
        reason, words = unknown[0] if unknown else (Reason.NOT_SUPPORTED, "no device is leased")
        return Look(need, Result.COULD_NOT_LOOK, f"{what} is not known: {words}", reason)
    return Look(need, Result.PRESENT, f"{what} {version} on {', '.join(name for name, _ in met)}", version=version)


async def _ask(needs: Sequence[Requirement], start: Start, deadline_s: float) -> list[Look]:
    deadline = asyncio.get_running_loop().time() + deadline_s
    looks: dict[int, Look] = {}
    stages: dict[int, str] = {}
    _undead[:] = [child for child in _undead if not child.reaped()]
    if len(_undead) >= MAX_UNDEAD:
        why = f"{MAX_UNDEAD} children that looked before hang and have not died yet"
        return [Look(need, Result.COULD_NOT_LOOK, why, Reason.TIMEOUT) for need in needs]
    try:
        child = Child(python_argv(worker.__file__, worker.source_root()), {"PATH": os.defpath, "LC_ALL": "C"})
    except OSError as problem:
        why = f"the child that looks cannot be started: {problem}"
        return [Look(need, Result.COULD_NOT_LOOK, why, Reason.SAMPLING_GAP) for need in needs]
    why, reason = f"no answer within {deadline_s:g} s", Reason.TIMEOUT
    try:
        await child.next_line(deadline)
        place = {"env": dict(start.env), "cwd": start.cwd, "program": start.program, "scratch": start.scratch}
        async with asyncio.timeout_at(deadline):
            await child.ask({"needs": [need.canonical for need in needs], "place": place})
        while len(looks) < len(needs):
            line = await child.next_line(deadline)
            number = int(line["n"])
            if "look" in line:
                looks[number] = _read(needs[number], line["look"])
            else:
                stages[number] = str(line["at"])
    except TimeoutError:
        pass
    except (ChildGone, KeyError, ValueError, IndexError) as problem:
        why, reason = f"the child that looks gave up: {problem}", Reason.SAMPLING_GAP
    finally:
        await _leave(child)
    return [looks.get(n) or _unanswered(need, why, reason, stages.get(n, "")) for n, need in enumerate(needs)]


def _unanswered(need: Requirement, why: str, reason: Reason, stage: str) -> Look:
    return Look(need, Result.COULD_NOT_LOOK, f"{why}; last begun: {stage}" if stage else why, reason)


def _read(need: Requirement, body: Mapping[str, Any]) -> Look:
    more = {name: str(body.get(name, "")) for name in ("reason", "path", "version")}
    return Look(need, Result(body["result"]), str(body["words"]), **more)


async def _leave(child: Child) -> None:
    """Ends the child with all it started, and waits for none of it: what is stuck in the kernel dies when it can."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # not collected yet, so the number is still its own
    child.abandon()
    if not child.reaped():
        _undead.append(child)
