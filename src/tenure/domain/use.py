"""Proof of use: what a job really did with its devices, said only as far as it was observed.

The public face of the part. ``use_records`` holds the records, ``use_instant`` reads one instant, ``use_window`` folds
instants into runs, ``use_verdict`` judges one device, ``use_words`` and ``use_report`` make the sentences; here the
devices become the verdict of a job, and what follows from it is decided.

    state = begin("h:gpu0", started_at=mono, baseline=baseline)      # one per leased device
    job = begin_job([state])
    job = observe_job(job, [sample])                                 # per instant, bounded memory
    after = judge_job(job, now=mono)                                 # final=True at the job's end
    notice = announcement(before, after, already)                    # to be recorded durably, then said, once

A batch of recorded samples is judged by the same functions: ``verdict(fold(begin(...), samples), final=True)``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tenure.domain.use_json import decode, encode
from tenure.domain.use_records import (
    Accounting,
    Announcement,
    AnnouncementKind,
    Cause,
    CpuMark,
    CpuUse,
    DeviceSample,
    DeviceVerdict,
    Handles,
    JobVerdict,
    Limits,
    ListedProcess,
    Processes,
    Restart,
    Tally,
    Verdict,
    VerdictChange,
    Window,
)
from tenure.domain.use_report import explain
from tenure.domain.use_verdict import verdict
from tenure.domain.use_window import UseState, begin, fold, observe
from tenure.domain.use_words import PROCEDURE, job_words

__all__ = [
    "PROCEDURE",
    "Accounting",
    "Announcement",
    "AnnouncementKind",
    "Cause",
    "CpuMark",
    "CpuUse",
    "DeviceSample",
    "DeviceVerdict",
    "Handles",
    "JobUse",
    "JobVerdict",
    "Limits",
    "ListedProcess",
    "Processes",
    "Restart",
    "Tally",
    "UseState",
    "Verdict",
    "VerdictChange",
    "Window",
    "announcement",
    "begin",
    "begin_job",
    "exit_code",
    "explain",
    "fold",
    "job_verdict",
    "job_verdict_from_dict",
    "judge_job",
    "observe",
    "observe_job",
    "sample_from_dict",
    "strict_code",
    "to_dict",
    "verdict",
]

_CHANGES_KEPT = 32


@dataclass(frozen=True, slots=True)
class JobUse:
    """The fold of a whole job: one ``UseState`` a leased device, and the changes of the job's verdict so far."""

    devices: tuple[UseState, ...]
    changes: tuple[VerdictChange, ...] = ()
    changes_dropped: int = 0


# --- the job ----------------------------------------------------------------------------------------------------


def job_verdict(
    devices: Sequence[DeviceVerdict],
    *,
    cpu: CpuUse | None = None,
    changes: tuple[VerdictChange, ...] = (),
    changes_dropped: int = 0,
) -> JobVerdict:
    """The job's verdict from its devices': all used = used; some used = partial; none used and any unknown = unknown;
    else context_idle if any has a context, else no_context. A lease without a GPU states no verdict.

    ``cpu`` left out: what the tree spent over the window that began last, which lies within all the others.
    """
    kinds = [device.verdict for device in devices]
    used = kinds.count(Verdict.USED)
    if not devices:
        kind = Verdict.NOT_APPLICABLE
    elif used:
        kind = Verdict.USED if used == len(devices) else Verdict.PARTIAL
    else:
        kind = next(k for k in (Verdict.UNKNOWN, Verdict.CONTEXT_IDLE, Verdict.NO_CONTEXT) if k in kinds)
    reasons = tuple(cause for device in devices for cause in device.reasons) if kind is Verdict.UNKNOWN else ()
    judged = JobVerdict(
        verdict=kind,
        used=used,
        of=len(devices),
        words="",
        devices=tuple(devices),
        reasons=reasons,
        cpu=cpu if cpu is not None else _cpu(devices),
        changes=changes,
        changes_dropped=changes_dropped,
        at=max((device.at for device in devices), default=None),
        final=bool(devices) and all(device.final for device in devices),
    )
    return replace(judged, words=job_words(judged))


def _cpu(devices: Sequence[DeviceVerdict]) -> CpuUse | None:
    windows = [device.window for device in devices if device.window is not None]
    return max(windows, key=lambda window: window.start).cpu if windows else None


def begin_job(devices: Iterable[UseState]) -> JobUse:
    """The fold of a job over its leased devices; none for a lease without a GPU."""
    return JobUse(tuple(devices))


