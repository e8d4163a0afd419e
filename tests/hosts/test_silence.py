"""Hosts that fall silent in every way, at the same time and for longer than every deadline, and come back.

``tests/model/test_silence.py`` tells the same stories in one thread; here networks, kernels and processes are real, and
so are the 15 s after which a silent host is unknown and the 20 s after which an agent gives up a silent link. All
stories run beside each other, because each is mostly waiting.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.hosts.fleet import Fleet, Story, fleet, frozen
from tests.hosts.net import Cable, network

from tenure.agent.connection import SILENCE_S
from tenure.domain.contact import SILENT_S

pytestmark = [
    pytest.mark.root(reason="hosts are network namespaces, and directions between them are taken away"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

#: Longer than the controller waits for an agent, and than an agent's pings wait for the controller.
GONE_S = max(SILENT_S, SILENCE_S) + 11.0
CUTS: dict[str, tuple[str, ...]] = {"up": ("up",), "down": ("down",), "both": ("up", "down"), "refused": ("up", "down")}


@dataclass
class Seen:
    """What was shown of one host's device: (seconds since the silence began, state, words, job, its waiting job)."""

    story: Story
    waiting: str
    shown: list[tuple[float, str, str, str | None, str]] = field(default_factory=list)


@dataclass
class Stories:
    """Everything that happened. ``of`` is by host; ``alone`` are the jobs of the fleet whose controller was killed, and
    of the one whose controller was stopped."""

    of: dict[str, Seen]
    alone: dict[str, tuple[Fleet, Story, int]]
    fleet: Fleet


@pytest.fixture(scope="module")
def stories(library: Path) -> Iterator[Stories]:
    with ExitStack() as stack:
        net = stack.enter_context(network())
        main = stack.enter_context(fleet(library, at=f"{net.address}:0"))
        cables: dict[str, Cable] = {name: net.host() for name in CUTS}
        for name, cable in cables.items():
            main.joined(name, *cable.prefix)
        for name in ("agent", "supervisor"):
            main.joined(name)
        seen = {host.name: Seen(main.story(host), "") for host in main.hosts}
        for name, each in seen.items():
            each.waiting = main.controller.submit(f"{name}:gpu0", "/bin/true")
        alone = {}
        for name in ("killed", "stopped"):
            other = stack.enter_context(fleet(library))
            alone[name] = (
                other,
                other.story(other.joined("box")),
                other.controller.ask("GET", "/v1/status")["ledger_version"],
            )
        _silence(main, cables, seen, alone)
        yield Stories(seen, alone, main)


def _silence(
    main: Fleet, cables: dict[str, Cable], seen: dict[str, Seen], alone: dict[str, tuple[Fleet, Story, int]]
) -> None:
    by_name = {host.name: host for host in main.hosts}
    agent = by_name["agent"].process
    stopped = alone["stopped"][0].controller.process
    assert agent is not None
    assert stopped is not None
    with frozen(agent.pid, by_name["supervisor"].supervisor(seen["supervisor"].story.id), stopped.pid):
        began = time.monotonic()
        alone["killed"][0].controller.kill(signal.SIGKILL)
        for name, ways in CUTS.items():
            cables[name].cut(*ways, kind="unreachable" if name == "refused" else "blackhole")  # type: ignore[arg-type]
        cut_for = time.monotonic() - began
        assert cut_for < SILENT_S / 2, "too slow a machine to say when it began"
        while (now := time.monotonic() - began) < GONE_S + cut_for:
            devices = main.controller.devices()
            for name, each in seen.items():
                device = devices[f"{name}:gpu0"]
                state = main.controller.record(each.waiting)["state"]
                each.shown.append((now, device["state"], device["words"], device["job"], state))
            for story in (*(each.story for each in seen.values()), *(story for _, story, _ in alone.values())):
                assert story.alive()
            time.sleep(0.2)
        for cable in cables.values():
            assert not all(cable.passes(way) for way in ("up", "down")), "the cut did not last"
    for cable in cables.values():
        cable.heal()
    alone["killed"][0].controller.up()


@pytest.mark.parametrize("name", ["up", "down", "both", "refused", "agent"])
def test_a_silent_host_is_unknown_with_its_age_and_granted_to_nobody(stories: Stories, name: str) -> None:
    seen = stories.of[name]
    states = [state for _, state, *_ in seen.shown]
    assert set(states) == {"busy", "unknown"}, set(states)
    first = states.index("unknown")
    assert set(states[first:]) == {"unknown"}, "it was shown otherwise while nobody could know"
    for since, state, words, job, waiting in seen.shown:
        assert (job, waiting) == (seen.story.id, "queued"), (since, state, words)
        if state == "unknown":
            told = re.fullmatch(r"unknown \(no contact (\d+)s\)", words)
            assert told, words
            # Since it was last heard: which is up to a beat, and a busy machine, before or after the cut itself.
            assert since - 4.0 <= int(told[1]) <= since + 3.0, (since, words)
    if name == "down":
        return  # the agent hangs up first, when nothing answers it
    assert SILENT_S - 4.0 < seen.shown[first][0] < SILENT_S + 8.0


@pytest.mark.parametrize("name", [*CUTS, "agent", "supervisor"])
def test_the_job_of_a_silent_host_is_whole_when_it_is_back(stories: Stories, name: str) -> None:
    seen = stories.of[name]
    seen.story.holds()
    assert stories.fleet.controller.ended(seen.waiting)["exit_status"] == 0
    stories.fleet.controller.reaches(f"{name}:gpu0", "ready")


def test_a_stopped_supervisor_keeps_its_device_busy(stories: Stories) -> None:
    assert {state for _, state, *_ in stories.of["supervisor"].shown} == {"busy"}


@pytest.mark.parametrize("name", ["killed", "stopped"])
def test_a_controller_that_was_gone_counts_it_against_nobody(stories: Stories, name: str) -> None:
    other, story, before = stories.alone[name]
    other.controller.reaches("box:gpu0", "busy")
    story.holds()
    other.controller.reaches("box:gpu0", "ready")
    kinds = other.controller.kinds(before)
    assert "job_ended" in kinds
    assert "device_quarantined" not in kinds, kinds
    # One that was killed knows nobody when it begins, and says so; one that was stopped never heard that anybody went.
    assert (name == "killed") or "contact_lost" not in kinds, kinds
