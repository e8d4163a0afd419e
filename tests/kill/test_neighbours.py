"""Two controllers on one machine and one GPU between them: it is never leased twice, and the loser says whose it is.

Both homes load one driver (the simulated library in one folder, hence the same UUIDs) and share one folder of claims,
as real homes do. What overlaps is judged by the clock of the jobs themselves.
"""

from __future__ import annotations

import itertools
import os
import pwd
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.kill.harness import PYTHON, Home, homes, members

from tenure.testing.nvml import install

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
#: Where the Python of the tests lies in a folder that others may not enter, as some people's homes are.
MAY_READ = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")

#: Notes when it began and ended on the machine's monotonic clock. Stays for a while; a second one must not meet it.
STAY = """
import os, sys, time
began = time.monotonic()
print("here", flush=True)
time.sleep(float(sys.argv[2]))
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
os.write(fd, f"{began} {time.monotonic()} {os.getuid()} {os.environ['RC_JOB_ID']}\\n".encode())
"""


class Pair:
    """Two homes over one device, and a file in which every job notes its time on it."""

    def __init__(self, make: Callable[..., Home], tmp_path: Path, *, second_user: int | None) -> None:
        driver = tmp_path / "driver"
        self.scenario = install(driver, "1xH100")
        claims = tmp_path / "claims"
        claims.mkdir()
        claims.chmod(0o1777)
        self.notes = tmp_path / "notes"
        self.notes.touch()
        self.notes.chmod(0o666)
        shared = {"claims": claims, "environment": {"TENURE_NVML_LIBRARY_DIR": str(driver)}}
        self.a = make("a", **shared)
        if second_user is None:
            self.b = make("b", **shared)
            self.names = ("root" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name,) * 2
        else:
            self.b = make("b", prefix=_as_nobody(), **shared)
            for path in (self.b.layout.home, *self.b.layout.home.rglob("*")):
                os.chown(path, second_user, second_user)
            for path in (tmp_path, *tmp_path.parents):
                if path.stat().st_uid == os.getuid() and path != Path("/"):
                    path.chmod(path.stat().st_mode | 0o055)
            self.names = ("root", _name(second_user))

    def stay(self, home: Home, seconds: float, **body: Any) -> str:
        """A job that stays on the device for so long."""
        argv = [*PYTHON, STAY, str(self.notes), str(seconds)]
        return str(home.submit(argv, device="h:gpu0", **body)["id"])

    def spans(self) -> list[tuple[float, float, int]]:
        """(begin, end, uid) of every job that ended, by its own word; asserts that no two overlap."""
        lines = [line.split() for line in self.notes.read_text().splitlines()]
        spans = sorted((float(begin), float(end), int(uid)) for begin, end, uid, _ in lines)
        for before, after in itertools.pairwise(spans):
            assert after[0] > before[1], f"two jobs were on one device at once: {before} and {after}"
        return spans


def _as_nobody() -> tuple[str, ...]:
    # Twice: the first is executed while setpriv itself still may read everything.
    again = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import tenure.controller.app'], check=True)"
    look = [sys.executable, "-c", again]
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PATH": os.environ["PATH"]}
    for more in ((), MAY_READ):
        command = [*AS_NOBODY, *more, *look]
        if subprocess.run(command, capture_output=True, check=False, env=env, cwd="/").returncode == 0:
            return (*AS_NOBODY, *more)
    pytest.fail("nobody cannot run the Python of these tests, not even when allowed to read everything")


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _shared_by(second_user: int | None) -> None:
    if second_user is not None and (os.getuid() != 0 or shutil.which("setpriv") is None):
        pytest.skip("needs root: runs a second user's controller, to show that claims hold between users")


both = pytest.mark.parametrize("second_user", [None, NOBODY], ids=["one user, two homes", "two users"])


