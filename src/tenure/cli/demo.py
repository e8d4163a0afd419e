"""``make run``: the main job on this machine, as a user would type it.

Every command is printed before it runs. State lies in a folder of its own, so that nothing of the user's is touched,
and nothing is left running. With ``TENURE_DEMO_SIM=4xH100`` the devices are simulated, and say so in every row.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tenure.cli.text import clean, command_line

WINDOW = "grace=0,span=2,samples=3,period=0.5"
WORK_S = 4
_DEADLINE_S = 120


class Demo:
    """Runs commands under one home and shows them."""

    def __init__(self, home: Path, sim: str) -> None:
        self.home = home
        self.sim = sim
        # A home that the caller uses must not be touched; colours and windows of a person's own do not belong here.
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("TENURE_")} | {"TENURE_HOME": str(home)}

    def rc(self, *words: str, shown: bool = True) -> int:
        """One command as a user types it; gives its exit status. Both streams go one way, so that order is kept."""
        if shown:
            print(f"\n$ rc {command_line(words)}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "tenure.cli.main", *words],
            env=self.env,
            timeout=_DEADLINE_S,
            check=False,
            stdout=None if shown else subprocess.DEVNULL,
            stderr=subprocess.STDOUT if shown else subprocess.DEVNULL,
        )
        return done.returncode

    def ask(self, *words: str) -> dict[str, Any]:
        """The answer to a command as JSON, without showing it."""
        done = subprocess.run(
            [sys.executable, "-m", "tenure.cli.main", *words, "-o", "json"],
            env=self.env,
            timeout=_DEADLINE_S,
            check=True,
            stdout=subprocess.PIPE,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def job(self) -> dict[str, Any]:
        """The record of the newest job."""
        newest: dict[str, Any] = self.ask("jobs", "-n", "1")["jobs"][0]
        return newest


def main() -> int:
    """Exit status 0 where the main job came out as it should."""
    sim = os.environ.get("TENURE_DEMO_SIM", "").strip()
    # One home for each set of devices: what another run simulated would stand here as cards that are gone.
    name = "demo-" + re.sub(r"[^A-Za-z0-9]+", "-", sim) if sim else "demo"
    demo = Demo(Path.cwd() / ".tenure" / name, sim)
    began = time.monotonic()
    print(f"Tenure on this machine. Its state lies in {clean(demo.home)}: TENURE_HOME, for this run alone.", flush=True)
    demo.rc("down", "--leave", shown=False)  # what a demo that was cut short left behind
    try:
        up = demo.rc("up", "--sim", sim) if sim else demo.rc("up")
        if up:
            return up
        code = _simulated(demo) if sim else _real(demo)
    finally:
        for job in _open_jobs(demo):
            demo.rc("kill", "--wait", job, shown=False)
        demo.rc("down")
    _further(demo)
    print(f"\nDone in {time.monotonic() - began:.0f} s; nothing is left running.")
    return code


def _open_jobs(demo: Demo) -> list[str]:
    try:
        return [job["id"] for job in demo.ask("ps")["jobs"]]
    except subprocess.SubprocessError:
        return []  # no controller answers: there is nobody to ask, and rc down says what it finds


def _real(demo: Demo) -> int:
    demo.rc("devices")
    devices = demo.ask("devices")["devices"]
    gpus = [d for d in devices if d["kind"] != "cpu"]
    if not gpus:
        print(
            "\nno GPU was found on this machine: a CPU device is leased instead (SIM=4xH100 make run simulates four)."
        )
    ready = [d for d in gpus or devices if d["free"]]
    if not ready:
        print("\nNo device is free; a job would wait in the queue. The table above says why for each.")
        if any("controller of" in d["words"] for d in devices):
            print("Another Tenure on this machine offers it: rc down under that one's TENURE_HOME gives it back.")
        return 75
    program = [sys.executable, "-m", "tenure.cli.demo_program", "--seconds", str(WORK_S)]
    code = demo.rc("run", "-d", ready[0]["name"], "--window", WINDOW, "--", *program)
    job = demo.job()
    print(f"\nexit status {code}; now the verdict, and what it rests on:")
    demo.rc("verify", job["id"])
    _evidence(demo, job)
    return code


def _simulated(demo: Demo) -> int:
    demo.rc("devices")
    devices = [d for d in demo.ask("devices")["devices"] if d["simulated"]]
    count = str(len(devices))
    ask = ["run", "--select", "simulated=true", "--count", count, "--window", WINDOW, "--"]
    print(f"\nOne program on {count} simulated devices, which uses one of them:")
    demo.rc(*ask, sys.executable, "-m", "tenure.testing.gpu_program", "--seconds", str(WORK_S))
    partly = demo.job()
    demo.rc("verify", partly["id"])
    print(f"\nThe same {count} devices leased for a program that never goes near them:")
    demo.rc(*ask, sys.executable, "-c", f"import time; time.sleep({WORK_S}); print('all done, it says')")
    idle = demo.job()
    demo.rc("verify", idle["id"])
    _evidence(demo, idle)
    wanted = ("used" if count == "1" else "partial", "no_context")
    found = tuple(str((job["use"] or {}).get("verdict")) for job in (partly, idle))
    if found != wanted:
        print(f"\nThe verdicts should have been {' and '.join(wanted)}; they are {' and '.join(found)}.")
        return 1
    return 0


def _evidence(demo: Demo, job: dict[str, Any]) -> None:
    """Where it is kept: the samples of a GPU's use; of any job its output, and its events in the ledger."""
    machines = demo.home / "machines"
    output = next(machines.glob(f"*/controller/output/{job['id']}.{job['attempt']}.bin"), None)
    ledger = next(machines.glob("*/controller/ledger.db"), None)
    print()
    for what, path in (("samples", job["evidence"]), ("output", output), ("events", ledger)):
        if path:
            print(f"evidence, {what}: {clean(path)}")


def _further(demo: Demo) -> None:
    here = Path(sys.executable).parent
    print(
        f"\nTo look further:\n  export TENURE_HOME={clean(demo.home)} PATH={clean(here)}:$PATH\n"
        f"  rc up{f' --sim {clean(demo.sim)}' if demo.sim else ''}; rc jobs; rc describe JOB; rc logs JOB; rc --help"
    )


if __name__ == "__main__":
    sys.exit(main())
