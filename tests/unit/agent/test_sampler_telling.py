"""A warning is written down before it is told, told until it is told, and made once; an end is judged at the end."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tenure.agent.sampler import REASONS_PAUSE_S, JobSampler, replay
from tenure.domain import use
from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.errors import TenureError
from tenure.probes import nvml_records, proc
from tenure.probes.nvml_parse import unavailable_sample

MIB = 1 << 20
WINDOW = {"grace_s": 0.0, "span_s": 4.0, "samples": 4, "max_gap_s": 15.0}
UUID, NAME = "GPU-1", "h:gpu0"


def entry() -> proc.ProcEntry:
    found = proc.read_entry(os.getpid())
    assert found is not None
    return found


def sample(at: float, fault: Reason | None = None) -> nvml_records.DeviceSample:
    why = Unavailable(Reason.NOT_SUPPORTED, at, "nvml", Scope.DEVICE)
    if fault is not None:
        return unavailable_sample(UUID, Unavailable(fault, at, "nvml", Scope.DEVICE, "words"), simulated=True)
    empty: Reading[Any] = Value((), at, "nvml.list", Scope.DEVICE)
    return replace(
        unavailable_sample(UUID, why, simulated=True),
        memory_used=Value(0, at, "mem", Scope.DEVICE),
        compute=empty,
        graphics=empty,
        mps=empty,
    )


class Job:
    """A sampler that is told one instant a second."""

    def __init__(self, path: Path, *, begin: bool = True) -> None:
        self.sampler = JobSampler(path, {UUID: NAME})
        self.at = 0.0
        if begin:
            baseline: Reading[int] = Value(0, 0.0, "mem", Scope.DEVICE)
            self.sampler.begin(started_at=0.0, baselines={UUID: baseline}, window=WINDOW)

    def second(self, fault: Reason | None = None) -> dict[str, Any] | None:
        self.at += 1.0
        handles: Reading[use.Handles] = Value(use.Handles(1), self.at, "proc.handles", Scope.PROCESS)
        samples = {UUID: sample(self.at, fault)}
        return self.sampler.observe(samples, [entry()], {os.getpid()}, handles=handles, same_namespace=True, resting={})

    def until_warned(self) -> dict[str, Any]:
        for _ in range(10):
            body = self.second()
            if body is not None:
                return body
        raise AssertionError("it was never warned of")


def test_what_was_not_told_is_given_again_and_what_was_told_is_not(tmp_path: Path) -> None:
    job = Job(tmp_path / "samples.log")
    first = job.until_warned()
    assert [one["kind"] for one in first["announcements"]] == ["warning"]
    again = job.second()
    assert again is not None
    assert again["announcements"] == first["announcements"], "the same one, at its own time"
    job.sampler.told()
    assert job.second() is None


def test_a_warning_is_on_the_disk_before_anybody_has_it(tmp_path: Path) -> None:
    job = Job(tmp_path / "samples.log")
    body = job.until_warned()
    found = replay(tmp_path / "samples.log")
    assert found is not None
    assert list(found[1].values()) == body["announcements"]


def test_the_next_agent_tells_it_where_the_last_one_may_not_have(tmp_path: Path) -> None:
    job = Job(tmp_path / "samples.log")
    body = job.until_warned()
    later = Job(tmp_path / "samples.log", begin=False)
    assert later.sampler.resume()
    later.at = job.at
    told = later.second()
    assert told is not None
    assert told["announcements"] == body["announcements"]
    later.sampler.told()
    assert later.second() is None


def test_a_warning_that_cannot_be_kept_is_not_given_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path / "samples.log")

    def full() -> None:
        raise TenureError("disk_full", "no room")

    monkeypatch.setattr(job.sampler, "sync", full)
    with pytest.raises(TenureError):
        job.until_warned()
    monkeypatch.undo()
    body = job.second()
    assert body is not None
    assert len(body["announcements"]) == 1


def test_an_end_long_after_the_last_instant_is_unknown(tmp_path: Path) -> None:
    job = Job(tmp_path / "samples.log")
    job.until_warned()
    assert job.sampler.final(job.at + 1.0)["verdict"] == "no_context"
    late = job.sampler.final(job.at + 900.0)
    assert (late["verdict"], late["reasons"][0]["reason"]) == ("unknown", "sampling_gap")
    assert len(late["announcements"]) == 1


def test_why_it_is_unknown_is_told_at_once_and_less_and_less_often_where_it_goes_to_and_fro(tmp_path: Path) -> None:
    job = Job(tmp_path / "samples.log")
    told = []
    for second in range(1200):
        body = job.second(Reason.TIMEOUT if second % 2 else Reason.GPU_LOST)
        if body is not None:
            told.append(job.at)
            job.sampler.told()
    assert told[0] == 1.0
    assert len(told) <= 12
    assert max(b - a for a, b in itertools.pairwise(told)) <= REASONS_PAUSE_S[1] + 2.0
