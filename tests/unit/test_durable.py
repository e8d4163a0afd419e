"""The framed log and atomic files, against damage made by hand; crash points are under tests/crash."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.durable import (
    HEADER_BYTES,
    MAGIC,
    MAX_PAYLOAD,
    Damaged,
    FramedLog,
    LogFailed,
    Torn,
    make_dirs,
    read_frames,
    remove_temporaries,
    write_atomic,
)

payloads = st.lists(st.binary(max_size=200) | st.just(MAGIC * 20), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


def fresh(folder: Path) -> Path:
    path = folder / "journal.log"
    path.unlink(missing_ok=True)
    return path


def written(path: Path, bodies: list[bytes], synced: int) -> list[int]:
    """A log whose first ``synced`` frames were synced one by one; gives the offsets, and the length as last item."""
    log = FramedLog.open(path)
    offsets = []
    for index, each in enumerate(bodies):
        offsets.append(log.append(each))
        if index < synced:
            log.sync()
    end = log.end
    log.close()
    return [*offsets, end]


def bodies_of(path: Path) -> list[bytes]:
    return [frame.payload for frame in read_frames(path)]


def test_a_frame_is_laid_out_as_documented(folder: Path) -> None:
    path = fresh(folder)
    with FramedLog.open(path) as log:
        assert log.append(b"one") == 0
        log.sync()
        assert log.append(b"two") == 21
    first = struct.pack("<IQ", 3, 0)
    second = struct.pack("<IQ", 3, 21)
    assert path.read_bytes() == (
        b"\xf7\x01" + first + struct.pack("<I", zlib.crc32(first + b"one")) + b"one"
        b"\xf7\x01" + second + struct.pack("<I", zlib.crc32(second + b"two")) + b"two"
    )


def test_an_empty_log_and_an_empty_frame(folder: Path) -> None:
    path = fresh(folder)
    with FramedLog.open(path) as log:
        assert (log.recovered, log.end, list(log.frames())) == (None, 0, [])
        log.append(b"")
    assert bodies_of(path) == [b""]


@given(bodies=payloads, data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_torn_last_frame_is_reported_and_everything_before_is_kept(
    folder: Path, bodies: list[bytes], data: st.DataObject
) -> None:
    path = fresh(folder)
    offsets = written(path, bodies, synced=len(bodies) - 1)
    whole = path.read_bytes()
    cut = data.draw(st.integers(offsets[-2], offsets[-1] - 1))
    zeros = data.draw(st.just(0) | st.integers(1, 9000), label="zeros that a file system may leave behind")
    raw = whole[:cut] + bytes(zeros)
    path.write_bytes(raw)
    # Zeros in place of zeros lose nothing: then the last frame is there after all, and only what follows it is torn.
    kept, last = (bodies, offsets[-1]) if raw.startswith(whole) else (bodies[:-1], offsets[-2])
    dropped = len(raw) - last
    assert bodies_of(path) == kept
    with FramedLog.open(path) as log:
        assert log.recovered == (Torn(last, dropped) if dropped else None)
        assert log.append(b"after") == last
    with FramedLog.open(path) as log:
        assert log.recovered is None
        assert [frame.payload for frame in log.frames()] == [*kept, b"after"]


@given(bodies=payloads, data=st.data())
@settings(max_examples=300, deadline=None)
def test_damage_below_what_was_synced_is_never_silent(folder: Path, bodies: list[bytes], data: st.DataObject) -> None:
    path = fresh(folder)
    # One more frame at the end vouches for all before it.
    offsets = written(path, [*bodies, b"witness"], synced=len(bodies))
    place = data.draw(st.integers(0, offsets[len(bodies)] - 1))
    raw = bytearray(path.read_bytes())
    raw[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    broken = max(offset for offset in offsets if offset <= place)

    for attempt in (lambda: FramedLog.open(path), lambda: list(read_frames(path))):
        with pytest.raises(Damaged) as caught:
            attempt()
        assert caught.value.path == path
        assert caught.value.offset == broken
        assert str(path) in str(caught.value)
    assert path.read_bytes() == raw, "damage must be left as it is found"
    reader = read_frames(path)
    assert [next(reader).payload for _ in range(offsets.index(broken))] == bodies[: offsets.index(broken)]
    with pytest.raises(Damaged):
        next(reader)


@given(bodies=payloads, data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_hole_among_frames_that_nobody_synced_is_a_torn_tail(
    folder: Path, bodies: list[bytes], data: st.DataObject
) -> None:
    path = fresh(folder)
    synced = data.draw(st.integers(0, len(bodies) - 1))
    offsets = written(path, [*bodies, b"a later page that reached the disk"], synced)
    lost = data.draw(st.integers(synced, len(bodies) - 1))
    raw = bytearray(path.read_bytes())
    raw[offsets[lost] : offsets[lost + 1]] = bytes(offsets[lost + 1] - offsets[lost])
    path.write_bytes(raw)
    with FramedLog.open(path) as log:
        assert log.recovered == Torn(offsets[lost], len(raw) - offsets[lost])
    assert bodies_of(path) == bodies[:lost]


def test_a_compacted_log_cut_short_or_damaged_in_its_last_frame_is_damage(folder: Path) -> None:
    path = fresh(folder)
    with FramedLog.open(path) as log:
        log.append(b"old")
        log.replace([b"one", b"two"])
        assert (log.synced, log.end) == (42, 42)
        assert log.append(b"three") == 42
    assert bodies_of(path) == [b"one", b"two", b"three"]
    for cut in (21, 30, 41):
        os.truncate(path, cut)
        with pytest.raises(Damaged):
            FramedLog.open(path)


def test_replace_keeps_the_mode_and_leaves_no_other_file(folder: Path) -> None:
    path = fresh(folder)
    with FramedLog.open(path, mode=0o640) as log:
        log.replace([b"x"])
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in folder.iterdir()] == ["journal.log"]


def test_a_reader_follows_a_writer_and_waits_at_half_a_frame(folder: Path) -> None:
    path = fresh(folder)
    log = FramedLog.open(path)
    log.append_many([b"one", b"two"])
    frames = list(read_frames(path))
    assert [frame.payload for frame in frames] == [b"one", b"two"]
    log.append(b"three")
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 2)
    assert list(read_frames(path, frames[-1].end)) == []
    path.write_bytes(whole)
    assert [frame.payload for frame in read_frames(path, frames[-1].end)] == [b"three"]
    log.close()
    with pytest.raises(Damaged, match="where a reader left off"):
        list(read_frames(path, len(whole) + 1))


def test_a_magic_across_the_border_of_the_search_is_found(folder: Path) -> None:
    path = fresh(folder)
    # The search begins at byte 1 and reads 1 MiB at a time: the later frame begins on the last byte of that.
    written(path, [bytes((1 << 20) - HEADER_BYTES), b"later"], synced=1)
    raw = bytearray(path.read_bytes())
    assert raw.index(MAGIC, 1) == 1 << 20
    raw[0] = 0
    path.write_bytes(raw)
    with pytest.raises(Damaged) as caught:
        FramedLog.open(path)
    assert caught.value.synced == 1 << 20


def test_a_payload_over_the_limit_is_refused_and_leaves_nothing(folder: Path) -> None:
    path = fresh(folder)
    with FramedLog.open(path) as log:
        with pytest.raises(ValueError, match="at most"):
            log.append(bytes(MAX_PAYLOAD + 1))
        assert log.end == 0


def test_a_full_disk_fails_the_append_and_leaves_the_log_usable(tmp_path: Path) -> None:
    code = """
        import resource, signal, sys
        from tenure.durable import FramedLog, LogFailed
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        log = FramedLog.open(sys.argv[1])
        log.append(b"kept")
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
        try:
            log.append_many([b"x" * 4000, b"y" * 4000])
        except LogFailed as error:
            assert error.usable and error.code == "io_error" and sys.argv[1] in str(error), error
        else:
            sys.exit("no error")
        log.append(b"fits")
        log.sync()
    """
    path = tmp_path / "log"
    subprocess.run([sys.executable, "-c", dedent(code), str(path)], check=True, timeout=20)
    assert bodies_of(path) == [b"kept", b"fits"]


def test_after_a_failed_sync_nothing_goes_on_as_if_it_had_worked(folder: Path) -> None:
    log = FramedLog.open(fresh(folder))
    log.append(b"x")
    saved = os.dup(log._fd)
    read_end, write_end = os.pipe()
    os.dup2(write_end, log._fd)  # fdatasync on a pipe fails with EINVAL, as a dying disk fails with EIO
    with pytest.raises(LogFailed) as caught:
        log.sync()
    assert not caught.value.usable
    os.dup2(saved, log._fd)
    for call in (log.sync, lambda: log.append(b"y"), lambda: log.replace([])):
        with pytest.raises(LogFailed):
            call()
    log.close()
    for fd in (saved, read_end, write_end):
        os.close(fd)
    with pytest.raises(LogFailed, match="it is closed"):
        log.append(b"z")


def test_write_atomic_replaces_whole_files_only_whenever_it_is_killed(tmp_path: Path) -> None:
    code = """
        import sys
        from tenure.durable import write_atomic
        write_atomic(sys.argv[1], bytes([0]) * 100_000)
        print("ready", flush=True)
        n = 0
        while True:
            n = (n + 1) % 256
            write_atomic(sys.argv[1], bytes([n]) * (100_000 + n))
    """
    target = tmp_path / "state"
    for round_ in range(12):
        child = subprocess.Popen([sys.executable, "-c", dedent(code), str(target)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        until = time.monotonic() + 0.003 * round_  # a different instant each round, not a wait for anything
        while time.monotonic() < until:
            raw = target.read_bytes()
            assert raw == raw[:1] * (100_000 + raw[0])
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        child.stdout.close()
        raw = target.read_bytes()
        assert raw == raw[:1] * (100_000 + raw[0])
    remove_temporaries(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


def test_write_atomic_gives_the_mode_and_cleans_up_after_an_error(tmp_path: Path) -> None:
    write_atomic(tmp_path / "f", b"x", mode=0o644)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o644
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomic(tmp_path / "folder", b"x")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["f", "folder"]


def test_make_dirs_makes_what_is_missing_for_this_user_alone(tmp_path: Path) -> None:
    make_dirs(tmp_path / "a" / "b")
    make_dirs(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_dirs(tmp_path / "file" / "c")