@pytest.mark.slow
@pytest.mark.timeout(300)
@both
def test_a_device_of_one_controller_is_occupied_for_the_other(tmp_path: Path, second_user: int | None) -> None:
    _shared_by(second_user)
    with homes() as make:
        pair = Pair(make, tmp_path, second_user=second_user)
        a, b, (mine, theirs) = pair.a, pair.b, pair.names
        a.up(2)
        a.device("gpu0", "ready")
        b.up(2)
        seen = b.device("gpu0", "occupied")
        assert seen["words"] == f"occupied (controller of {mine})"
        assert not seen["free"]
        assert b.devices()["cpu0"]["words"] == f"occupied (controller of {mine})"

        # The second one's job waits, and the reason names whose device it is.
        waiting = pair.stay(b, 0.2)
        first = pair.stay(a, 0.3)
        a.ended(first)
        long = pair.stay(a, 4.0)
        a.reaches(long, "running")
        assert b.job(waiting)["state"] == "queued"
        assert mine in str(b.job(waiting)["reason"]), b.job(waiting)["reason"]

        # The first one goes and leaves its job: the claim stays with the supervisor, so nothing is free yet.
        a.ask("POST", "/v1/shutdown", {"leave": True})
        a.wait(lambda: a.controller_pid is None and a.agent_pid is None, "the first controller to go")
        began = time.monotonic()
        assert members(long), "the job was to outlive its controller"
        while members(long):
            assert b.devices()["gpu0"]["state"] == "occupied"
            time.sleep(0.02)
        assert time.monotonic() - began > 0.5, "the job was over too soon to show anything"
        assert b.ended(waiting)["exit_status"] == 0
        uids = [uid for _, _, uid in pair.spans()]
        assert uids == [os.getuid(), os.getuid(), second_user or os.getuid()]

        # Now the device is the second one's, and the first one says so when it comes back.
        b.device("gpu0", "ready")
        a.up(2)
        assert a.device("gpu0", "occupied")["words"] == f"occupied (controller of {theirs})"
        assert a.ended(long)["exit_status"] == 0, "the end of what was left running is on record"
        print(f"\n{theirs} had the device {time.monotonic() - began:.1f} s after {mine} had left; spans {pair.spans()}")


@pytest.mark.slow
@pytest.mark.timeout(600)
@both
def test_killed_holders_pass_the_device_on_and_never_share_it(tmp_path: Path, second_user: int | None) -> None:
    _shared_by(second_user)
    draw = random.Random(7)
    with homes() as make:
        pair = Pair(make, tmp_path, second_user=second_user)
        pair.a.start()
        pair.b.start()
        for home in (pair.a, pair.b):
            home.answers()
            home.wait(lambda home=home: len(home.devices()) == 2, "devices")  # type: ignore[misc]
        jobs = {id(home): [pair.stay(home, draw.random() * 0.3) for _ in range(30)] for home in (pair.a, pair.b)}
        kills = 0
        for _ in range(8):
            time.sleep(0.3 + draw.random())
            holder = next((h for h in (pair.a, pair.b) if h.devices()["gpu0"]["state"] in ("busy", "ready")), None)
            if holder is None:
                continue
            holder.kill("controller", "agent")
            kills += 1
            time.sleep(draw.random() * 2)
            holder.start()
            holder.answers()
        # Whoever has the device works off his queue; then he goes, and the other does.
        for _ in range(2):
            home = pair.a.wait(lambda: _holder(pair), "one of them to hold the device", 40.0)
            for job in jobs[id(home)]:
                assert home.ended(job, 60.0)["exit_status"] == 0
            home.kill("controller", "agent")
        spans = pair.spans()
        print(
            f"\n{kills} holders killed; {len(spans)} jobs one after the other, closest {_closest(spans):.1f} ms apart"
        )
        assert len(spans) == 60


def _holder(pair: Pair) -> Home | None:
    for home in (pair.a, pair.b):
        if home.controller_pid is not None and home.devices()["gpu0"]["state"] in ("busy", "ready", "ending"):
            return home
    return None


def _closest(spans: list[tuple[float, float, int]]) -> float:
    return min(1000 * (after[0] - before[1]) for before, after in itertools.pairwise(spans))
