"""Starts the observer, and judges what it saw: was a device ever called free while its last job was still alive?"""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kill.harness import Home

PROGRAM = Path(__file__).with_name("observer.py")


@dataclass
class Observer:
    """What was seen. ``jobs``: id -> device, first and last sighting of a living member; filled at the end."""

    mark: str
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    ready: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    scans: int = 0
    scan_ms: float = 0.0
    longest_ms: float = 0.0
    answers: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """What marks a job for this observer."""
        name, value = self.mark.split("=")
        return {name: value}


@contextlib.contextmanager
def observing(home: Home, *, scan_s: float = 0.001, ask_s: float = 0.0) -> Iterator[Observer]:
    """Observes one home while inside; ``scan_s`` and ``ask_s`` are the least times between two looks."""
    seen = Observer(f"TENURE_KILL_MARK={uuid.uuid4().hex}")
    command = (sys.executable, "-I", "-S", str(PROGRAM))
    parts = [
        subprocess.Popen([*command, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}, text=True)
        for words in (("scan", seen.mark, str(scan_s)), ("poll", str(home.layout.ctl_sock), str(ask_s)))
    ]
    try:
        for part in parts:
            assert part.stdout is not None
            assert part.stdout.readline() == "on\n"
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, parts[0].pid, -10)  # its every millisecond comes first
        yield seen
        scanned, asked = (json.loads(part.communicate(timeout=60)[0]) for part in parts)
    finally:
        for part in parts:
            part.kill()
            part.wait()
    seen.jobs, seen.scans, seen.longest_ms = scanned["jobs"], scanned["scans"], 1000 * scanned["longest_s"]
    seen.scan_ms = 1000 * scanned["span_s"] / scanned["scans"]
    seen.ready = {name: [(begin, end) for begin, end in spans] for name, spans in asked["ready"].items()}
    seen.answers = asked["answers"]


def shown_free(seen: Observer) -> list[str]:
    """Answers that called a device ready between two sightings of living members of one job on it.

    A member was alive before the request left and after the reply came: whichever instant the answer speaks of, the
    device was in use at it by a lease that had begun before and was over by the answer's own word.
    """
    found = []
    for job, facts in seen.jobs.items():
        answers = seen.ready.get(facts["device"], [])
        at = bisect.bisect_right(answers, (facts["first"], float("inf")))
        if at < len(answers) and answers[at][1] < facts["last"]:
            late = 1000 * (facts["last"] - answers[at][0])
            found.append(f"{facts['device']} was shown ready while members of {job} lived {late:.1f} ms longer")
    return found


def released_early(seen: Observer, home: Home) -> tuple[list[str], list[float]]:
    """Leases whose release was decided before the last sighting of a living member; and all the margins, in ms."""
    released = {}
    with contextlib.closing(sqlite3.connect(f"file:{home.layout.ledger_db}?mode=ro", uri=True)) as ledger:
        job_of = {}
        for at, kind, text in ledger.execute("select at, kind, body from events order by seq"):
            body = json.loads(text)
            if kind == "lease_granted":
                job_of.update({lease: body["job"] for lease, _, _ in body["leases"]})
            elif kind == "lease_released":
                released[job_of[body["lease"]]] = at
    margins = {job: 1000 * (released[job] - seen.jobs[job]["last_wall"]) for job in released.keys() & seen.jobs.keys()}
    found = [f"the lease of {job} was released {-ms:.1f} ms too early" for job, ms in margins.items() if ms < 0]
    return found, list(margins.values())


def overlapping(seen: Observer) -> list[str]:
    """Pairs of jobs of which living members were seen on one device at the same time."""
    found = []
    by_device: dict[str, list[tuple[float, float, str]]] = {}
    for job, facts in seen.jobs.items():
        for device in facts["device"].split(","):
            by_device.setdefault(device, []).append((facts["first"], facts["last"], job))
    for device, spans in by_device.items():
        spans.sort()
        until, holder = 0.0, ""
        for first, last, job in spans:
            if first < until:
                found.append(f"{device}: {job} was alive {1000 * (until - first):.1f} ms beside {holder}")
            until, holder = max((until, holder), (last, job))
    return found


def summary(seen: Observer, margins: list[float]) -> str:
    """The figures, in one line."""
    middle = statistics.median(margins) if margins else float("nan")
    least = min(margins, default=float("nan"))
    pids = sum(len(facts["pids"]) for facts in seen.jobs.values())
    shown = sum(map(len, seen.ready.values()))
    return (
        f"{len(seen.jobs)} jobs with {pids} processes seen in {seen.scans} scans (one every {seen.scan_ms:.2f} ms,"
        f" longest pause {seen.longest_ms:.0f} ms); {seen.answers} answers, {shown} times ready;"
        f" release after the last sighting by {least:.1f} ms at least, {middle:.1f} ms in the middle"
    )
