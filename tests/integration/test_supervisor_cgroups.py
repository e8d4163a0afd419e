"""The cgroup that jobs get is one that was tried; where none works, the reason is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tenure.agent import cgroups, survivors

V2 = "30 24 0:26 {root} {point} rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = "31 24 0:27 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n"


def probe(tmp_path: Path, mountinfo: str, own: str) -> cgroups.Found:
    (tmp_path / "mountinfo").write_text(mountinfo)
    (tmp_path / "own").write_text(own)
    return cgroups.probe(tmp_path / "mountinfo", tmp_path / "own")


def test_without_a_version_2_hierarchy_there_is_none(tmp_path: Path) -> None:
    assert probe(tmp_path, V1, "4:memory:/x\n0::/\n") == cgroups.Found(None, "no cgroup2 hierarchy is mounted")
    assert probe(tmp_path, "", "").parent is None
    assert cgroups.probe(tmp_path / "none", tmp_path / "none").parent is None


def test_a_folder_that_only_claims_to_be_a_cgroup_is_seen_through(tmp_path: Path) -> None:
    point = tmp_path / "cgroup"
    (point / "user/session").mkdir(parents=True)
    found = probe(tmp_path, V1 + V2.format(root="/", point=point), "4:memory:/\n0::/user/session\n")
    assert found == cgroups.Found(None, f"{point}/user/session/tenure: no cgroup.kill (Linux before 5.14)")
    assert list((point / "user/session/tenure").iterdir()) == []


def test_a_mount_that_shows_another_part_is_passed_over(tmp_path: Path) -> None:
    found = probe(tmp_path, V2.format(root="/docker/abc", point=tmp_path), "0::/user\n")
    assert found.parent is None
    assert "no cgroup2 hierarchy" in found.reason


FREEZER = "32 24 0:28 {root} {point} rw,nosuid - cgroup cgroup rw,{names}\n"


def test_the_freezer_is_found_alone_and_beside_another_controller(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for names in ("freezer", "cpu,freezer", "freezer,pids"):
        mounts = V1 + V2.format(root="/", point="/nowhere") + FREEZER.format(root="/", point=tmp_path, names=names)
        (tmp_path / "mountinfo").write_text(mounts)
        (tmp_path / "own").write_text(f"9:memory:/other\n4:{names}:/mine\n0::/elsewhere\n")
        found = cgroups.probe(tmp_path / "mountinfo", tmp_path / "own", "freezer")
        assert found == cgroups.Found(None, f"{tmp_path}/mine/tenure: no freezer.state"), names
    (tmp_path / "mountinfo").write_text(V1)
    found = cgroups.probe(tmp_path / "mountinfo", tmp_path / "own", "freezer")
    assert found == cgroups.Found(None, "no cgroup v1 freezer hierarchy is mounted")


def test_a_mount_of_a_part_is_counted_from_that_part(tmp_path: Path) -> None:
    point = tmp_path / "with space"
    (point / "job").mkdir(parents=True)
    found = probe(tmp_path, V2.format(root="/docker/abc", point=str(point).replace(" ", "\\040")), "0::/docker/abc/job")
    assert found.reason.startswith(f"{point}/job/tenure: ")


def test_a_folder_that_may_not_be_written_is_told(tmp_path: Path) -> None:
    found = probe(tmp_path, V2.format(root="/", point="/proc"), "0::/\n")
    assert found.parent is None
    assert found.reason.startswith("/proc/tenure: ")


@pytest.mark.parametrize("kind", ["cgroup2", "freezer"])
def test_what_works_here_works_from_end_to_end(kind: cgroups.Kind) -> None:
    found = cgroups.probe(kind=kind)
    if found.parent is None:
        pytest.skip(f"no {kind} for jobs here: {found.reason}")
    parent = Path(found.parent)
    assert parent.name == "tenure"
    assert not (parent / f"probe-{os.getpid()}").exists()
    stale = parent / f"probe-{1 << 22}"  # no pid is that high: of an agent that was killed in the middle
    stale.mkdir(exist_ok=True)
    assert cgroups.probe(kind=kind) == found
    assert not stale.exists()
    nested = parent / f"nested-test-{os.getpid()}" / "below"
    nested.mkdir(parents=True)
    assert survivors.cgroup_pids(nested.parent) == []
    assert survivors.remove_cgroup(nested.parent)
    assert survivors.cgroup_pids(nested.parent) is None
    assert survivors.remove_cgroup(nested.parent)
