"""A second, naive reading of what units and workers are doing, written from the rules' text and kept apart.

It keeps no state: every question goes through the whole list of events that arrived. It shares the parser's records
with the tracker, and no rule.
"""

from __future__ import annotations

import itertools

from tenure.domain.tracker import UnitEvent

Arrived = list[UnitEvent]
Key = tuple[str, int]

LIVE = ("PREPARING", "PREPARED", "GPU", "FINALISING")
OVER = ("LOST", "FAILED", "DONE")


def keys(arrived: Arrived) -> list[Key]:
    return list(dict.fromkeys((event.unit, event.attempt) for event in arrived))


def of(arrived: Arrived, key: Key) -> Arrived:
    return [event for event in arrived if (event.unit, event.attempt) == key]


def stage(arrived: Arrived, key: Key) -> str:
    """The first end that arrived; without one, the furthest stage."""
    names = [event.stage.name for event in of(arrived, key)]
    ends = [name for name in names if name in OVER]
    return ends[0] if ends else max(names, key=LIVE.index)


def worker(arrived: Arrived, key: Key) -> str | None:
    told = [event.worker for event in of(arrived, key) if event.worker is not None]
    return told[0] if told else None


def picture(arrived: Arrived) -> dict[Key, tuple[str, str | None]]:
    """What there is to change: each attempt's stage, and its holder while it runs."""
    return {
        key: (stage(arrived, key), worker(arrived, key) if stage(arrived, key) in LIVE else None)
        for key in keys(arrived)
    }


def ignored(arrived: Arrived) -> int:
    """Events that changed nothing."""
    pictures = [picture(arrived[:n]) for n in range(len(arrived) + 1)]
    return sum(before == after for before, after in itertools.pairwise(pictures))


def units(arrived: Arrived) -> dict[str, str]:
    shown = {}
    for unit in dict.fromkeys(event.unit for event in arrived):
        stages = {key[1]: stage(arrived, key) for key in keys(arrived) if key[0] == unit}
        live = [number for number in stages if stages[number] in LIVE]
        if "DONE" in stages.values():
            shown[unit] = "done"
        elif live:
            shown[unit] = stages[max(live)].lower()
        else:
            shown[unit] = "failed" if stages[max(stages)] == "FAILED" else "pending"
    return shown


def workers(arrived: Arrived, registered: set[str]) -> dict[str, list[str]]:
    """Each worker's running attempts, the one that it told of last first."""
    everyone = registered | {event.worker for event in arrived if event.worker is not None}
    held: dict[str, list[str]] = {name: [] for name in everyone}
    for event in reversed(arrived):
        key = (event.unit, event.attempt)
        first = next((one for one in of(arrived, key) if one.worker is not None), None)
        if event is first and stage(arrived, key) in LIVE:
            held[str(event.worker)].append(f"{key[0]}#{key[1]}")
    return held


def reported(arrived: Arrived, registered: set[str] | None) -> set[str]:
    told = set()
    for event in arrived:
        if registered is not None and event.worker is not None and event.worker not in registered:
            told.add(f"unregistered worker {event.worker}")
    for key in keys(arrived):
        named = [event.worker for event in of(arrived, key) if event.worker is not None]
        told |= {f"{key[0]}#{key[1]} is claimed by {named[0]} and {other}" for other in named if other != named[0]}
        if stage(arrived, key) in LIVE and not named:
            told.add(f"{key[0]}#{key[1]} runs and no worker is known to hold it")
    for unit in {key[0] for key in keys(arrived)}:
        mine = sorted(key[1] for key in keys(arrived) if key[0] == unit)
        live = [number for number in mine if stage(arrived, (unit, number)) in LIVE]
        if len(live) > 1:
            told.add(f"{unit} runs in attempts {', '.join(map(str, live))} at once")
        if live and any(stage(arrived, (unit, number)) == "DONE" for number in mine):
            told.add(f"{unit} is done and still runs in attempt {live[0]}")
    return told
