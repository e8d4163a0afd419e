"""Samples put together: counts add up, and no excursion is lost however often it is done."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tenure.domain import host_record as record

NAMES = ("memory_available", "psi_memory_full", "load1")


@st.composite
def samples(draw: st.DrawFn) -> list[dict[str, Any]]:
    found, utc = [], 1000.0
    for _ in range(draw(st.integers(1, 60))):
        utc += draw(st.floats(0.5, 90.0))
        read = draw(st.sets(st.sampled_from(NAMES)))
        values = {name: draw(st.integers(0, 1000)) for name in sorted(read)}
        found.append({"utc": utc, "v": values, "un": {name: "timeout" for name in NAMES if name not in read}})
    return found


@given(samples(), st.integers(1, 8))
def test_blocks_keep_every_extreme_count_and_sum(given_samples: list[dict[str, Any]], most: int) -> None:
    blocks = record.thinned(record.in_blocks(given_samples, 60.0), most)
    assert len(blocks) <= most
    whole = record.block_from(record.plain(blocks[0]))
    for block in blocks[1:]:
        assert block.since > whole.until
        whole = record.merged(whole, block)
    assert whole.samples == len(given_samples)
    assert (whole.since, whole.until) == (given_samples[0]["utc"], given_samples[-1]["utc"])
    times = [sample["utc"] for sample in given_samples]
    assert whole.gap == max((b - a for a, b in pairwise(times)), default=0.0)
    for name in NAMES:
        seen = [sample["v"][name] for sample in given_samples if name in sample["v"]]
        if seen:
            assert whole.values[name] == (len(seen), sum(seen), min(seen), max(seen))
        else:
            assert name not in whole.values
            assert whole.unavailable[name] == (len(given_samples), "timeout")


def test_a_summary_names_what_was_never_read() -> None:
    sample = {"utc": 5.0, "v": {"load1": 2.0}, "un": {"memory_available": "no_permission"}}
    told = record.summary(record.block_of(sample), sample)
    assert told["lowest"] == {}
    assert told["highest"] == {"load1": 2.0}
    assert told["unavailable"] == {"memory_available": "no_permission"}
