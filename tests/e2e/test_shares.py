"""Trees and scratch folders on shares that lack exec bits, chmod or symbolic links: real file systems, by FUSE."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.conftest import House, until
from tests.e2e.test_stage import git

from tenure.mounts import lacks

LACKS = {
    "no-bits": "presents no exec bit",
    "no-chmod": "refuses chmod",
    "no-links": "stores no symlinks",
}


@contextmanager
def share(place: Path, *lacking: str) -> Iterator[Path]:
    """A mounted share until the block ends."""
    place.mkdir(exist_ok=True)
    serving = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("fuse_tree.py")), str(place), *lacking], stdout=subprocess.PIPE
    )
    try:
        assert serving.stdout is not None
        assert serving.stdout.readline() == b"mounted\n"
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)
        serving.kill()
        serving.wait(10)


def tree(folder: Path) -> Path:
    folder.mkdir()
    (folder / "run").write_text("#!/bin/sh\ncat link\n")
    (folder / "run").chmod(0o755)
    (folder / "data").write_text("through the link\n")
    (folder / "link").symlink_to("data")
    return folder


def with_scratch_at(house: House, place: Path) -> None:
    house.rc("down")
    settings = house.paths.root / "embedded.json"
    body = json.loads(settings.read_text())
    body["agent"] = {**body.get("agent", {}), "scratch_dir": str(place)}
    settings.write_text(json.dumps(body))
    house.up()


@pytest.mark.root(reason="mounts shares: each lack is found on a file system that has it")
def test_each_lack_is_told_from_the_others(tmp_path: Path) -> None:
    with share(tmp_path / "whole") as place:
        assert lacks(place) == ()
        assert list(place.iterdir()) == []
    for kind, words in LACKS.items():
        with share(tmp_path / kind, kind) as place:
            assert lacks(place) == (words,)
            assert list(place.iterdir()) == []
    with share(tmp_path / "both", *LACKS) as place:
        assert set(lacks(place)) == {"refuses chmod", "stores no symlinks"}


@pytest.mark.root(reason="mounts a tmpfs that runs no programs")
def test_a_mount_that_runs_no_programs_is_a_lack_of_its_own(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,size=1m", "none", str(tmp_path)], check=True)
    try:
        assert lacks(tmp_path) == ("runs no programs (it is mounted noexec)",)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.root(reason="mounts shares: a staged tree keeps its exec bits and links by lying elsewhere")
def test_a_tree_lies_aside_where_scratch_would_lose_a_part_of_it(own_house: House, tmp_path: Path) -> None:
    house, source = own_house, tree(tmp_path / "source")
    for kind, words in LACKS.items():
        with share(tmp_path / kind, kind) as place:
            with_scratch_at(house, place)
            done = house.rc("run", "-q", "-d", "gpu0", "--stage", str(source), "--", "./run")
            assert (done.returncode, done.stdout) == (0, b"through the link\n"), done
            notice = house.newest()["notices"][0]
            assert notice["kind"] == "scratch_aside"
            assert notice["words"].endswith(f"the file system of {place} {words}")
            done = house.rc("run", "-q", "-d", "gpu0", "--", "sh", "-c", "pwd; echo x > file")
            assert done.stdout.startswith(str(place).encode())  # what needs none of it goes where it was meant to
            assert house.newest()["notices"] == []
            here = Path(done.stdout.decode().strip())
            until(lambda here=here: not here.exists(), "its scratch gone")  # type: ignore[misc]
            house.rc("down")


@pytest.mark.root(reason="mounts a share on which scratch folders lie")
def test_scratch_elsewhere_goes_at_the_end_and_is_listed_where_it_was_kept(own_house: House, tmp_path: Path) -> None:
    house, source = own_house, tree(tmp_path / "source")
    with share(tmp_path / "share") as place:
        with_scratch_at(house, place)
        done = house.rc("run", "-q", "-d", "gpu0", "--stage", str(source), "--", "sh", "-c", "./run; pwd")
        line, where = done.stdout.decode().splitlines()
        assert line == "through the link"
        assert where.startswith(f"{place}/tenure-")
        until(lambda: not Path(where).parent.exists(), "its scratch gone")
        done = house.rc("run", "-q", "--keep", "-d", "gpu0", "--", "sh", "-c", "echo x > file; pwd")
        where = done.stdout.decode().strip()
        assert [one["path"] for one in house.json("jobs", "--kept")["hosts"][0]["kept"]] == [where]
        assert house.rc("admin", "clean", "--kept").returncode == 0
        assert not Path(where).exists()
        house.rc("down")
    done = house.rc("run", "-q", "-d", "gpu0", "--", "pwd")  # the folder is there, and nothing is mounted on it
    assert done.returncode == 0, done


@pytest.mark.root(reason="mounts shares: what a source's file system does not keep comes from git's index")
@pytest.mark.parametrize(("kind", "git_knows"), [("no-bits", True), ("no-bits", False), ("no-links", True)])
def test_what_the_source_does_not_hold_comes_from_the_index(
    house: House, tmp_path: Path, kind: str, git_knows: bool
) -> None:
    original = tree(tmp_path / "original")
    git(original, "init", "-q")
    git(original, "add", "-A")
    git(original, "commit", "-qm", "one")
    with share(tmp_path / "share", kind) as place:
        git(tmp_path, "clone", "-q", str(original), str(place / "copy"))
        copy = place / "copy"
        if not git_knows:
            git(copy, "config", "core.filemode", "true")
        if kind == "no-bits":
            assert not (copy / "run").stat().st_mode & 0o111
        else:
            assert not (copy / "link").is_symlink()
        done = house.rc("run", "-q", "-d", "gpu0", "--stage", str(copy), "--", "./run")
        assert (done.returncode, done.stdout) == (0, b"through the link\n"), done
        assert b"taken from git's index instead" in done.stderr
        taken = house.newest()["spec"]["stage"]
    done = house.rc("run", "-q", "-d", "gpu0", "--stage", str(original), "--", "./run")
    assert house.newest()["spec"]["stage"]["hash"] == taken["hash"]
