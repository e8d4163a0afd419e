"""Who hops from process to process is met by its collector's list, and nobody else is touched."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tenure.agent import hoppers
from tenure.agent.marks import same_mark

HOPPER = """
import mmap, os, resource, sys
resource.setrlimit(10, (int(sys.argv[2]),) * 2)
with open(sys.argv[1], "w+b") as file:
    file.truncate(4096)
    counted = mmap.mmap(file.fileno(), 4096)
if os.fork():
    os._exit(0)
hops = 0
while hops < 2_000_000:  # never for ever, whatever becomes of the test
    if os.fork():
        os._exit(0)
    os.setsid()
    hops += 1
    counted[:8] = hops.to_bytes(8, "little")
"""


@pytest.fixture
def mark() -> int:
    """A mark of this test's own, inside what this process may still lower its limit to."""
    limit = resource.getrlimit(10)[1]
    ones = 61 if limit == resource.RLIM_INFINITY else (~limit & (limit + 1)).bit_length() - 1
    if ones < 31:
        return limit  # inside somebody's job: the mark is theirs, and so is whatever is below
    kept = ones // 2
    own = int.from_bytes(os.urandom(8), "little") % ((1 << ones - kept) - 1)
    return (0 if limit == resource.RLIM_INFINITY else limit >> ones << ones) | own << kept | (1 << kept) - 1


def counter(path: Path) -> bytes:
    return path.read_bytes()[:8]


def test_a_hopper_is_met_and_a_bystander_is_not(tmp_path: Path, mark: int) -> None:
    path = tmp_path / "hops"
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        subprocess.run([sys.executable, "-c", HOPPER, path, str(mark)], check=True, timeout=30)
        end = time.monotonic() + 20
        while not path.exists() or counter(path) == bytes(8):
            assert time.monotonic() < end, "it never hopped"
            time.sleep(0.01)
        assert hoppers.hunt(mark, longest_s=30.0)
        before = counter(path)
        time.sleep(0.3)
        assert counter(path) == before
        assert bystander.poll() is None
    finally:
        hoppers.hunt(mark, longest_s=30.0)
        bystander.kill()
        bystander.wait()


def test_nobody_there_is_known_after_the_span_of_quiet(mark: int) -> None:
    began = time.monotonic()
    assert hoppers.hunt(mark, quiet_s=0.1)
    assert time.monotonic() - began >= 0.1


def test_where_the_kernel_shows_no_children_nothing_is_said(monkeypatch: pytest.MonkeyPatch, mark: int) -> None:
    monkeypatch.setattr(hoppers, "_children", lambda pid: None)
    assert not hoppers.hunt(mark)


def test_a_mark_within_a_mark_is_of_the_same_job() -> None:
    outer = 0b1010_1111_1111
    assert same_mark(outer, 0b1010_1111_1111)
    assert same_mark(outer, 0b1010_0110_1111)
    assert not same_mark(outer, 0b1011_1111_1111)
    assert not same_mark(outer, resource.RLIM_INFINITY)
