"""The devices of this host as the agent offers them: found, named, claimed, and each with what was last seen on it.

Before a device is offered it is claimed machine-wide (A1). One that somebody else's controller holds is offered all
the same, as ``occupied (controller of USER)``, so that everybody sees it; the claim is tried again from time to time.
A device that was offered once stays until the agent ends: one that the driver no longer lists is unknown, not gone.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from tenure.agent import claims
from tenure.agent.identity import AgentIdentity
from tenure.agent.options import Options
from tenure.domain.device import NOT_LOOKED, Condition
from tenure.domain.reading import Reason, Scope, Unavailable, Value
from tenure.errors import TenureError
from tenure.paths import Layout
from tenure.probes import discovery
from tenure.probes import identity as host_identity
from tenure.probes.nvml import NvmlProbe
from tenure.probes.nvml_parse import unavailable_sample
from tenure.probes.nvml_records import DeviceSample

log = logging.getLogger("tenure.agent.devices")

_STEMS = {"cpu": "cpu"}


@dataclass(slots=True)
class AgentDevice:
    """One device. ``probe`` is the NVML source it is asked of, None where it has none. ``condition`` is what was last
    seen on it; ``held_by`` says who else holds its claim; ``missing`` why the driver does not list it any more."""

    name: str
    found: discovery.FoundDevice
    probe: NvmlProbe | None
    claim: claims.Claim | None = None
    held_by: Condition | None = None
    missing: Condition | None = None
    condition: Condition = NOT_LOOKED
    last: DeviceSample | None = None

    @property
    def uuid(self) -> str:
        return self.found.uuid

    @property
    def by_open_files(self) -> bool:
        """Whether the only witness of who is on it is who has it open: a Jetson without NVML."""
        return self.found.kind == "jetson"

    @property
    def driver(self) -> str:
        """The driver's version as a baseline is kept under it."""
        driver = self.found.driver
        return driver.value if isinstance(driver, Value) else ""

    @property
    def offered(self) -> Condition:
        """The condition it is offered with: what stands in the way before what was seen."""
        return self.held_by or self.missing or self.condition


