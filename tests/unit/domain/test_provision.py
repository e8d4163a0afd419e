"""What a job took, what it should ask for next, and whether memory was exhausted when it ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain import provision as p
from tenure.domain.quantity import comparable

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("peak", "offered"),
    [
        (0, "64M"),
        (1, "64M"),
        (53 * MIB, "64M"),
        (54 * MIB, "128M"),
        (412 * MIB, "512M"),
        (2 * GIB, "2560M"),
        (3 * GIB, "4G"),
        (40 * GIB, "48G"),
        (41 * GIB, "50G"),
    ],
)
def test_the_offer_is_the_peak_and_a_fifth_rounded_up(peak: int, offered: str) -> None:
    assert p.offer(p.Peak(peak, "x", False)) == offered


@given(st.integers(0, 1 << 50))
def test_an_offer_can_be_read_and_covers_the_peak_with_its_margin(peak: int) -> None:
    number = comparable(p.offer(p.Peak(peak, "x", False))).number
    assert number is not None
    assert number // 10**12 * 100 >= peak * 120


def test_the_best_instrument_that_answered_is_named() -> None:
    group = p.memory_peak(100, True, 900, 3, 50)
    assert group == p.Peak(100, "peak of its cgroup", False, "file cache included")
    tree = p.memory_peak(None, False, 900, 3, 50)
    assert tree is not None
    assert (tree.bytes, tree.lower) == (900, True)
    assert "count in each" in tree.note
    alone = p.memory_peak(None, False, 900, 1, 50)
    assert alone is not None
    assert not alone.note
    largest = p.memory_peak(None, False, 900, 1, 5000)
    assert largest == p.Peak(5000, "largest process, by the kernel's account", True)
    assert p.memory_peak(None, False, None, 0, None) is None


def test_a_floor_nobody_measured_is_marked_so() -> None:
    assert p.offered("--need-mem", None) == "not measured"
    assert "not measured" in p.floor_words(8 * GIB, None)
    peak = p.Peak(2 * GIB, "x", True)
    assert "covers the measured peak of 2.0 GiB" in p.floor_words(8 * GIB, peak)
    assert "is less than the measured peak" in p.floor_words(GIB, peak)
    assert p.peak_from(peak.plain()) == peak
    assert p.peak_from({}) is None


def sample(utc: float, **values: float) -> dict[str, object]:
    return {"utc": utc, "v": values}


def test_an_end_while_memory_was_exhausted_says_with_what_figures() -> None:
    last = [sample(90.0, memory_available=30 * GIB), sample(99.0, memory_available=41 * MIB, psi_memory_full=1.0)]
    words = p.exhausted(last, 100.0, 64 * GIB)
    assert words == "while memory was exhausted (MemAvailable 41.0 MiB of 64.0 GiB, 1 s before the end)"


@pytest.mark.parametrize(
    ("last", "ended", "kills", "found"),
    [
        ([sample(99.0, memory_available=30 * GIB, psi_memory_full=0.0)], 100.0, None, ""),
        ([sample(50.0, memory_available=MIB)], 100.0, None, ""),  # too long ago to speak of the end
        ([sample(99.0)], 100.0, None, ""),  # nothing was read: nothing is said
        ([], 100.0, 0, ""),
        ([sample(98.0, psi_memory_full=63.2)], 100.0, None, "all tasks waited for memory 63 % of the time, 2 s before"),
        ([], 100.0, 2, "the kernel killed 2 processes of this host for memory"),
    ],
)
def test_only_what_was_read_near_the_end_speaks_of_it(
    last: list[dict[str, object]], ended: float, kills: int | None, found: str
) -> None:
    words = p.exhausted(last, ended, 64 * GIB, kills)
    assert found in words
    assert bool(found) == bool(words)


def test_what_is_said_of_a_reboot_is_no_more_than_was_seen() -> None:
    last = sample(1000.0, memory_available=41 * MIB, psi_memory_full=55.0, load1=3.5)
    words = p.before_reboot(last, 64 * GIB, 1100.0, 1030.0)
    assert "100 s old now, says MemAvailable 41.0 MiB of 64.0 GiB, memory pressure 55.0 % (full, 10 s)" in words
    assert "at most 30 s after it (derived from uptime, if the wall clock was right)" in words
    assert words.endswith("a sampler cannot see a reboot coming")
    assert "is not known" in p.before_reboot(last, None, 1100.0, None)
    assert "says nothing" in p.before_reboot(last, None, 1100.0, 900.0)
    assert "MemAvailable not read, memory pressure not read" in p.before_reboot(sample(1.0), None, 2.0, None)
