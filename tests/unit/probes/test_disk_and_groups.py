"""What a folder takes on disk, and the memory files of cgroups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

from tenure.agent import memory_groups
from tenure.domain.reading import Reason, Unavailable, Value
from tenure.probes import disk, memory_group


def blocks(*paths: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in paths)


def test_every_file_counts_once_by_what_it_takes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").write_bytes(b"x" * 100_000)
    os.link(tmp_path / "a/file", tmp_path / "again")
    (tmp_path / "loop").symlink_to(tmp_path)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    found = disk.usage(str(tmp_path))
    assert isinstance(found, Value)
    everything = (tmp_path, tmp_path / "a", tmp_path / "a/file", tmp_path / "loop", tmp_path / "sparse")
    assert found.value == disk.Usage(blocks(*everything), 5)
    assert found.value.bytes < 1 << 20


def test_a_walk_is_bounded_and_says_how_far_it_came(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / str(number)).write_bytes(b"x")
    many = disk.usage(str(tmp_path), most=20)
    assert isinstance(many, Unavailable)
    assert many.reason is Reason.TIMEOUT
    assert "at least" in many.detail
    ticks = iter(range(1000))
    slow = disk.usage(str(tmp_path), deadline_s=5, clock=lambda: float(next(ticks)))
    assert isinstance(slow, Unavailable)
    gone = disk.usage(str(tmp_path / "none"))
    assert isinstance(gone, Unavailable)


def group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_version_2(tmp_path: Path) -> None:
    made = group(
        tmp_path / "g",
        memory__max="max\n",
        memory__peak="3000\n",
        memory__current="2000\n",
        memory__stat="anon 1000\nfile 700\nshmem 30\n",
        memory__events="low 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 1\n",
    )
    assert memory_group.version(made) == 2
    seen = memory_group.look(made)
    figures = [seen.limit, seen.peak, seen.current, seen.held, seen.kills]
    assert [r.value for r in figures if isinstance(r, Value)] == [memory_group.UNLIMITED, 3000, 2000, 1030, 1]


def test_version_1_counts_swap_with_memory_where_it_can(tmp_path: Path) -> None:
    made = group(
        tmp_path / "g",
        memory__limit_in_bytes="4096\n",
        memory__max_usage_in_bytes="1\n",
        memory__memsw__limit_in_bytes="8192\n",
        memory__memsw__max_usage_in_bytes="5000\n",
        memory__memsw__usage_in_bytes="10\n",
        memory__stat="rss 1\ntotal_rss 40\ntotal_shmem 2\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    )
    assert memory_group.version(made) == 1
    seen = memory_group.look(made)
    figures = [seen.limit, seen.peak, seen.current, seen.held, seen.kills]
    assert [r.value for r in figures if isinstance(r, Value)] == [8192, 5000, 10, 42, 3]


def test_what_a_kernel_does_not_tell_is_unavailable(tmp_path: Path) -> None:
    seen = memory_group.look(group(tmp_path / "g", memory__max="12\n", memory__stat="file 3\n", memory__current="x"))
    assert isinstance(seen.limit, Value)
    for reading, reason in (
        (seen.peak, Reason.NOT_SUPPORTED),  # before Linux 5.19
        (seen.held, Reason.NOT_SUPPORTED),
        (seen.current, Reason.UNPARSEABLE),
        (seen.kills, Reason.NOT_SUPPORTED),
    ):
        assert isinstance(reading, Unavailable)
        assert reading.reason is reason


def test_a_limit_of_version_2_counts_swap_and_ends_the_whole_group(tmp_path: Path) -> None:
    made = group(tmp_path / "g", memory__max="max", memory__swap__max="max", memory__oom__group="0")
    assert memory_groups.limit(made, 2, 1 << 20) == 1 << 20
    assert (made / "memory.max").read_text() == str(1 << 20)
    assert (made / "memory.swap.max").read_text() == "0"
    assert (made / "memory.oom.group").read_text() == "1"
