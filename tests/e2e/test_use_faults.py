"""NVML that hangs, dies, lies, loses a card, comes back, or does not fit its driver: what the verdicts say then.

Nothing else suffers. All is real but the faults, which NVML's C library acts out from its scenario.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import House, _house, until
from tests.e2e.served import Served
from tests.e2e.watching import (
    GPU_PROGRAM,
    becomes,
    device,
    events,
    label,
    pid_of,
    samples_of,
    scenario,
    start,
    start_ticks,
    verify,
    why,
)

#: The agent sends a beat every 2 s; whatever NVML does, the controller must hear it. It gives an agent 15 s.
LONGEST_SILENCE_S = 6.0


class World:
    """Four cards: a job that worked on the first and holds it, one idle on each of the next two, the last one free."""

    def __init__(self, served: Served) -> None:
        self.served, self.house = served, served.house
        served.start_agent()
        until(lambda: self.states().count("ready") == 4, "four cards are ready", 60)
        for card in (0, 1, 2):
            scenario(self.house).set(card, "memory_used_mb", 0)
        self.used = self._job(0, *GPU_PROGRAM, "--seconds", "3000")
        self.idle = self._job(1, "sleep", "3000")
        self.other = self._job(2, "sleep", "3000")
        self.pids = {job: pid_of(self.house, job) for job in self.jobs}
        self.ticks = {pid: start_ticks(pid) for pid in self.pids.values()}

    @property
    def jobs(self) -> tuple[str, str, str]:
        return self.used, self.idle, self.other

    def _job(self, card: int, *words: str) -> str:
        return start(self.house, "-d", self.house.gpu(card), "--", *words)

    def states(self) -> list[str]:
        return [d["state"] for d in self.house.json("devices")["devices"] if d["simulated"]]

    def settled(self) -> None:
        """The usual state: the first used and looked at, the two others conclusively without a context."""
        becomes(self.house, self.used, "used", 120)
        until(lambda: device(self.house, self.used)["blind_since"] is None, "the used one is seen again", 120)
        becomes(self.house, self.idle, "no_context", 120)
        becomes(self.house, self.other, "no_context", 120)

    def unharmed(self) -> None:
        """The host was never lost, its agent was heard on time, and the jobs are the same processes."""
        assert not events(self.house, "contact_lost")
        assert all(d["contact"] for d in self.house.json("devices")["devices"])
        for pid, ticks in self.ticks.items():
            assert start_ticks(pid) == ticks
        assert max(self.served.gaps) < LONGEST_SILENCE_S


@pytest.fixture(scope="module")
def world(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    for house in _house(library):
        served = Served(house, "4xH100", tmp_path_factory.mktemp("faults") / "claims")
        try:
            yield World(served)
        finally:
            served.close()


FAULTS = {
    "hang": "timeout",
    "abort": "sampling_gap",
    "segv": "sampling_gap",
    "GPU_IS_LOST": "gpu_lost",
    "garbage": "out_of_range",
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", FAULTS)
def test_a_card_that_fails_is_unknown_and_the_others_are_not(world: World, how: str) -> None:
    house = world.house
    world.settled()
    before = len(changes(house, world.other))
    first = device(house, world.used)["first_work_at"]
    for card in (0, 1):
        scenario(house).fault(card, "nvmlDevice*", how)
    began = time.monotonic()
    try:
        until(lambda: label(house, world.idle) == "unknown", "the idle one is unknown", 60)
        until(lambda: why(house, world.idle) == FAULTS[how], f"it says {FAULTS[how]}", 60)
        if how != "garbage":
            # What garbage says of a list is a pid that nobody has: the list answered, so the card is not dark.
            until(lambda: device(house, world.used)["blind_since"] is not None, "the used one is dark", 60)
        # What was seen stays seen, and says since when it is not known.
        seen = verify(house, world.used)
        assert (seen["exit"], seen["use"]["label"]) == (0, "used")
        assert seen["use"]["devices"][0]["first_work_at"] == first
        if how != "garbage":
            assert "; not known since " in seen["use"]["words"]
            assert FAULTS[how] in seen["use"]["words"]
        assert "earlier: no context at any of" in device(house, world.idle)["words"]
        # The others: still conclusive, at every instant since.
        assert label(house, world.other) == "no_context"
        assert len(changes(house, world.other)) == before
        assert world.states()[3] == "ready"
        assert house.rc("verify", world.idle).returncode == 2
    finally:
        for card in (0, 1):
            scenario(house).clear_faults(card)
    world.settled()  # an NVML that comes back
    assert len(changes(house, world.other)) == before
    gaps = _gaps(samples_of(house, world.other), since=began)
    print(f"{how}: longest between frames {max(world.served.gaps):.2f} s, between samples {max(gaps):.2f} s")
    assert max(gaps) < 15.0, "a window of the healthy card would have begun anew"
    world.unharmed()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("how", "reason"), [("hang", "timeout"), ("abort", "sampling_gap"), ("segv", "sampling_gap")])
def test_a_library_that_fails_as_a_whole_leaves_everything_unknown_and_comes_back(
    world: World, how: str, reason: str
) -> None:
    house = world.house
    world.settled()
    scenario(house).fault(None, "nvml*", how)
    try:
        for job in (world.idle, world.other):
            becomes(house, job, "unknown", 90)
            until(partial(is_why, house, job, reason), f"{job}: {reason}", 90)
        until(lambda: "ready" not in world.states(), "no card is shown free", 60)
        assert label(house, world.used) == "used"
        world.unharmed()
    finally:
        scenario(house).clear_faults(None)
    world.settled()
    until(lambda: world.states()[3] == "ready", "the free card is free again", 120)
    world.unharmed()
    print(f"library {how}: longest between frames {max(world.served.gaps):.2f} s")


@pytest.mark.timeout(300)
def test_a_library_that_does_not_fit_its_driver_at_the_start_frees_nothing_and_touches_no_job(world: World) -> None:
    """A driver was upgraded under a running host: the library cannot be initialised when the next agent starts."""
    house = world.house
    world.settled()
    warned = len(events(house, "use_warned"))
    world.served.kill_agent()
    scenario(house).fault(None, "nvmlInit", "LIB_RM_VERSION_MISMATCH")
    try:
        world.served.start_agent()
        until(lambda: "ready" not in world.states(), "no card is shown free", 60)
        for job in (world.idle, world.other):
            until(partial(is_why, house, job, "version_mismatch"), f"{job} says why", 60)
            assert label(house, job) == "unknown"
        until(lambda: device(house, world.used)["blind_since"] is not None, "the used one is dark", 60)
        assert "version_mismatch" in verify(house, world.used)["use"]["words"]
        assert label(house, world.used) == "used"
        assert house.rc("run", "-d", house.gpu(3), "--no-wait", "--", "true").returncode == 75
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert "ready" not in world.states()
        for pid, ticks in world.ticks.items():
            assert start_ticks(pid) == ticks
        assert {house.json("describe", job)["state"] for job in world.jobs} == {"running"}
    finally:
        scenario(house).clear_faults(None)
    world.settled()
    until(lambda: world.states()[3] == "ready", "the free card is free again", 120)
    assert len(events(house, "use_warned")) == warned, "nothing is said twice"


def is_why(house: House, job: str, reason: str) -> bool:
    """Whether a job is unknown for this reason."""
    return why(house, job) == reason


def changes(house: House, job: str) -> list[tuple[str, str]]:
    """The changes of a job's verdict, from the feed."""
    return [(e["before"], e["after"]) for e in events(house, "use_judged", job) if e["before"] != e["after"]]


def _gaps(samples: list[dict[str, Any]], since: float) -> list[float]:
    times = [sample["at"] for sample in samples if sample["at"] >= since]
    return [later - earlier for earlier, later in itertools.pairwise(times)]
