"""Zones, languages and wall clocks that jump: what is shown is right in all of them, and no deadline goes by them."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.fleet import Fleet, fleet, until

pytestmark = pytest.mark.timeout(240)

DAY = 86_400
#: As POSIX writes them, so that no zone file is needed: Pacific/Kiritimati, America/Adak, and a zone whose clocks are
#: put forward on the very day of the test, at 02:00 (Jn counts days of the year).
KIRITIMATI, ADAK = "<+14>-14", "HST10HDT,M3.2.0,M11.1.0"
CHANGES_TODAY = f"EST5EDT,J{min(time.gmtime().tm_yday, 365)},J{min(time.gmtime().tm_yday, 365) % 365 + 1}"
NO_LANGUAGE = {"LC_ALL": "xx_YY.ISO-8859-15", "LANG": "xx_YY", "LANGUAGE": "tlh"}
PLAIN = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_times_and_ages_are_the_same_in_every_zone_and_language(library: Path) -> None:
    with fleet(library, environment={"TZ": KIRITIMATI, **PLAIN}) as made:
        host = made.joined("zone", environment={"TZ": ADAK, **NO_LANGUAGE})
        began = time.time()
        job = made.controller.submit("zone:gpu0", "/bin/sh", "-c", "echo 'grün λ 語'; sleep 1; exit 4", label="grün-λ")
        record = made.controller.ended(job)
        assert record["exit_status"] == 4
        times = [record[name] for name in ("submitted_at", "granted_at", "started_at", "ended_at")]
        assert began - 0.1 <= times[0] <= times[1] <= times[3] <= time.time(), times
        assert times == sorted(times)
        assert times[3] - times[2] >= 0.9
        assert made.controller.output(job) == "grün λ 語\n".encode()
        assert record["label"] == "grün-λ"

        host.dies()
        made.controller.reaches("zone:gpu0", "unknown")
        lost = time.time()
        time.sleep(2.0)
        shown = {}
        for name, env in (
            ("kiritimati", {"TZ": KIRITIMATI}),
            ("adak", {"TZ": ADAK}),
            ("changes", {"TZ": CHANGES_TODAY}),
            ("plain", PLAIN),
            ("none", {**NO_LANGUAGE, "TZ": "No/Such_Zone"}),
        ):
            before = time.time() - lost
            made.controller.env |= {"TZ": "", "LC_ALL": "C.UTF-8", "LANG": "C.UTF-8", **env}
            devices = made.controller.rc("devices")
            assert devices.returncode == 0, devices
            told = re.search(r"no contact (\d+)s", devices.stdout)
            assert told, devices.stdout
            assert before - 1.0 <= int(told[1]) <= time.time() - lost + 4.0, (name, devices.stdout)
            jobs, described = made.controller.rc("jobs"), made.controller.rc("describe", job)
            assert (jobs.returncode, described.returncode) == (0, 0), (jobs, described)
            assert job in jobs.stdout
            shown[name] = "".join(c if c.isascii() else "_" for c in described.stdout)
            # What is shown as a time says which zone it is in, or is the same in all of them.
            logged = made.controller.rc("logs", job)
            assert logged.returncode == 0, logged
        for name, text in shown.items():
            assert _without_ages(text) == _without_ages(shown["kiritimati"]), name
    for line in _log(made):
        assert datetime.fromisoformat(line["at"]).utcoffset() is not None


def _without_ages(text: str) -> str:
    """What is left of a page where it does not matter when, and in which letters, it was printed."""
    return re.sub(r"\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|_", "_", re.sub(r"\b\d+(\.\d+)? ?s( ago)?\b", "AGE", text))


def _log(made: Fleet) -> list[dict[str, Any]]:
    path = made.controller.paths.controller_log
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that shifts the wall clock of whoever loads it."""
    made = tmp_path_factory.mktemp("clock") / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", made, source], check=True, timeout=60)
    return made


@pytest.fixture
def jumping(library: Path, shim: Path, tmp_path: Path) -> Iterator[tuple[Fleet, Path]]:
    """A fleet whose controller and agent go by a wall clock that a file shifts."""
    shift = tmp_path / "shift"
    shift.write_text("0\n")
    env = {"LD_PRELOAD": str(shim), "TENURE_TEST_CLOCK": str(shift)}
    with fleet(library, environment=env) as made:
        made.controller.env = {k: v for k, v in made.controller.env.items() if k not in env}
        made.joined("jump", environment=env)
        yield made, shift


def test_no_deadline_goes_by_the_wall_clock(jumping: tuple[Fleet, Path]) -> None:
    made, shift = jumping
    controller = made.controller
    story = made.story("jump", max_runtime_s=3600.0, idle_timeout_s=3600.0)
    waits = controller.submit("jump:gpu0", "/bin/true", queue_timeout_s=3000.0)
    before = controller.ask("GET", "/v1/status")["ledger_version"]
    real = time.time()
    for jump in (DAY, -DAY, 0, 400 * DAY, 0):
        shift.write_text(f"{jump}\n")
        shown = float(controller.ask("GET", "/v1/status")["at"])
        assert abs(shown - time.time() - jump) < 30, "the clock did not jump for the controller"
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert controller.devices()["jump:gpu0"]["state"] == "busy"
            assert controller.record(story.id)["state"] == "running"
            assert controller.record(waits)["state"] == "queued"
            time.sleep(0.1)
    assert time.time() - real < 60
    kinds = controller.kinds(before)
    assert not kinds & {"contact_lost", "device_quarantined", "job_ended", "lease_released"}, kinds
    story.holds()
    assert controller.ended(waits)["exit_status"] == 0
    # And what is to end by its bound does so after that long, whatever the wall clock says meanwhile.
    for jump in (-DAY, DAY):
        controller.reaches("jump:gpu0", "ready")
        job = controller.submit("jump:gpu0", "/bin/sleep", "600", max_runtime_s=4.0, grace_s=0.5)
        controller.running(job)
        began = time.monotonic()
        shift.write_text(f"{jump}\n")
        time.sleep(1.5)
        assert controller.record(job)["state"] == "running", "ended by a clock that jumped"
        record = controller.ended(job, 30.0)
        assert 2.0 < time.monotonic() - began < 20.0
        assert "max-runtime" in record["words"] or "runtime" in record["words"], record["words"]
        shift.write_text("0\n")


def test_the_age_of_silence_goes_by_no_clock_that_jumps(jumping: tuple[Fleet, Path]) -> None:
    made, shift = jumping
    made.hosts[0].dies()
    found = made.controller.reaches("jump:gpu0", "unknown")
    until(lambda: "no contact" in found["words"], "its words")
    for jump in (DAY, -DAY):
        shift.write_text(f"{jump}\n")
        told = re.fullmatch(r"unknown \(no contact (\d+)s\)", made.controller.devices()["jump:gpu0"]["words"])
        assert told, made.controller.devices()["jump:gpu0"]["words"]
        assert int(told[1]) < 60
