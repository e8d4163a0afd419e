"""The preflight: a job's requirements, asserted on its host before its command starts. One not met: nothing is run.

What was found is written into the attempt's folder, so that it can be told with the end of the job however many agents
there were in between, and it is part of the outcome of one that was not begun. A fresh agent looks again: what was
there an hour ago says nothing of now.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.agent import records as r
from tenure.domain.instructions import Grant
from tenure.domain.job import Ending, Outcome
from tenure.domain.label import printable
from tenure.domain.reading import Reason, Scope, Unavailable
from tenure.domain.requirement import Requirement, RequirementError, Result, parse
from tenure.durable import write_atomic
from tenure.probes import preflight

if TYPE_CHECKING:
    from tenure.agent.shell import Shell

log = logging.getLogger("tenure.agent.preflight")

FILE = "requirements.json"
#: How often it is looked whether the attempt is to be stopped meanwhile.
STOP_EVERY_S = 0.05
_NAMED = 8


async def check(shell: Shell, attempt: r.Attempt, folder: Path) -> Outcome | None:
    """Looks at every requirement of an attempt whose folder is ready. An outcome: at least one is not met.

    None where all are met, and where the attempt is to be stopped meanwhile: the looking ends at once then.
    """
    assert attempt.spec is not None
    looking = asyncio.create_task(_look(shell, attempt, folder), name=f"preflight {attempt.job}#{attempt.attempt}")
    try:
        while not (await asyncio.wait([looking], timeout=STOP_EVERY_S))[0]:
            now = shell.state.attempts.get(attempt.key)
            if now is None or now.stop is not None:
                return None
        rows = looking.result()
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    if all(row["result"] == Result.PRESENT for row in rows):
        await asyncio.to_thread(write_atomic, folder / FILE, json.dumps(rows).encode())
        return None
    outcome = Outcome(Ending.REQUIREMENT_NOT_MET, detail=detail(rows), stats={"requirements": rows})
    log.info("%s#%d: %s", *attempt.key, outcome.detail)
    return outcome


async def _look(shell: Shell, attempt: r.Attempt, folder: Path) -> list[dict[str, str]]:
    assert attempt.spec is not None
    needs: list[Requirement] = []
    strange: dict[str, str] = {}
    for text in attempt.spec.needs:
        try:
            needs.append(parse(text))
        except RequirementError as error:  # a newer controller knows more kinds
            strange[text] = str(error)
    started = json.loads(await asyncio.to_thread((folder / "spec.json").read_bytes))
    start = preflight.Start(started["env"], started["cwd"], started["argv"][0], started["env"]["RC_SCRATCH"])
    looks = await preflight.look(needs, start, [_leased(shell, grant) for grant in attempt.grants])
    rows = {look.need.canonical: look.to() for look in looks}
    return [rows[text] if text in rows else _strange(text, strange) for text in attempt.spec.needs]


def _strange(text: str, why: Mapping[str, str]) -> dict[str, str]:
    words = f"this agent cannot read it: {why.get(text, 'it is not in its normal spelling')}"
    body = {"kind": "", "text": text, "result": str(Result.COULD_NOT_LOOK), "words": words}
    return {**body, "reason": str(Reason.NOT_SUPPORTED)}


def _leased(shell: Shell, grant: Grant) -> preflight.LeasedDevice:
    device = shell.devices.by_uuid.get(grant.uuid)
    if device is None:
        none = Unavailable(Reason.GPU_LOST, 0.0, "discovery", Scope.DEVICE, "this agent has not found the device")
        return preflight.LeasedDevice(grant.device, none, none)
    if device.found.kind == "cpu":
        none = Unavailable(Reason.NOT_SUPPORTED, 0.0, "discovery", Scope.DEVICE, "a CPU has none")
        return preflight.LeasedDevice(grant.device, none, none)
    return preflight.LeasedDevice(grant.device, device.found.driver, device.found.capability)


def detail(rows: Sequence[Mapping[str, str]]) -> str:
    """Which are not met, each by name, then that nothing was run."""
    failing = [
        f"{printable(row['text'], 80)} {_SAID[Result(row['result'])]}"
        for row in rows
        if row["result"] != Result.PRESENT
    ]
    more = [f"{len(failing) - _NAMED} more"] if len(failing) > _NAMED else []
    return f"{', '.join(failing[:_NAMED] + more)}; nothing was run"


_SAID = {Result.ABSENT: "absent", Result.COULD_NOT_LOOK: "could not be looked at"}


class Told:
    """The companion that hands over what the preflight found, with the end of the job."""

    def __init__(self, folder: Path) -> None:
        self._rows: list[Any] | None = None
        try:
            self._rows = json.loads((folder / FILE).read_bytes())
        except FileNotFoundError:
            return  # an older agent began it
        except (OSError, ValueError) as error:
            log.error("%s cannot be read: %s", folder / FILE, error)

    async def run(self) -> None:
        """There is nothing to watch."""

    def measured(self) -> Mapping[str, Any]:
        """The list of requirements as it was found before the start."""
        return {} if self._rows is None else {"requirements": self._rows}
