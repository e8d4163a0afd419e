"""Proof of use: what a job really did with its devices, said only as far as it was observed.

The public face of the part; see ``use_records`` for the records, ``use_window`` for the fold over samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenure.domain.reading import Reading
from tenure.domain.use_records import (
    Announcement,
    AnnouncementKind,
    CpuUse,
    DeviceSample,
    DeviceVerdict,
    JobVerdict,
    Limits,
    VerdictChange,
)


@dataclass(frozen=True, slots=True)
class UseState:
    device: str
    started_at: float
    baseline: Reading[int]
    limits: Limits


@dataclass(frozen=True, slots=True)
class JobUse:
    """The fold of a whole job: one ``UseState`` a leased device, and the changes of the job's verdict so far."""

    devices: tuple[UseState, ...]
    changes: tuple[VerdictChange, ...] = ()
    changes_dropped: int = 0


def begin(device: str, *, started_at: float, baseline: Reading[int], limits: Limits | None = None) -> UseState:
    raise NotImplementedError


def observe(state: UseState, sample: DeviceSample) -> UseState:
    raise NotImplementedError


def fold(state: UseState, samples: Iterable[DeviceSample]) -> UseState:
    raise NotImplementedError


def verdict(state: UseState, *, now: float | None = None, final: bool = False) -> DeviceVerdict:
    raise NotImplementedError


def job_verdict(
    devices: Sequence[DeviceVerdict],
    *,
    cpu: CpuUse | None = None,
    changes: tuple[VerdictChange, ...] = (),
    changes_dropped: int = 0,
) -> JobVerdict:
    raise NotImplementedError


def begin_job(devices: Iterable[UseState]) -> JobUse:
    raise NotImplementedError


def observe_job(job: JobUse, samples: Iterable[DeviceSample]) -> JobUse:
    """One instant of all the job's devices (samples are matched by ``device``)."""
    raise NotImplementedError


def judge_job(job: JobUse, *, now: float | None = None, final: bool = False) -> JobVerdict:
    raise NotImplementedError


def announcement(
    before: JobVerdict | None, after: JobVerdict, already: Collection[AnnouncementKind]
) -> Announcement | None:
    raise NotImplementedError


def exit_code(verdict: JobVerdict) -> int:
    raise NotImplementedError


def strict_code(command_code: int, verdict: JobVerdict) -> int:
    """``rc run --strict``: turns only an exit code 0 into the verdict's."""
    raise NotImplementedError


def explain(verdict: JobVerdict) -> list[str]:
    raise NotImplementedError


def to_dict(record: Any) -> dict[str, Any]:
    raise NotImplementedError


def job_verdict_from_dict(data: Mapping[str, Any]) -> JobVerdict:
    raise NotImplementedError


def sample_from_dict(data: Mapping[str, Any]) -> DeviceSample:
    raise NotImplementedError
