"""Output on its way to the controller: every byte once and in order, whatever is acknowledged or lost in between."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tenure.agent import shipper as s
from tenure.agent.shipper import DISK, QUOTA, RUN, Shipper, indexed_bytes, quota_hit
from tenure.wire.frames import OutputChunk

KEY = ("j1", 1)


def write(folder: Path, *pieces: tuple[int, bytes]) -> None:
    """Adds pieces of a stream as a supervisor does: the bytes, then their index record."""
    with (folder / "output.bin").open("ab") as data, (folder / "output.idx").open("ab") as index:
        for stream, piece in pieces:
            index.write(RUN.pack(data.tell(), len(piece), stream, 1.0))
            data.write(piece)


class Taker:
    """Puts chunks together as a controller does."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.runs: list[tuple[int, int]] = []
        self.lost: list[tuple[int, int, int, str]] = []

    async def send(self, frame: bytes) -> None:
        chunk = OutputChunk.from_bytes(frame)
        assert chunk.offset <= len(self.data), "a gap"
        known = bytes(self.data[chunk.offset : chunk.offset + len(chunk.data)])
        assert chunk.data[: len(known)] == known, "bytes sent again differ"
        self.data += chunk.data[len(known) :]
        if not known:
            self.lost += [(chunk.offset, stream, count, cause) for stream, count, cause, _ in chunk.lost]
            self.runs += [(stream, length) for stream, length, _ in chunk.runs]


async def drain(shipper: Shipper, taker: Taker) -> None:
    for _ in range(100_000):
        if not await shipper.pump(taker.send):
            if shipper.streams[KEY].acked == len(taker.data):
                return
            shipper.acknowledged(KEY, len(taker.data))


async def test_everything_arrives_with_its_streams(tmp_path: Path) -> None:
    write(tmp_path, (1, b"one"), (2, b"two!"), (1, b"x" * 700_000))
    shipper, taker = Shipper(), Taker()
    shipper.add(KEY, tmp_path, 0)
    await drain(shipper, taker)
    assert bytes(taker.data) == b"onetwo!" + b"x" * 700_000
    assert taker.runs[:2] == [(1, 3), (2, 4)]
    assert sum(length for stream, length in taker.runs if stream == 1) == 700_003


async def test_what_the_index_does_not_name_is_not_sent(tmp_path: Path) -> None:
    write(tmp_path, (1, b"named"))
    with (tmp_path / "output.bin").open("ab") as data:
        data.write(b"not yet")
    shipper, taker = Shipper(), Taker()
    shipper.add(KEY, tmp_path, 0)
    await drain(shipper, taker)
    assert bytes(taker.data) == b"named"
    assert indexed_bytes(tmp_path) == 5


async def test_what_is_under_way_is_bounded(tmp_path: Path) -> None:
    write(tmp_path, *[(1, b"y" * 100_000)] * 50)
    shipper, taker = Shipper(), Taker()
    shipper.add(KEY, tmp_path, 0)
    while await shipper.pump(taker.send):
        pass
    assert s.UNDER_WAY <= len(taker.data) <= s.UNDER_WAY + s.CHUNK_BYTES


@pytest.mark.parametrize("seed", range(8))
async def test_cuts_and_repeats_lose_and_change_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    expected = bytearray()
    shipper, taker = Shipper(), Taker()
    (tmp_path / "output.idx").touch()
    shipper.add(KEY, tmp_path, 0)
    for _ in range(60):
        piece = rng.randbytes(rng.choice((1, 10, 5000, 300_000)))
        write(tmp_path, (rng.choice((1, 2)), piece))
        expected += piece
        match rng.randrange(5):
            case 0:
                shipper.connected()
            case 1:
                shipper.acknowledged(KEY, rng.randint(shipper.streams[KEY].acked, len(taker.data)))
            case 2:  # a new agent: it knows only what was acknowledged
                acked = shipper.streams[KEY].acked
                shipper = Shipper()
                shipper.add(KEY, tmp_path, acked)
            case _:
                await shipper.pump(taker.send)
    shipper.connected()
    await drain(shipper, taker)
    assert taker.data == expected


async def test_a_controller_that_lost_bytes_gets_them_again(tmp_path: Path) -> None:
    write(tmp_path, (1, b"0123456789"))
    shipper, taker = Shipper(), Taker()
    shipper.add(KEY, tmp_path, 0)
    await drain(shipper, taker)
    del taker.data[4:]
    assert shipper.acknowledged(KEY, 4) is None
    await drain(shipper, taker)
    assert bytes(taker.data) == b"0123456789"


async def test_a_store_that_dropped_a_chunk_is_tried_again(tmp_path: Path) -> None:
    now = [0.0]
    write(tmp_path, (1, b"0123456789"))
    shipper, taker = Shipper(lambda: now[0]), Taker()
    shipper.add(KEY, tmp_path, 0)

    async def lose(_: bytes) -> None:
        return

    assert await shipper.pump(lose)
    assert not await shipper.pump(taker.send)
    now[0] += s.STALLED_S + 1
    assert await shipper.pump(taker.send)
    assert bytes(taker.data) == b"0123456789"


def lose(folder: Path, stream: int, count: int, cause: int) -> None:
    """Says, as a supervisor does once it can write again, that bytes were lost where the output is now."""
    size = (folder / "output.bin").stat().st_size if (folder / "output.bin").exists() else 0
    with (folder / "output.idx").open("ab") as index:
        index.write(RUN.pack(size, count, stream | cause, 1.0))


@pytest.mark.parametrize("acked", [0, 3, 10, 11])
async def test_a_loss_travels_with_the_byte_after_it(tmp_path: Path, acked: int) -> None:
    lose(tmp_path, 2, 7, DISK)
    write(tmp_path, (1, b"0123456789"))
    lose(tmp_path, 1, 50_000, DISK)
    lose(tmp_path, 2, 1, DISK)
    write(tmp_path, (1, b"abc"), (2, b"d"))
    lose(tmp_path, 1, 0, QUOTA)
    shipper, taker = Shipper(), Taker()
    taker.data += b"0123456789abcd"[:acked]
    shipper.add(KEY, tmp_path, acked)
    await drain(shipper, taker)
    assert bytes(taker.data) == b"0123456789abcd"
    expected = [(0, 2, 7, "disk"), (10, 1, 50_000, "disk"), (10, 2, 1, "disk")]
    assert taker.lost == [one for one in expected if one[0] >= acked]
    assert indexed_bytes(tmp_path) == 14


@pytest.mark.parametrize("acked", [0, 1500, 1501, 2999])
async def test_a_loss_larger_than_the_output_hides_nothing_of_it(tmp_path: Path, acked: int) -> None:
    write(tmp_path, *[(1 + n % 2, b"x") for n in range(1500)])
    lose(tmp_path, 1, 1 << 31, DISK)  # in the middle, where a search for any place begins
    write(tmp_path, *[(1 + n % 2, b"y") for n in range(1500)])
    whole = b"x" * 1500 + b"y" * 1500
    shipper, taker = Shipper(), Taker()
    taker.data += whole[:acked]
    shipper.add(KEY, tmp_path, acked)
    await drain(shipper, taker)
    assert bytes(taker.data) == whole
    assert [one[0] for one in taker.lost] == ([1500] if acked <= 1500 else [])


async def test_a_hit_quota_is_found_by_its_record_alone(tmp_path: Path) -> None:
    assert quota_hit(tmp_path) is None
    write(tmp_path, (1, b"full"))
    assert quota_hit(tmp_path) is None
    lose(tmp_path, 1, 0, QUOTA)
    assert quota_hit(tmp_path) == (4, 1.0)
