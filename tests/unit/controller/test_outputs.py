"""The store of outputs: what it acknowledges, what it does when the disk refuses, and what it holds meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tenure.controller.attempt_output import RUN
from tenure.controller.outputs import MAX_OPEN, OutputStore
from tenure.durable import sync_fd
from tenure.paths import Layout
from tenure.wire.frames import OutputChunk


async def until(holds: Callable[[], Any], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        await asyncio.sleep(0.005)


def chunk(offset: int, data: bytes, job: str = "j1", attempt: int = 1) -> OutputChunk:
    return OutputChunk(job, attempt, offset, ((1, len(data), 1.0),), data)


async def read(store: OutputStore, job: str = "j1", attempt: int = 1) -> bytes:
    data = b""
    while pieces := await store.read(job, attempt, len(data), 1 << 16):
        data += b"".join(piece for _, piece in pieces)
    return data


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path, "m")
    layout.create()
    return layout


@pytest.fixture
async def store(layout: Layout) -> AsyncIterator[OutputStore]:
    store = OutputStore(layout, lambda job: None, retry_s=0.1)
    yield store
    await store.close()


async def test_bytes_are_read_at_once_and_acknowledged_when_durable(store: OutputStore) -> None:
    acked: list[int] = []
    store.take(chunk(0, b"hello "), acked.append)
    assert await read(store) == b"hello "
    assert acked == []
    store.take(chunk(6, b"world"), acked.append)
    await until(lambda: acked)
    assert acked == [11]


async def test_an_acknowledgement_comes_after_both_files_were_synced(
    store: OutputStore, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    original = sync_fd

    def watched(fd: int, *, data_only: bool = False) -> None:
        original(fd, data_only=data_only)
        order.append(Path(f"/proc/self/fd/{fd}").readlink().suffix)

    monkeypatch.setattr("tenure.controller.attempt_output.sync_fd", watched)
    store.take(chunk(0, b"x"), lambda offset: order.append(f"ack {offset}"))
    await until(lambda: "ack 1" in order)
    assert order == [".bin", ".idx", "ack 1"]
    assert layout.output_idx("j1", 1).stat().st_size == RUN.size


async def test_much_unsynced_output_is_not_made_to_wait(store: OutputStore) -> None:
    acked: list[int] = []
    began = time.monotonic()
    size = 1 << 18
    for number in range(64):
        store.take(chunk(number * size, bytes(size)), acked.append)
        await until(lambda number=number: acked and acked[-1] >= (number - 3) * size)  # type: ignore[misc]
    await until(lambda: acked[-1] == 64 * size)
    assert time.monotonic() - began < 10.0, "16 MiB in windows of 1 MiB, at 50 ms each, and a slow disk besides"


async def test_a_gap_is_answered_once_with_where_to_go_on(store: OutputStore) -> None:
    acked: list[int] = []
    store.take(chunk(0, b"abc"), acked.append)
    await until(lambda: acked == [3])
    for offset in (10, 20, 30):  # all that was under way when something was lost
        store.take(chunk(offset, b"later"), acked.append)
    assert acked == [3, 3]
    await asyncio.sleep(0.12)
    store.take(chunk(10, b"later"), acked.append)
    assert acked == [3, 3, 3]
    assert await read(store) == b"abc"


async def test_a_repeated_chunk_is_acknowledged_again(store: OutputStore) -> None:
    acked: list[int] = []
    store.take(chunk(0, b"abc"), acked.append)
    await until(lambda: acked == [3])
    store.take(chunk(0, b"abc"), acked.append)
    await until(lambda: acked == [3, 3])


async def test_output_that_goes_on_while_a_sync_is_under_way_is_exact(
    store: OutputStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    holding, original = threading.Event(), sync_fd

    def slow(fd: int, *, data_only: bool = False) -> None:
        holding.wait(5)
        original(fd, data_only=data_only)

    monkeypatch.setattr("tenure.controller.attempt_output.sync_fd", slow)
    monkeypatch.setattr("tenure.controller.attempt_output.sync_dir", lambda path: None)
    acked: list[int] = []
    for number in range(50):
        store.take(chunk(2 * number, b"%02d" % number), acked.append)
        await asyncio.sleep(0.002)
    assert acked == []
    wanted = b"".join(b"%02d" % number for number in range(50))
    assert await read(store) == wanted
    store.forget("j1")  # its files must not be closed under the sync
    holding.set()
    await until(lambda: acked and acked[-1] == 100)
    await until(lambda: not store._held)
    assert await read(store) == wanted
    assert acked == sorted(acked)


async def test_a_failed_sync_acknowledges_nothing_and_the_agent_is_told_to_send_again(
    store: OutputStore, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    acked: list[int] = []
    store.take(chunk(0, b"kept"), acked.append)
    await until(lambda: acked == [4])
    original = sync_fd

    def failing(fd: int, *, data_only: bool = False) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("tenure.controller.attempt_output.sync_fd", failing)
    store.take(chunk(4, b"lost"), acked.append)
    await until(lambda: store.failure)
    assert store.failure is not None
    assert "Input/output error" in store.failure
    await until(lambda: acked == [4, 4])  # go on from 4: what was not durable is forgotten
    monkeypatch.setattr("tenure.controller.attempt_output.sync_fd", original)
    store.take(chunk(4, b"lost"), acked.append)
    await until(lambda: acked == [4, 4, 8])
    assert store.failure is None
    assert await read(store) == b"keptlost"


async def test_other_jobs_do_not_suffer_from_one_that_cannot_be_stored(store: OutputStore, layout: Layout) -> None:
    layout.output_bin("j1", 1).mkdir()
    acked: list[int] = []
    store.take(chunk(0, b"x"), acked.append)
    assert store.failure
    store.take(chunk(0, b"fine", job="j2"), acked.append)
    await until(lambda: acked == [4])
    layout.output_bin("j1", 1).rmdir()
    await until(lambda: acked == [4, 0])  # send again from 0
    store.take(chunk(0, b"xy"), acked.append)
    await until(lambda: acked == [4, 0, 2])


async def _resends(store: OutputStore, data: bytes, acked: list[int], seconds: float = 15.0) -> None:
    """What an agent does: sends from the acknowledged offset on, a piece at a time, and again when told the same."""
    end, seen = time.monotonic() + seconds, -1
    while not acked or acked[-1] < len(data):
        assert time.monotonic() < end, f"stuck at {acked[-3:]}"
        if len(acked) != seen:
            seen = len(acked)
            start = acked[-1] if acked else 0
            store.take(chunk(start, data[start : start + 30_000]), acked.append)
        await asyncio.sleep(0.005)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.root(reason="a disk that is really full, made of a small tmpfs")
async def test_a_full_disk_keeps_what_was_acknowledged_and_takes_the_rest_when_there_is_room(small_disk: Path) -> None:
    layout = Layout(small_disk, "m")
    for folder in (layout.controller, layout.output):
        folder.mkdir(parents=True, exist_ok=True)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(100_000))
    store = OutputStore(layout, lambda job: None, retry_s=0.05)
    data = os.urandom(180_000)
    acked: list[int] = []
    sending = asyncio.create_task(_resends(store, data, acked))
    await until(lambda: store.failure is not None)
    assert "No space left" in str(store.failure)
    told = len(acked)
    await until(lambda: len(acked) >= told + 3)  # it goes on asking, at its pace
    assert acked[-1] < len(data)
    assert await read(store) == data[: acked[-1]] or len(await read(store)) > acked[-1]
    filler.unlink()
    await sending
    assert store.failure is None
    assert await read(store) == data
    await store.close()
    assert layout.output_bin("j1", 1).read_bytes() == data


async def test_a_limit_on_file_sizes_is_survived_too(store: OutputStore, layout: Layout) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    data = os.urandom(100_000)
    acked: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64_000, before[1]))
        sending = asyncio.create_task(_resends(store, data, acked))
        await until(lambda: store.failure is not None)
        assert acked[-1] <= 64_000
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    await sending
    assert await read(store) == data


async def test_no_more_files_are_held_open_than_allowed(store: OutputStore) -> None:
    acked: dict[str, int] = {}
    for number in range(MAX_OPEN + 20):
        job = f"j{number}"
        store.take(chunk(0, b"x", job=job), partial(acked.__setitem__, job))
    await until(lambda: len(acked) == MAX_OPEN + 20)
    store.take(chunk(0, b"x", job="last"), lambda offset: None)
    await until(lambda: len([held for held in store._held.values() if held.output]) <= MAX_OPEN + 1)
    assert await read(store, "j0") == b"x"


async def test_closing_makes_everything_durable(layout: Layout) -> None:
    store = OutputStore(layout, lambda job: None)
    acked: list[int] = []
    store.take(chunk(0, b"at the last moment"), acked.append)
    await store.close()
    assert acked == [18]
    again = OutputStore(layout, lambda job: None)
    assert await read(again) == b"at the last moment"
    assert again.size("j1", 1) == 18
    await again.close()


@pytest.mark.parametrize("job", ["../../etc/passwd", "", "a/b", "j1.2/../x"])
async def test_a_name_that_is_no_job_is_refused(store: OutputStore, job: str) -> None:
    with pytest.raises(ValueError, match="not a job"):
        store.take(chunk(0, b"x", job=job), lambda offset: None)
    assert not store._held
