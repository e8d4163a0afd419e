"""What the tests of the proof of use share: shortened windows, verdicts as a program reads them, the feed of events."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from tests.e2e.conftest import House, until

from tenure.durable import read_frames
from tenure.testing.nvml import Scenario

#: Four looks over two seconds in place of eight over 56, with no grace: printed with every verdict that rests on it.
WINDOW = "grace=0,span=2,samples=4,period=0.5"
GPU_PROGRAM = (sys.executable, "-m", "tenure.testing.gpu_program")
PATIENCE_S = 60.0
#: A device of which nothing was told yet.
NOTHING: dict[str, Any] = {
    "verdict": "none",
    "reasons": [],
    "words": "",
    "life": None,
    "idle_since": None,
    "blind_since": None,
}


def own_claims(house: House, folder: Path) -> None:
    """Claims in a folder of its own: the machine's CPU may be leased by another house that runs beside this one."""
    folder.mkdir()
    house.paths.root.mkdir(parents=True, exist_ok=True)
    (house.paths.root / "embedded.json").write_text(json.dumps({"agent": {"claims_dir": str(folder)}}))


def why(house: House, job: str, number: int = 0) -> str:
    """The first reason why a device of a job is unknown; empty where it is not."""
    return next((str(cause["reason"]) for cause in device(house, job, number)["reasons"]), "")


def scenario(house: House) -> Scenario:
    """What the simulated devices of a house answer from."""
    return Scenario(house.paths.sim_scenario)


def start(house: House, *words: str, window: str = WINDOW) -> str:
    """Submits a job and lets go of it; gives its id."""
    done = house.rc("run", "--detach", "--window", window, *words)
    assert done.returncode == 0, done
    return done.stdout.decode().strip()


def verify(house: House, job: str) -> dict[str, Any]:
    """``rc verify -o json``, with its exit status held against what it says."""
    done = house.rc("verify", job, "-o", "json")
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["exit"] == done.returncode, done
    return told


def label(house: House, job: str) -> str:
    """The job's verdict as printed."""
    use = verify(house, job)["use"]
    return str(use["label"]) if use else "none"


def device(house: House, job: str, number: int = 0) -> dict[str, Any]:
    """The verdict on one device of a job."""
    use = verify(house, job)["use"]
    return (
        dict(use["devices"][number])
        if use
        else {"verdict": "none", "reasons": [], "words": "", "life": None, "idle_since": None}
    )


def becomes(house: House, job: str, wanted: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
    """Waits for a label; gives the whole verdict."""
    until(lambda: label(house, job) == wanted, f"{job} becomes {wanted}", timeout_s)
    return dict(verify(house, job)["use"])


def pid_of(house: House, job: str) -> int:
    """The job's first process."""
    return int(until(lambda: house.json("describe", job)["pid"], f"{job} runs"))


def start_ticks(pid: int) -> int:
    """Field 22 of its stat file: with the pid it names the process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])


def cpu_of_tree(pid: int) -> float:
    """CPU-seconds of a living process and its living children, counted here and not by Tenure."""
    found, fresh = [pid], [pid]
    while fresh:
        files = [file for parent in fresh for file in Path(f"/proc/{parent}/task").glob("*/children")]
        fresh = [int(child) for file in files for child in file.read_text().split()]
        found += fresh
    ticks = 0
    for one in found:
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(") ")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


def events(house: House, kind: str, job: str | None = None) -> list[dict[str, Any]]:
    """The feed's events of a kind (about a job), from the beginning of the ledger to now."""
    last = house.json("status")["ledger_version"]
    found: list[dict[str, Any]] = []
    link = httpx.HTTPTransport(uds=str(house.paths.ctl_sock))
    with (
        httpx.Client(transport=link, base_url="http://tenure", timeout=30) as client,
        client.stream("GET", "/v1/events?after=0") as feed,
    ):
        for line in feed.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                if event.get("kind") == kind and event.get("job", job) == job:
                    found.append(event)
                if event.get("seq", 0) >= last:
                    break
    return found


def samples_of(house: House, job: str) -> list[dict[str, Any]]:
    """Every sample of a job as its log holds them."""
    bodies = [json.loads(frame.payload) for frame in read_frames(house.paths.attempt(job, 1) / "samples.log")]
    return [sample for body in bodies for sample in body.get("samples", ())]


def steadily(true: Callable[[], object], seconds: float) -> None:
    """Holds for so long, looked at again and again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert true()
        time.sleep(0.05)
