"""Trees on a real disk: packed, unpacked, compared; and what swaps a link in under the hands of either."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tenure.agent import trees
from tenure.domain.tree import TreeError, read_tree


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def packed(path: Path) -> tuple[bytes, trees.Packed]:
    out = io.BytesIO()
    with opened(path) as fd:
        done = trees.pack(fd, trees.every_name(fd), out.write)
    return out.getvalue(), done


def unpacked(stream: bytes, path: Path, umask: int = 0o022) -> trees.Unpacker:
    path.mkdir(exist_ok=True)
    with opened(path) as fd:
        sink = trees.Unpacker(fd, umask)
        try:
            read_tree(io.BytesIO(stream).read, sink)
        finally:
            sink.close()
    return sink


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "deep/er/empty").mkdir(parents=True)
    (folder / "deep/run").write_bytes(b"#!/bin/sh\n" + b"x" * 3_000_000)
    (folder / "deep/run").chmod(0o755)
    (folder / "deep/private").write_text("p")
    (folder / "deep/private").chmod(0o400)
    (folder / "out").symlink_to("/nowhere/at all")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe\n")).write_text("no text")
    (folder / "n" / ("x" * 255)).parent.mkdir()
    (folder / "n" / ("x" * 255)).write_text("long")
    return folder


def test_a_tree_comes_back_with_exec_bits_links_and_names_of_bytes(source: Path, tmp_path: Path) -> None:
    stream, done = packed(source)
    there = tmp_path / "there"
    sink = unpacked(stream, there)
    assert packed(there)[1].hash == done.hash
    assert (there / "deep/run").stat().st_mode & 0o777 == 0o755
    assert (there / "deep/run").read_bytes() == (source / "deep/run").read_bytes()
    assert (there / "deep/private").stat().st_mode & 0o777 == 0o644
    assert (there / "out").readlink() == Path("/nowhere/at all")
    assert (there / "deep/er/empty").is_dir()
    assert b"\xff\xfe\n" in [os.fsencode(path.name) for path in there.iterdir()]
    assert sink.size == done.size
    with opened(there) as fd:
        assert trees.difference(sink.values, trees.pack(fd, trees.every_name(fd))) is None


def test_the_hash_knows_nothing_of_times_owners_and_other_bits(source: Path, tmp_path: Path) -> None:
    before = packed(source)[1].hash
    subprocess.run(["cp", "-r", "--no-dereference", str(source), str(tmp_path / "copy")], check=True)
    for path in (tmp_path / "copy").rglob("*"):
        if not path.is_symlink():
            os.utime(path, (1, 1))
            path.chmod(path.stat().st_mode | 0o066)
    assert packed(tmp_path / "copy")[1].hash == before


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda tree: (tree / "deep/run").chmod(0o644), "lost its exec bit"),
        (lambda tree: (tree / "deep/private").chmod(0o755), "became executable"),
        (lambda tree: (tree / "deep/private").write_text("q"), "holds other bytes"),
        (lambda tree: (tree / "deep/private").unlink(), "is not there"),
        (lambda tree: (tree / "new").write_text(""), "is there after unpacking and was not packed"),
        (lambda tree: (tree / "out").unlink() or (tree / "out").symlink_to("/else"), "leads elsewhere"),
        (
            lambda tree: (tree / "out").unlink() or (tree / "out").write_text("x"),
            "was packed as a link and became a file",
        ),
    ],
)
def test_a_difference_on_disk_is_named(source: Path, tmp_path: Path, harm: object, words: str) -> None:
    sink = unpacked(packed(source)[0], tmp_path / "there")
    harm(tmp_path / "there")  # type: ignore[operator]
    with opened(tmp_path / "there") as fd:
        found = trees.difference(sink.values, trees.pack(fd, trees.every_name(fd)))
    assert found is not None
    assert words in found[1]


def test_a_file_that_grows_while_it_is_packed_is_named_and_carried_as_it_was_read(tmp_path: Path) -> None:
    log = tmp_path / "s" / "log"
    log.parent.mkdir()
    log.write_bytes(b"1" * (3 << 20))
    out = io.BytesIO()
    with opened(log.parent) as fd:

        def grows(done: int) -> None:
            with log.open("ab") as more:
                more.write(b"2")

        done = trees.pack(fd, [b"log"], out.write, progress=grows)
    assert done.changed == [b"log"]
    unpacked(out.getvalue(), tmp_path / "t")
    assert (tmp_path / "t/log").read_bytes() == b"1" * (3 << 20)


def test_a_folder_swapped_for_a_link_is_not_followed_out_of_the_tree(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("do not carry")
    source = tmp_path / "s"
    source.mkdir()
    (source / "a").symlink_to(tmp_path / "secret")
    out = io.BytesIO()
    with opened(source) as fd:
        done = trees.pack(fd, [b"a/key"], out.write)
    assert done.gone == [b"a/key"]
    assert b"do not carry" not in out.getvalue()


def test_unpacking_never_writes_through_a_link_that_was_swapped_in(source: Path, tmp_path: Path) -> None:
    outside, there = tmp_path / "outside", tmp_path / "there"
    outside.mkdir()
    there.mkdir()
    (there / "deep").symlink_to(outside)
    with pytest.raises(OSError, match="deep") as refused:
        unpacked(packed(source)[0], there)
    assert "deep" in str(refused.value.filename)
    assert list(outside.iterdir()) == []


def test_a_file_that_is_there_already_is_never_opened(source: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "deep").mkdir(parents=True)
    (there / "deep/run").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        unpacked(packed(source)[0], there)
    assert not (tmp_path / "victim").exists()


def test_pipes_and_sockets_are_left_out_and_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "f").write_text("")
    done = packed(tmp_path)[1]
    assert done.special == [b"pipe"]
    assert set(done.values) == {b"f"}


def test_a_name_too_long_for_any_disk_is_refused_by_name(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    deep = os.dup(fd)
    for _ in range(50):  # deeper than a path can say, step by step
        os.mkdir("d" * 100, dir_fd=deep)
        below = os.open("d" * 100, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    with pytest.raises(TreeError, match="5049 bytes long"):
        trees.pack(fd, trees.every_name(fd))
    os.close(fd)
