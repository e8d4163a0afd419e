"""Disks with a few KiB left, of a host and of the controller: nothing that is not free is shown free, nothing is lost.

How much is left decides which write is the first to fail: a page of the ledger, a frame of the journal, a record, a
line of output. So the same is done with many amounts, on one disk each, within one run.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts.fleet import Controller, Fleet, fleet, until
from tests.kill.harness import ApiError, members
from tests.kill.test_full_disk import small_disk

pytestmark = [
    pytest.mark.root(reason="mounts small disks, to show what a full one does to a host or to the controller"),
    pytest.mark.timeout(300),
    pytest.mark.slow,
]

KIB = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
HOST_KIB, CONTROLLER_KIB = KIB[::2], KIB[::3]  # a round of the controller takes longer
#: Writes a line, waits until it is told to end, writes another, and ends.
JOB = "echo began; while [ ! -e {over} ]; do sleep 0.05; done; echo over; exit 9"


def fill(disk: Path, left_kib: int) -> None:
    """Takes all but so many KiB of a disk (less than a page: its last page is left out)."""
    found = os.statvfs(disk)
    take = found.f_bavail * found.f_frsize - left_kib * 1024
    with (disk / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while take > 0:
            take -= file.write(b"\0" * min(take, 1 << 20))


def room(disk: Path) -> None:
    (disk / "filler").unlink(missing_ok=True)


@contextlib.contextmanager
def on_a_disk(folder: Path, at: str, size: str = "32m") -> Iterator[Path]:
    """A small disk in a fleet's folder, there before what is to lie on it."""
    try:
        with small_disk(folder / at, size) as disk:
            yield disk
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # which could not be while the disk was in it


def asks(controller: Controller, path: str) -> dict[str, object] | None:
    with contextlib.suppress(OSError, http.client.HTTPException, ApiError):
        return dict(controller.ask("GET", path))
    return None


def never_free_beside(controller: Controller, device: str, job: str) -> None:
    """Whoever of the job is alive after the answer was so before it: then the device was not free."""
    answer = asks(controller, "/v1/devices")
    if answer is None or not members(job):
        return
    shown = {d["name"]: d["state"] for d in answer["devices"]}  # type: ignore[attr-defined]
    assert shown.get(device) != "ready", f"{device} was shown ready beside {job}"


def one_round(made: Fleet, device: str, disk: Path, left_kib: int) -> str:
    """A job that begins with room, goes on and ends without, and one that waits behind it; then there is room again.
    Gives what the second was refused for, or its state."""
    controller = made.controller
    over = made.folder / f"over-{left_kib}-{time.monotonic_ns()}"
    job = controller.submit(device, "/bin/sh", "-c", JOB.format(over=over), grace_s=0.5)
    controller.running(job)
    until(lambda: controller.output(job) == b"began\n", "its first line")
    fill(disk, left_kib)
    told, behind = "waits", None
    try:
        try:
            behind = controller.submit(device, "/bin/sh", "-c", "exit 8", key=f"behind-{left_kib}")
        except ApiError as error:
            told = error.code
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            never_free_beside(controller, device, job)
        over.touch()
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            fill(disk, left_kib)
            never_free_beside(controller, device, job)
    finally:
        room(disk)
    assert told in ("waits", "disk_full"), told
    if behind is None:
        behind = controller.submit(device, "/bin/sh", "-c", "exit 8", key=f"behind-{left_kib}")
    record = controller.ended(job)
    assert (record["outcome"]["ending"], record["exit_status"]) == ("exited", 9), (left_kib, record["words"])
    output, lost = controller.output(job), int(record["outcome"]["stats"].get("output_lost_bytes", 0))
    assert len(output) + lost == len(b"began\nover\n"), (left_kib, output, lost)
    assert b"began\nover\n".startswith(output)
    assert controller.ended(behind)["exit_status"] == 8
    controller.reaches(device, "ready")
    return told


def test_a_host_whose_disk_is_nearly_full(library: Path) -> None:
    with fleet(library) as made, on_a_disk(made.folder, "small") as disk:
        try:
            made.joined("small")
            made.joined("beside")
            for left in HOST_KIB:
                one_round(made, "small:gpu0", disk, left)
                assert made.controller.devices()["beside:gpu0"]["state"] == "ready", "the disk of another host"
        finally:
            made.close()  # before its disk goes


def test_a_controller_whose_disk_is_nearly_full(library: Path) -> None:
    made = Fleet(library)
    with on_a_disk(made.folder, "served-disk") as disk:
        made.controller = Controller(disk / "served", "127.0.0.1:0")
        try:
            made.controller.up()
            made.joined("box")
            told = {left: one_round(made, "box:gpu0", disk, left) for left in CONTROLLER_KIB}
            assert "disk_full" in told.values(), "with no room at all something was accepted"
        finally:
            made.close()
    assert not subprocess.run(["findmnt", disk], capture_output=True, check=False).stdout