class Devices:
    """Every device of this host, by UUID, and the NVML sources they come from."""

    def __init__(self, layout: Layout, options: Options, identity: AgentIdentity) -> None:
        self._layout = layout
        self._identity = identity
        self._host = host_identity.read()
        self._claims_dir = Path(options.claims_dir) if options.claims_dir else None
        self.by_uuid: dict[str, AgentDevice] = {}
        self.problems: tuple[str, ...] = ()
        self._failure: Unavailable | None = None
        self.real, self.simulated = _sources(layout, options)
        self.problem = ""
        if options.sim and self.simulated is None and options.library_dir is None:
            self.problem = f"simulated devices were asked for, but {layout.sim_library} is not there"

    def by_name(self, name: str) -> AgentDevice | None:
        """The device of that name."""
        return next((device for device in self.by_uuid.values() if device.name == name), None)

    @property
    def probes(self) -> tuple[NvmlProbe, ...]:
        """Every NVML source."""
        return tuple(probe for probe in (self.real, self.simulated) if probe is not None)

    async def discover(self) -> bool:
        """Looks which devices there are. Gives whether what is offered changed."""
        before = {uuid: (device.name, device.missing) for uuid, device in self.by_uuid.items()}
        real = await discovery.discover([self.real] if self.real is not None else [], self._host)
        found = [(device, self.real) for device in real.devices]
        problems = list(real.problems)
        if self.simulated is not None:
            sim = await discovery.discover([self.simulated], self._host)
            found += [(device, self.simulated) for device in sim.devices if device.simulated]
            problems += sim.problems
        names = self._identity.bind((device.uuid, _STEMS.get(device.kind, "gpu")) for device, _ in found)
        seen = set()
        for told, probe in found:
            seen.add(told.uuid)
            known = self.by_uuid.get(told.uuid)
            if known is None:
                source = None if told.kind in ("cpu", "jetson") else probe
                self.by_uuid[told.uuid] = AgentDevice(names[told.uuid], told, source)
            else:
                if known.missing is not None:  # what was seen before the driver lost it says nothing of now
                    known.condition = Condition("unknown", "not looked at since the driver lists it again")
                known.found, known.missing = told, None
        for uuid, device in self.by_uuid.items():
            if uuid not in seen:
                # Stable words: a report goes out only when something changed.
                why = "the driver cannot be asked" if problems else "the driver no longer lists it"
                device.missing = Condition("unknown", why)
        # No library and no driver is what a host without a GPU looks like: nothing to be put right.
        said = (_problem_words(p) for p in problems if p.failure.reason is not Reason.LIBRARY_MISSING)
        now = tuple(filter(None, (self.problem, *said)))
        if now != self.problems:
            log.warning("discovery: %s", "; ".join(now) or "the problems are gone")
        self.problems = now
        whole = [p.failure for p in problems if p.index is None]
        # Of two sources the one that is simply not there explains less.
        self._failure = min(whole, key=lambda failure: failure.reason is Reason.LIBRARY_MISSING, default=None)
        return before != {uuid: (device.name, device.missing) for uuid, device in self.by_uuid.items()}

    def take_claims(self, leased: Iterable[str] = ()) -> bool:
        """Claims what is not claimed yet. ``leased``: UUIDs whose claim a supervisor of ours may be holding.

        Gives whether what is offered changed. Quick: a few calls a device.
        """
        ours = set(leased)
        changed = False
        for device in self.by_uuid.values():
            if device.claim is not None and device.claim.intact():
                continue
            if device.claim is not None:  # its file was removed: a lock that nobody else comes across guards nothing
                log.warning("%s: %s was removed or replaced; it is claimed again", device.name, device.claim.path)
                device.claim.close()
                device.claim = None
            before = device.held_by
            held = self._take(device)
            device.held_by = None if held is None or device.uuid in ours else held
            changed = changed or before != device.held_by
        return changed

    def _take(self, device: AgentDevice) -> Condition | None:
        """Claims one device; gives who holds it where somebody else does."""
        try:
            taken = claims.claim(self.claim_name(device), str(self._layout.home), folder=self._claims_dir)
        except TenureError as error:
            return Condition("unknown", error.message)
        if isinstance(taken, claims.Claim):
            device.claim = taken
            left = taken.left_behind
            if left is not None and left.controller != str(self._layout.home):
                log.warning("%s: %s never gave it back; contexts it left will show", device.name, left)
            return None
        holder = taken.holder
        if holder is not None and holder.controller == str(self._layout.home):
            return Condition("unknown", "a supervisor of this home still holds its claim")
        words = f"controller of {holder.user}" if holder is not None else "another controller, which does not say whose"
        return Condition("occupied", words, (words,))

    def claim_name(self, device: AgentDevice) -> str:
        """What the claim is taken on. A simulated device exists once for every library that pretends it."""
        if not device.found.simulated or device.probe is None:
            return device.uuid
        place = str(device.probe.library_dir)
        return f"{device.uuid}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"

    async def sample(self, uuids: Iterable[str], *, accounting_pids: Iterable[int] = ()) -> dict[str, DeviceSample]:
        """One sample of each device that an NVML source knows, the sources side by side.

        A device that was not found since this agent started is answered too: unavailable, with what discovery met.
        """
        groups: dict[int, tuple[NvmlProbe, list[str]]] = {}
        wanted = list(uuids)
        for uuid in wanted:
            device = self.by_uuid.get(uuid)
            if device is not None and device.probe is not None:
                groups.setdefault(id(device.probe), (device.probe, []))[1].append(uuid)
        pids = list(accounting_pids)
        answers = await asyncio.gather(
            *(probe.sample(known, clocks=False, accounting_pids=pids) for probe, known in groups.values())
        )
        samples = {uuid: sample for answer in answers for uuid, sample in answer.items()}
        for uuid, sample in samples.items():
            self.by_uuid[uuid].last = sample
        lost = {uuid: unavailable_sample(uuid, self._not_found()) for uuid in wanted if uuid not in self.by_uuid}
        return {**samples, **lost}

    def _not_found(self) -> Unavailable:
        why, at = self._failure, time.monotonic()
        if why is None:
            return Unavailable(Reason.GPU_LOST, at, "nvml", Scope.DEVICE, "the driver does not list it")
        return Unavailable(why.reason, at, why.instrument, Scope.DEVICE, why.detail)

    async def close(self, leased: Container[str] = ()) -> None:
        """Ends the probes' children and gives the claims back; of the ``leased`` only this agent's copy, the
        supervisor keeps its own."""
        await asyncio.gather(*(probe.close() for probe in self.probes))
        for device in self.by_uuid.values():
            if device.claim is not None and device.uuid in leased:
                device.claim.close()
            elif device.claim is not None:
                device.claim.release()
            device.claim = None


def is_news(before: Condition | None, now: Condition) -> bool:
    """Whether a condition says something else than the one told before.

    Words that change while the fact does not (how much memory, which kind of clear) are no news: they would be an
    event every other second.
    """
    return before is None or _fact(before) != _fact(now)


def _fact(seen: Condition) -> tuple[str, tuple[str, ...], str]:
    return (seen.outcome, seen.by, seen.detail if seen.outcome in ("unknown", "fault") else "")


def _problem_words(problem: discovery.Problem) -> str:
    where = f" (card {problem.index})" if problem.index is not None else ""
    return f"{problem.source}{where}: {problem.failure.reason}: {problem.failure.detail}"


def _sources(layout: Layout, options: Options) -> tuple[NvmlProbe | None, NvmlProbe | None]:
    """(the system's library, a simulated one). A library named by the environment stands in for the system's."""
    if options.library_dir is not None:
        return None, NvmlProbe(options.library_dir, simulated=True)
    real = NvmlProbe()
    if options.sim and layout.sim_library.exists():
        return real, NvmlProbe(layout.sim, simulated=True, scenario=layout.sim_scenario)
    return real, None
