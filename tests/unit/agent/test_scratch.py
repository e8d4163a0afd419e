"""Removing a job's scratch: whatever the job left in it, all of it goes, and nothing outside of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenure.agent import folders, records, scratch
from tenure.agent.cleaning import Cleaner, Wish
from tenure.domain.job import Ending, Outcome

NOBODY = 65_534


@pytest.fixture
def place(tmp_path: Path) -> Path:
    found = tmp_path / "j1.1" / "scratch"
    found.mkdir(parents=True)
    return found


@pytest.fixture
def of_nobody() -> Iterator[Path]:
    """A folder of an ordinary user, which root's rights do not help."""
    folder = Path(tempfile.mkdtemp(prefix="tenure-scratch-", dir="/tmp"))
    os.chown(folder, NOBODY, NOBODY)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def as_nobody(work: Callable[[], object]) -> None:
    """Does something in a process of an ordinary user; fails where it fails."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work()
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def test_everything_in_it_goes(place: Path) -> None:
    for number in range(300):
        (place / f"d{number % 7}" / f"e{number}").mkdir(parents=True)
        (place / f"d{number % 7}" / f"e{number}" / "file").write_text("x")
    Path(os.fsdecode(os.fsencode(place) + b"/\xff\n")).write_text("")
    os.mkfifo(place / "pipe")
    (place / "hole").symlink_to("/nowhere")
    assert scratch.remove(place) == []
    assert list(place.parent.iterdir()) == []


def test_links_out_of_it_are_removed_and_never_followed(place: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("stays")
    (place / "sub").mkdir()
    (place / "sub/folder").symlink_to(outside)
    (place / "file").symlink_to(outside / "precious")
    assert scratch.remove(place) == []
    assert (outside / "precious").read_text() == "stays"
    place.symlink_to(outside)  # the scratch itself, swapped
    assert scratch.remove(place) == []
    assert (outside / "precious").read_text() == "stays"


def test_a_tree_deeper_than_any_path_goes(place: Path) -> None:
    fd = os.open(place, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    assert scratch.remove(place) == []
    assert list(place.parent.iterdir()) == []


@pytest.mark.root(reason="becomes an ordinary user, whom mode bits stop")
def test_read_only_folders_and_files_of_an_ordinary_user_go(of_nobody: Path) -> None:
    place = of_nobody / "scratch"

    def work() -> None:
        (place / "a/b/c").mkdir(parents=True)
        (place / "a/b/c/file").write_text("x")
        (place / "a/b/c/file").chmod(0o000)
        for folder in ("a/b/c", "a/b", "a", "."):
            (place / folder).chmod(0o000 if folder != "." else 0o500)
        assert scratch.remove(place) == []
        assert list(of_nobody.iterdir()) == []

    as_nobody(work)


@pytest.mark.root(reason="mounts: what is mounted inside is named and never emptied")
@pytest.mark.parametrize("kind", ["tmpfs", "bind", "bind_at_top", "on_itself"])
def test_a_mount_inside_is_named_and_not_entered(place: Path, tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("stays")
    point = {"bind_at_top": place / "m", "on_itself": place}.get(kind, place / "deep" / "m")
    point.mkdir(parents=True, exist_ok=True)
    (place.parent / "scratch" / "goes").write_text("") if kind != "on_itself" else None
    how = ["-t", "tmpfs", "none"] if kind == "tmpfs" else ["--bind", str(outside)]
    subprocess.run(["mount", *how, str(point)], check=True)
    try:
        left = scratch.remove(place)
        assert any("something is mounted on it" in one.why for one in left), left
        assert (outside / "precious").read_text() == "stays"
        assert [path.name for path in place.parent.rglob("goes")] == []
    finally:
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if str(place.parent) in line.split()[4]:
                subprocess.run(["umount", line.split()[4].encode().decode("unicode_escape")], check=True)
    for remains in scratch.remains(place.parent) or [place]:
        assert scratch.remove(remains) == []
    assert (outside / "precious").read_text() == "stays"
    assert list(place.parent.iterdir()) == []


@pytest.mark.root(reason="mounts a file on a file, which keeps its name busy")
def test_a_file_that_cannot_be_removed_is_named_and_the_rest_goes(place: Path, tmp_path: Path) -> None:
    (place / "d").mkdir()
    (place / "d/stuck").write_text("")
    (place / "d/other").write_text("")
    (tmp_path / "precious").write_text("stays")
    subprocess.run(["mount", "--bind", str(tmp_path / "precious"), str(place / "d/stuck")], check=True)
    try:
        left = scratch.remove(place)
        assert len(left) == 1
        assert "d/stuck" in left[0].path
        assert [path.name for path in place.parent.rglob("other")] == []
    finally:
        for stuck in place.parent.rglob("stuck"):
            subprocess.run(["umount", str(stuck)], check=True)
    assert (tmp_path / "precious").read_text() == "stays"
    for remains in scratch.remains(place.parent):
        assert scratch.remove(remains) == []


def test_two_removals_at_once_and_one_that_died_leave_nothing(place: Path) -> None:
    for number in range(400):
        (place / f"{number}/x/y").mkdir(parents=True)
    half = place.parent / "scratch.scratch-gone-00"  # as one that was killed under way leaves it
    (half / "rest/of/it").mkdir(parents=True)
    threads = [threading.Thread(target=scratch.finish, args=(place.parent,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    scratch.finish(place.parent)
    assert list(place.parent.iterdir()) == []


# -- kept, and cleaned


def attempt(root: Path, name: str, *, keep: bool = False, over: bool = True, sealed: bool = False) -> Path:
    """An attempt's folder as agent and supervisor leave it, with 64 KiB in its scratch."""
    folder = root / name
    folder.mkdir(parents=True)
    scratch.make(folder, folder / "scratch", keep=keep)
    (folder / "scratch/data").write_bytes(b"x" * 65_536)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (folder / "supervisor.json").write_text(json.dumps({"sealed": True} if sealed else {"boot_id": boot, "pid": 1}))
    if over:
        (folder / "exit.json").write_text(
            json.dumps({"kind": "exited", "output_bytes": 0, "ended_at": time.time() - 60})
        )
    return folder


