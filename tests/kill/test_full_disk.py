"""The disk of a home runs full while jobs run, end and are submitted; then there is room again."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.kill.harness import PYTHON, ApiError, Home, homes, members
from tests.kill.test_crashes import COUNTER

FULL_S = 5.0


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of its own in memory."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(path: Path) -> None:
    """Writes until there is not a byte left."""
    with open(path, "ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * size)


def counting(home: Home, notes: Path, lines: int, code: int, device: str) -> str:
    argv = [*PYTHON, COUNTER, str(lines), str(code), str(notes)]
    return str(home.submit(argv, device=f"h:{device}", grace_s=0.5)["id"])


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.root(reason="mounts a small disk, to show what a full one does to a home")
def test_a_full_disk_loses_no_end_and_frees_no_device(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    with small_disk(tmp_path / "disk", "24m") as disk, homes() as make:
        home = make("full", place=disk, sim="2xH100")
        home.up(3)
        for name in ("gpu0", "gpu1"):
            home.device(name, "ready")
        goes_on = counting(home, notes, 3000, 11, "gpu0")  # prints before, during and after
        ends = counting(home, notes, 400, 12, "gpu1")  # ends while there is no room
        behind = counting(home, notes, 5, 13, "gpu1")
        for job in (goes_on, ends):
            home.reaches(job, "running")
        filler = disk / "filler"
        fill(filler)
        began = time.monotonic()

        # A submission is refused by name, and is no job: not now, and not later.
        body: dict[str, object] = {"argv": ["true"], "key": "full"}
        refusals = []
        for _ in range(3):
            fill(filler)
            with contextlib.suppress(ApiError):
                home.ask("POST", "/v1/jobs", body)
                continue
            with pytest.raises(ApiError) as refused:
                home.ask("POST", "/v1/jobs", body)
            refusals.append(refused.value)
        assert refusals, "the disk was full, and three submissions were acknowledged"
        assert {error.code for error in refusals} == {"disk_full"}, refusals
        assert all(error.error["do"] for error in refusals)

        states = set()
        while time.monotonic() < began + FULL_S:
            fill(filler)
            seen = home.devices()
            states.add((seen["gpu0"]["state"], seen["gpu1"]["state"]))
            if members(ends):
                assert seen["gpu1"]["state"] != "ready"
            if members(behind):
                assert not members(ends)
            assert seen["gpu0"]["state"] == "busy" or not members(goes_on)
            time.sleep(0.05)
        assert (notes / f"{ends}.ends").exists(), "the job was to end while the disk was full"
        filler.unlink()

        # Room again: every end is on record, each job ran once, and what could not be stored is counted.
        again = home.wait(lambda: _submitted(home, body), "a submission with room", 30.0)
        assert home.ended(again, 60.0)["exit_status"] == 0
        lost = 0
        for job, lines, code in ((goes_on, 3000, 11), (ends, 400, 12), (behind, 5, 13)):
            record = home.ended(job, 60.0)
            assert (record["outcome"]["ending"], record["exit_status"]) == ("exited", code), record["words"]
            pids = (notes / f"{job}.began").read_text().split()
            assert [str(record["pid"])] == pids
            gaps: list[Mapping[str, Any]] = []
            output = home.output(job, gaps)
            missing = int(record["outcome"]["stats"]["output_lost_bytes"])
            # What is missing is told where it is missing, to the byte.
            assert sum(gap["bytes"] for gap in gaps) == missing
            assert {gap["cause"] for gap in gaps} <= {"disk"}
            right = f"pid {pids[0]}\n" + "".join(f"line {number}\n" for number in range(lines))
            assert len(output) + missing == len(right)
            assert _is_part(output.splitlines(keepends=True), right.encode().splitlines(keepends=True)), job
            lost += missing
        for name in ("gpu0", "gpu1"):
            home.device(name, "ready")
        known = home.ask("GET", "/v1/jobs?limit=100")["jobs"]
        assert {job["id"] for job in known} == {goes_on, ends, behind, again}
        print(
            f"\nfull for {FULL_S:g} s: devices were {sorted(states)}; {lost} bytes of output counted as lost; all ended"
        )


def _submitted(home: Home, body: dict[str, object]) -> str | None:
    with contextlib.suppress(ApiError):
        return str(home.ask("POST", "/v1/jobs", body)["job"]["id"])
    return None


def _is_part(lines: list[bytes], of: list[bytes]) -> bool:
    """Whether the lines come from ``of`` in order. Whole reads are left out, so where one was cut a line may be torn
    in two; the torn ones are passed over, and are few."""
    at = torn = 0
    for line in lines:
        try:
            at = of.index(line, at) + 1
        except ValueError:
            torn += 1
    return torn <= 0.05 * len(lines) + 2