def observe_job(job: JobUse, samples: Iterable[DeviceSample]) -> JobUse:
    """One instant of the job's devices; samples are matched by device, and a device may be missing from an instant."""
    by_device = {state.device: state for state in job.devices}
    at = None
    for sample in samples:
        if sample.device not in by_device:
            raise ValueError(f"a sample of {sample.device}, which is not leased to this job")
        by_device[sample.device] = observe(by_device[sample.device], sample)
        at = sample.at if at is None else max(at, sample.at)
    job = replace(job, devices=tuple(by_device[state.device] for state in job.devices))
    return job if at is None else _note_change(job, at)


def _note_change(job: JobUse, at: float) -> JobUse:
    now = judge_job(job, now=at)
    last = job.changes[-1].label if job.changes else Verdict.UNKNOWN.value
    if now.label == last:
        return job
    changes, dropped = (*job.changes, VerdictChange(at, now.label)), job.changes_dropped
    if len(changes) > 2 * _CHANGES_KEPT:
        changes, dropped = changes[:_CHANGES_KEPT] + changes[_CHANGES_KEPT + 1 :], dropped + 1
    return replace(job, changes=changes, changes_dropped=dropped)


def judge_job(job: JobUse, *, now: float | None = None, final: bool = False) -> JobVerdict:
    """The job's verdict at ``now``, with its changes so far; ``final`` at the job's end."""
    devices = [verdict(state, now=now, final=final) for state in job.devices]
    return job_verdict(devices, changes=job.changes, changes_dropped=job.changes_dropped)


# --- what follows from it ---------------------------------------------------------------------------------------


def announcement(
    before: JobVerdict | None, after: JobVerdict, already: Collection[AnnouncementKind]
) -> Announcement | None:
    """What has to be recorded durably and then said now, if anything.

    ``already`` holds the kinds that this phase has announced, from the durable record: each goes out once. Whether
    something is due depends on ``after`` alone, so that an announcement missed by a restart is made up for; ``before``
    only serves the words.
    """
    found = _due(after)
    if found is None or found[0] in already:
        return None
    kind, conclusive_one, words = found
    became = f" (was {before.label})" if before is not None and before.label != after.label else ""
    return Announcement(kind, conclusive_one, after.label, f"{words}{became}", PROCEDURE, after.at)


def _due(after: JobVerdict) -> tuple[AnnouncementKind, bool, str] | None:
    if after.verdict is Verdict.NO_CONTEXT:
        return AnnouncementKind.WARNING, True, f"GPU leased and not used: {after.words}"
    zeros = [device for device in after.devices if device.unsettled_zero]
    if after.verdict is Verdict.UNKNOWN and zeros:
        if all(device.unsettled_zero or device.verdict is Verdict.NO_CONTEXT for device in after.devices):
            words = (
                f"not conclusive: memory read exactly 0 throughout, but another instrument left it open; {after.words}"
            )
            return AnnouncementKind.WARNING, False, words
        return None
    without = [device for device in after.devices if device.verdict is Verdict.NO_CONTEXT]
    idle = [device for device in after.devices if device.verdict is Verdict.CONTEXT_IDLE]
    mixed = after.verdict is Verdict.CONTEXT_IDLE and without
    if mixed or (after.verdict is Verdict.PARTIAL and (without or idle)):
        return AnnouncementKind.ADVISORY, True, f"some leased GPUs are not used: {after.words}"
    return None


def exit_code(verdict: JobVerdict) -> int:
    """``rc verify``: 0 used, 1 not used, partial or context_idle, 2 unknown (or no verdict: no GPU was leased)."""
    if verdict.verdict is Verdict.USED:
        return 0
    return 2 if verdict.verdict in (Verdict.UNKNOWN, Verdict.NOT_APPLICABLE) else 1


def strict_code(command_code: int, verdict: JobVerdict) -> int:
    """``rc run --strict``: turns only an exit code 0 into the verdict's, and only where a GPU was leased."""
    if command_code != 0 or verdict.verdict is Verdict.NOT_APPLICABLE:
        return command_code
    return exit_code(verdict)


def to_dict(record: JobVerdict | DeviceVerdict | DeviceSample | Announcement | JobUse) -> dict[str, Any]:
    """Plain JSON values, for reports, rows and sample logs."""
    encoded: dict[str, Any] = encode(record)
    return encoded


def job_verdict_from_dict(data: Mapping[str, Any]) -> JobVerdict:
    """The inverse of ``to_dict``; raises ValueError with the path to what does not fit."""
    return decode(JobVerdict, data)


def sample_from_dict(data: Mapping[str, Any]) -> DeviceSample:
    """The inverse of ``to_dict``; raises ValueError with the path to what does not fit."""
    return decode(DeviceSample, data)
