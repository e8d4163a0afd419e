"""The controller's copy of one attempt's output: exact whatever comes in whatever pieces, and whatever a crash left."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.controller.attempt_output import RUN, AttemptOutput, Run, read_closed, since_closed
from tenure.wire.frames import OutputChunk


def paths(folder: Path) -> tuple[Path, Path]:
    return folder / "j1.1.bin", folder / "j1.1.idx"


def chunk(offset: int, *runs: tuple[int, bytes], at: float = 0.0) -> OutputChunk:
    """Runs of (stream, bytes), each read a second after the one before, so that none are shown as one."""
    told = tuple((stream, len(data), at + offset + i) for i, (stream, data) in enumerate(runs))
    return OutputChunk("j1", 1, offset, told, b"".join(data for _, data in runs))


def sync(output: AttemptOutput) -> int:
    upto = output.snapshot()
    output.sync(upto)
    return output.synced(upto)


def everything(output: AttemptOutput, page: int = 1 << 20) -> bytes:
    data = b""
    while pieces := output.read(len(data), page):
        for run, piece in pieces:
            assert run.offset == len(data), "a gap or a repeat"
            assert run.length == len(piece)
            data += piece
    return data


def streams(output: AttemptOutput) -> dict[int, bytes]:
    found = {1: b"", 2: b""}
    for run, piece in output.read(0, 1 << 30):
        found[run.stream] += piece
    return found


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[tuple[int, bytes]], list[tuple[int, int]]]:
    """An output as runs of both streams, and the pieces in which it is delivered: repeated, overlapping, early."""
    runs = draw(
        st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=9)), min_size=1, max_size=12)
    )
    size = sum(len(data) for _, data in runs)
    cut = st.tuples(st.integers(0, size - 1), st.integers(1, size))
    return runs, draw(st.lists(cut, max_size=30))


def cut_out(runs: list[tuple[int, bytes]], begin: int, end: int) -> OutputChunk:
    told, position = [], 0
    for stream, data in runs:
        piece = data[max(begin - position, 0) : max(end - position, 0)]
        if piece:
            told.append((stream, piece))
        position += len(data)
    return chunk(begin, *told)


@settings(max_examples=80, deadline=None)
@given(deliveries(), st.integers(0, 2))
def test_the_output_is_exact_however_it_is_delivered(
    delivery: tuple[list[tuple[int, bytes]], list[tuple[int, int]]], syncs: int
) -> None:
    runs, pieces = delivery
    whole = b"".join(data for _, data in runs)
    with tempfile.TemporaryDirectory() as folder:
        output = AttemptOutput(*paths(Path(folder)))
        for number, (begin, length) in enumerate(pieces):
            end = min(begin + length, len(whole))
            before = output.size
            taken = output.append(cut_out(runs, begin, end))
            assert taken == (begin <= before), "only what continues is taken"
            assert output.size == (max(before, end) if taken else before)
            if syncs and number % (syncs + 1) == 0:
                assert sync(output) == output.size
            assert everything(output, page=1 + number % 7) == whole[: output.size]
        output.append(cut_out(runs, output.size, len(whole)) if output.size < len(whole) else chunk(0, (1, b"")))
        assert everything(output) == whole
        wanted = {1: b"", 2: b""}
        for stream, data in runs:
            wanted[stream] += data
        assert streams(output) == wanted
        sync(output)
        output.close()
        again = AttemptOutput(*paths(Path(folder)))
        assert (again.size, again.durable, everything(again)) == (len(whole), len(whole), whole)
        again.close()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 60), st.integers(1, 60))
def test_any_part_can_be_read(offset: int, limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        output = AttemptOutput(*paths(Path(folder)))
        output.append(chunk(0, (1, b"0123456789"), (2, b"abcdefghij"), (1, b"ABCDEFGHIJ")))
        sync(output)
        output.append(chunk(30, (2, b"klmnopqrst")))  # not in the index yet
        whole = b"0123456789abcdefghijABCDEFGHIJklmnopqrst"
        found = output.read(offset, limit)
        assert b"".join(piece for _, piece in found) == whole[offset : offset + limit]
        sync(output)
        output.close()
        closed = read_closed(*paths(Path(folder)), offset, limit)
        assert b"".join(piece for _, piece in closed) == whole[offset : offset + limit]


def test_runs_of_one_stream_and_moment_are_shown_as_one(tmp_path: Path) -> None:
    output = AttemptOutput(*paths(tmp_path))
    moments = ((1, 1, 5.0), (1, 1, 5.001), (2, 1, 5.002), (2, 1, 9.0))
    output.append(OutputChunk("j1", 1, 0, moments, b"abcd"))
    assert [(run.stream, run.at, piece) for run, piece in output.read(0, 99)] == [
        (1, 5.0, b"ab"),
        (2, 5.002, b"c"),
        (2, 9.0, b"d"),
    ]
    output.close()


def test_nothing_is_durable_before_a_sync_and_no_record_stands_for_such_bytes(tmp_path: Path) -> None:
    output = AttemptOutput(*paths(tmp_path))
    output.append(chunk(0, (1, b"first")))
    assert sync(output) == 5
    upto = output.snapshot()
    output.append(chunk(5, (1, b"second")))  # while that sync is on its way
    output.sync(upto)
    assert output.synced(upto) == 5
    assert (output.size, output.durable) == (11, 5)
    output.close()  # a crash: the bytes may be there, their record is not
    assert paths(tmp_path)[0].stat().st_size == 11
    again = AttemptOutput(*paths(tmp_path))
    assert everything(again) == b"first"
    assert paths(tmp_path)[0].stat().st_size == 5
    assert again.append(chunk(5, (1, b"second")))
    assert everything(again) == b"firstsecond"
    again.close()


GOOD = [RUN.pack(0, 5, 1, 1.0), RUN.pack(5, 5, 2, 2.0), RUN.pack(10, 5, 1, 3.0)]
ZEROS = bytes(RUN.size)


@pytest.mark.parametrize(
    ("index", "held", "kept"),
    [
        (b"".join(GOOD), 15, 15),
        (b"".join(GOOD), 99, 15),
        (b"".join(GOOD), 14, 10),
        (b"".join(GOOD), 0, 0),
        (b"".join(GOOD)[:-1], 15, 10),
        (b"".join(GOOD)[:25], 15, 5),
        (b"", 15, 0),
        (ZEROS, 15, 0),
        (GOOD[0] + ZEROS, 15, 5),
        (GOOD[0] + ZEROS + GOOD[2], 15, 5),
        (GOOD[0] + GOOD[2], 15, 5),
        (GOOD[1] + GOOD[2], 15, 0),
        (GOOD[0] + RUN.pack(5, 5, 7, 2.0), 15, 5),
        (GOOD[0] + RUN.pack(5, 0, 1, 2.0) + RUN.pack(5, 5, 1, 2.0), 15, 5),
        (GOOD[0] + os.urandom(24), 15, 5),
    ],
)
def test_after_a_crash_everything_up_to_the_first_bad_record_is_kept(
    tmp_path: Path, index: bytes, held: int, kept: int
) -> None:
    data, records = paths(tmp_path)
    data.write_bytes(b"abcdefghijklmno".ljust(held, b"?")[:held])
    records.write_bytes(index)
    output = AttemptOutput(data, records)
    assert output.size == output.durable == kept
    assert everything(output) == b"abcdefghijklmno"[:kept]
    assert data.stat().st_size == kept
    assert records.stat().st_size % RUN.size == 0
    rest = b"abcdefghijklmnopqrst"[kept:]
    assert output.append(chunk(kept, (1, rest)))
    sync(output)
    output.close()
    again = AttemptOutput(data, records)
    assert everything(again) == b"abcdefghijklmnopqrst"
    again.close()


def test_a_long_index_is_checked_whole(tmp_path: Path) -> None:
    data, records = paths(tmp_path)
    count = 10_000
    data.write_bytes(b"x" * count)
    records.write_bytes(b"".join(RUN.pack(n, 1, 1, float(n)) for n in range(count)))
    output = AttemptOutput(data, records)
    assert output.size == count
    assert output.read(count - 1, 9)[0][0].offset == count - 1
    output.close()


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    AttemptOutput(*paths(tmp_path)).close()
    assert {path.stat().st_mode & 0o777 for path in paths(tmp_path)} == {0o600}


def told(pieces: list[tuple[Run, bytes]]) -> list[object]:
    """What a reader sees: bytes, and losses as (offset, stream, count, cause)."""
    return [(r.offset, r.stream, r.lost, r.cause) if r.lost else data for r, data in pieces]


LOSS = (1, 500, "disk", 2.0)


def test_a_loss_stands_in_its_place_and_once(tmp_path: Path) -> None:
    output = AttemptOutput(*paths(tmp_path))
    first, second = chunk(0, (1, b"before")), chunk(6, (2, b"after"))
    lossy = dataclasses.replace(second, lost=(LOSS, (2, 1, "quota", 2.0)))
    for one in (first, lossy, lossy, first):
        assert output.append(one)
    wanted: list[object] = [b"before", (6, 1, 500, "disk"), (6, 2, 1, "quota"), b"after", b"more"]
    assert told(output.read(0, 100)) == wanted[:-1]
    output.append(chunk(11, (1, b"more")))
    assert told(output.read(0, 100)) == wanted
    sync(output)
    assert told(output.read(0, 100)) == wanted
    assert told(output.read(0, 6)) == [b"before"], "it goes with what follows it"
    assert told(output.read(6, 100)) == wanted[1:]
    assert told(output.read(7, 100)) == [b"fter", b"more"]
    output.close()
    assert told(read_closed(*paths(tmp_path), 0, 100)) == wanted
    again = AttemptOutput(*paths(tmp_path))
    assert again.size == 15
    assert told(again.read(0, 100)) == wanted
    again.close()


@pytest.mark.parametrize("kept", range(4))
def test_a_crash_between_a_loss_and_its_byte_does_not_double_it(tmp_path: Path, kept: int) -> None:
    output = AttemptOutput(*paths(tmp_path))
    output.append(chunk(0, (1, b"before")))
    lossy = dataclasses.replace(chunk(6, (2, b"after")), lost=(LOSS, LOSS))
    output.append(lossy)
    sync(output)
    output.close()
    os.truncate(paths(tmp_path)[1], RUN.size * (1 + kept))
    assert told(read_closed(*paths(tmp_path), 6, 100)) == ([(6, 1, 500, "disk")] * 2 + [b"after"] if kept == 3 else [])
    again = AttemptOutput(*paths(tmp_path))
    again.append(lossy)
    assert told(again.read(0, 100)) == [b"before", (6, 1, 500, "disk"), (6, 1, 500, "disk"), b"after"]
    again.close()


@pytest.mark.parametrize("durable", [0, 2, 5])
def test_a_time_is_found_by_the_index(tmp_path: Path, durable: int) -> None:
    output = AttemptOutput(*paths(tmp_path))
    for number in range(5):
        output.append(OutputChunk("j1", 1, number * 3, ((1 + number % 2, 3, 10.0 * number),), b"abc"))
        if number + 1 == durable:
            sync(output)
    for at, offset in ((-1.0, 0), (0.0, 0), (0.1, 3), (30.0, 9), (39.9, 12), (40.0, 12), (40.1, 15)):
        assert output.since(at) == offset
    sync(output)
    output.close()
    assert [since_closed(paths(tmp_path)[1], at, 15) for at in (0.0, 30.0, 40.1)] == [0, 9, 15]
    assert since_closed(tmp_path / "none", 1.0, 0) == 0


def test_a_page_holds_no_more_runs_than_it_should(tmp_path: Path) -> None:
    """Bytes that came one by one, a second apart: a page of them is short, and the next goes on after it."""
    output = AttemptOutput(*paths(tmp_path))
    count = 10_000
    output.append(OutputChunk("j1", 1, 0, tuple((1, 1, float(n)) for n in range(count)), b"x" * count))
    assert len(output.read(0, 1 << 20)) < count
    assert everything(output) == b"x" * count
    output.close()
