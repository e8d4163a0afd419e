"""kill -9 of the controller, the agent, or both, again and again, while jobs start, run and end.

Each job numbers the lines it prints. In the end every submission is one job that was started once, whose process went
on under the pid it had, whose exit code is on record, and whose output the API serves without a gap or a repetition;
and no device ever had two of them. ``TENURE_CRASHES`` sets another number of kills than a hundred.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.kill import outside
from tests.kill.harness import PYTHON, Api, ApiError, Home, homes

CRASHES = int(os.environ.get("TENURE_CRASHES", "100"))
SEED = os.environ.get("TENURE_SEED", "1")
DEVICES = ("gpu0", "gpu1")
WAITING = 2  # jobs queued behind the one that runs

#: Says that it began, who it is, numbers its lines, says that it is about to end, and ends with its own code.
COUNTER = """
import os, sys, time
lines, code, notes, job = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], os.environ["RC_JOB_ID"]
def note(kind):
    fd = os.open(f"{notes}/{job}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"%d\\n" % os.getpid())
    os.close(fd)
note("began")
os.write(1, b"pid %d\\n" % os.getpid())
for number in range(lines):
    os.write(1, b"line %d\\n" % number)
    time.sleep(0.003)
note("ends")
sys.exit(code)
"""


class Submitter:
    """Keeps some jobs queued on one device, whatever happens to the controller: the same key until it is answered."""

    def __init__(self, home: Home, device: str, notes: Path, mark: dict[str, str], seed: str) -> None:
        self.home, self.device, self.notes, self.mark = home, device, notes, mark
        self.draw = random.Random(f"{seed} {device}")
        self.jobs: dict[str, tuple[int, int]] = {}  # id -> (lines, code)
        self.asked_at = 0.0
        self.repeated = 0
        self.failure: BaseException | None = None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self.over.is_set():
                open_jobs = [job for job in self.jobs if not (self.notes / f"{job}.ends").exists()]
                if len(open_jobs) <= WAITING:
                    self._submit()
                else:
                    self.over.wait(0.02)
        except BaseException as error:
            self.failure = error

    def _submit(self) -> None:
        lines, code = self.draw.choice((5, 30, 200, 800)), self.draw.randrange(100)
        key = f"{self.device} {len(self.jobs)}"
        body: dict[str, Any] = {
            "argv": [*PYTHON, COUNTER, str(lines), str(code), str(self.notes)],
            "device": f"h:{self.device}",
            "env": self.mark,
            "key": key,
        }
        end = time.monotonic() + 90
        while True:
            self.asked_at = time.monotonic()
            api = Api(self.home.layout.ctl_sock, 10.0)
            try:
                job = str(api.ask("POST", "/v1/jobs", body)["job"]["id"])
            except (OSError, http.client.HTTPException):
                assert time.monotonic() < end, f"nobody took {key} for 90 s\n{self.home.logs()}"
                self.repeated += 1
                time.sleep(0.02)
                continue
            finally:
                api.close()
            assert job not in self.jobs
            self.jobs[job] = (lines, code)
            return


def _instant(draw: random.Random, submitters: list[Submitter], notes: Path) -> str:
    """Waits for the next instant to kill at: any, just after a submission, or around the end of a job."""
    kind = draw.choice(("any", "any", "start", "end"))
    end = time.monotonic() + 1.5
    if kind == "start":
        asked = max(s.asked_at for s in submitters)
        while time.monotonic() < end and max(s.asked_at for s in submitters) == asked:
            time.sleep(0.001)
        time.sleep(draw.random() * 0.08)
    elif kind == "end":
        before = len(list(notes.glob("*.ends")))
        while time.monotonic() < end and len(list(notes.glob("*.ends"))) == before:
            time.sleep(0.001)
        time.sleep(draw.random() * 0.06)
    else:
        time.sleep(draw.random() * 0.8)
    return kind


def _answering(home: Home, timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException, ApiError):
            if any(agent["contact"] for agent in home.ask("GET", "/v1/status")["agents"]):
                return True
        time.sleep(0.02)
    return False


def _kill_again_and_again(
    home: Home, submitters: list[Submitter], notes: Path, told: Counter[str], seed: str, crashes: int
) -> None:
    draw = random.Random(seed)
    for number in range(crashes):
        # Mostly with everything up; now and then while it is still coming up.
        _answering(home, 20.0 if draw.random() < 0.8 else draw.random())
        kind = _instant(draw, submitters, notes)
        who = draw.choice((("controller",), ("agent",), ("controller", "agent")))
        home.kill(*who)
        told[f"{' and '.join(who)}, {kind}"] += 1
        if "controller" in who and (number % 20 != 7 or len(who) == 2):  # else the agent has to bring it back
            time.sleep(draw.choice((0.0, 0.3)) * draw.random())
            home.start()
        failures = [s.failure for s in submitters if s.failure is not None]
        assert not failures, failures


def _events(home: Home) -> list[tuple[str, dict[str, Any]]]:
    with contextlib.closing(sqlite3.connect(f"file:{home.layout.ledger_db}?mode=ro", uri=True)) as ledger:
        return [(kind, json.loads(body)) for kind, body in ledger.execute("select kind, body from events order by seq")]


def _campaign(root: Path, seed: str, crashes: int, make: Callable[..., Home]) -> tuple[str, list[str]]:
    """Kills in one home; the figures, and what is wrong with what is left."""
    notes, told, began = root / f"notes {seed}", Counter[str](), time.monotonic()
    notes.mkdir()
    home = make(f"home{seed}", sim=f"{len(DEVICES)}xH100")
    home.up(len(DEVICES) + 1)
    with outside.observing(home, scan_s=0.01, ask_s=0.05) as seen:
        submitters = [Submitter(home, device, notes, seen.environment, seed) for device in DEVICES]
        for submitter in submitters:
            submitter.thread.start()
        try:
            _kill_again_and_again(home, submitters, notes, told, seed, crashes)
        finally:
            for submitter in submitters:
                submitter.over.set()
            if home.controller_pid is None:
                home.start()
            for submitter in submitters:
                submitter.thread.join()
        wanted = {job: facts for submitter in submitters for job, facts in submitter.jobs.items()}
        records = {job: _ended_at_last(home, job) for job in wanted}
    outputs = {job: home.output(job) for job in wanted}
    known = home.ask("GET", "/v1/jobs?limit=1000")["jobs"]
    events = _events(home)
    early, margins = outside.released_early(seen, home)
    for device in DEVICES:
        home.device(device, "ready")
    kills = "; ".join(f"{count} x {what}" for what, count in sorted(told.items()))
    figures = (
        f"seed {seed}: {sum(told.values())} kills in {time.monotonic() - began:.0f} s ({kills})\n"
        f"  {len(wanted)} jobs, {sum(s.repeated for s in submitters)} submissions repeated,"
        f" {sum(map(len, outputs.values()))} bytes of output\n  {outside.summary(seen, margins)}"
    )
    found = [problem for job in wanted for problem in _problems(job, wanted[job], records[job], outputs[job], notes)]
    found += [*outside.overlapping(seen), *outside.shown_free(seen), *early, *_ledger_problems(events, set(wanted))]
    found += [f"{s.device}: {s.failure!r}" for s in submitters if s.failure is not None]
    if {job["id"] for job in known} != set(wanted):
        found.append(f"{len(wanted)} submissions became {len(known)} jobs")
    return figures, found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_jobs_outlive_controller_and_agent(tmp_path: Path) -> None:
    # Two homes side by side: most of the time of a kill is the start of what was killed, on one core.
    with homes() as make, ThreadPoolExecutor(2) as pool:
        seeds = (SEED, f"{SEED}b")
        campaigns = [pool.submit(_campaign, tmp_path, seed, -(-CRASHES // len(seeds)), make) for seed in seeds]
        results = [campaign.result() for campaign in campaigns]
    print("", *(figures for figures, _ in results), sep="\n")
    found = [problem for _, problems in results for problem in problems]
    assert not found, f"{len(found)}: {found[:6]}"


def _ended_at_last(home: Home, job: str) -> dict[str, Any]:
    """The end of a job, although the controller may still be coming back."""

    def over() -> dict[str, Any] | None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            record = home.job(job)
            return record if record["state"] == "ended" else None
        return None

    return home.wait(over, f"the end of {job}", 90.0)


def _problems(job: str, wanted: tuple[int, int], record: dict[str, Any], output: bytes, notes: Path) -> list[str]:
    """What is wrong with one job, judged by what its process itself wrote down."""
    lines, code = wanted
    began = (notes / f"{job}.began").read_text().split() if (notes / f"{job}.began").exists() else []
    found = []
    if len(began) != 1:
        found.append(f"{job} was started {len(began)} times")
    outcome = record["outcome"]
    if (outcome["ending"], record["exit_status"]) != ("exited", code):
        found.append(f"{job} ended as {record['words']!r}, not with code {code}")
    if began and str(record["pid"]) != began[0]:
        found.append(f"{job} is on record as pid {record['pid']}, and was {began}")
    right = b"".join([b"pid %s\n" % b"".join(w.encode() for w in began[:1]), *(b"line %d\n" % n for n in range(lines))])
    if output != right:
        at = next(
            (n for n, (a, b) in enumerate(zip(output, right, strict=False)) if a != b), min(len(output), len(right))
        )
        found.append(f"output of {job}: {len(output)} bytes, not {len(right)}; differs at {at}: {output[at:][:40]!r}")
    if record["output_bytes"] != len(right):
        found.append(f"{job} is on record with {record['output_bytes']} bytes of output, not {len(right)}")
    return found


def _ledger_problems(events: list[tuple[str, dict[str, Any]]], jobs: set[str]) -> list[str]:
    """Each job ended once; the tokens of a device only grow; no lease is granted over a live one."""
    found = []
    ends = Counter(body["job"] for kind, body in events if kind == "job_ended")
    found += [f"{job} ended {ends[job]} times" for job in jobs if ends[job] != 1]
    live: dict[str, str] = {}
    token: dict[str, int] = {}
    for kind, body in events:
        if kind == "lease_granted":
            for lease, device, number in body["leases"]:
                if device in live:
                    found.append(f"{lease} was granted over {live[device]}")
                if number <= token.get(device, 0):
                    found.append(f"token {number} of {device} is not above {token[device]}")
                live[device], token[device] = lease, number
        elif kind == "lease_released":
            live.pop(body["device"], None)
    return found