def on_record(*pairs: tuple[str, str]) -> dict[records.Key, records.Attempt]:
    return {(job, 1): records.Attempt(job, 1, "ann", (), None, phase) for job, phase in pairs}


def test_kept_means_kept_through_the_end_and_through_forgetting(tmp_path: Path) -> None:
    folder = attempt(tmp_path, "j1.1", keep=True)
    assert scratch.finish(folder) == []
    folders.discard(folder)
    assert (folder / "scratch/data").exists()
    told = Cleaner(tmp_path, dict).kept()
    assert [(one["job"], one["path"]) for one in told] == [("j1", str(folder / "scratch"))]
    assert told[0]["bytes"] >= 65_536
    assert time.time() - told[0]["ended_at"] == pytest.approx(60, abs=10)


def test_what_never_began_is_not_kept(tmp_path: Path) -> None:
    folder = attempt(tmp_path, "j1.1", keep=True, sealed=True)
    folders.write_not_begun(folder, Outcome(Ending.STAGE_FAILED))
    scratch.finish(folder)
    assert not (folder / "scratch").exists()
    assert Cleaner(tmp_path, dict).kept() == []


def test_cleaning_takes_what_nobody_owns_and_nothing_else(tmp_path: Path) -> None:
    names = ("orphan", "live", "accepted", "over", "kept", "unsure")
    made = {name: attempt(tmp_path, f"{name}.1", keep=name == "kept", over=name != "unsure") for name in names}
    known = on_record(("live", "started"), ("accepted", "accepted"), ("over", "ended"))
    cleaner = Cleaner(tmp_path, lambda: known)
    planned = cleaner.clean(Wish(dry_run=True))
    assert {one["job"] for one in planned.removed} == {"orphan", "over"}
    assert all((folder / "scratch/data").exists() for folder in made.values())
    done = cleaner.clean(Wish())
    assert {one["job"] for one in done.removed} == {"orphan", "over"}
    assert [Path(one["path"]).parent.name for one in done.left] == ["unsure.1"]
    assert "not known" in done.left[0]["why"]
    assert {name for name in names if (made[name] / "scratch/data").exists()} == {"live", "accepted", "kept", "unsure"}


def test_kept_ones_go_by_job_and_by_age_and_never_those_that_run(tmp_path: Path) -> None:
    made = {name: attempt(tmp_path, f"{name}.1", keep=True) for name in ("a", "b", "runs")}
    cleaner = Cleaner(tmp_path, lambda: on_record(("runs", "started")))
    assert {one["job"] for one in cleaner.kept()} == {"a", "b"}
    assert cleaner.clean(Wish(kept=True, older_than_s=3600)).removed == []
    assert [one["job"] for one in cleaner.clean(Wish(kept=True, jobs=("b",))).removed] == ["b"]
    assert [one["job"] for one in cleaner.clean(Wish(kept=True)).removed] == ["a"]
    assert {name for name in made if (made[name] / "scratch").exists()} == {"runs"}
    assert cleaner.kept() == []


def test_what_was_set_aside_never_points_at_what_came_after(tmp_path: Path) -> None:
    """Its number comes again where the ledger was restored: the old kept scratch and the new one stay apart."""
    folder = attempt(tmp_path, "j1.1", keep=True)
    folders.discard(folder)
    folders.prepare(folder, {}, keep=True)
    (folder / "scratch/new").write_text("of the one that runs")
    live = on_record(("j1", "started"))
    cleaner = Cleaner(tmp_path, lambda: live)
    aside = tmp_path / "j1.1.before-1"
    assert [one["path"] for one in cleaner.kept()] == [str(aside / "scratch")]
    assert [one["path"] for one in cleaner.clean(Wish(kept=True)).removed] == [str(aside / "scratch")]
    assert (folder / "scratch/new").read_text() == "of the one that runs"
