"""The sentences of the proof of use. Each says what was looked at, and nothing beyond it.

"At no time" is said only where the driver's accounting covered the job's whole life. Elsewhere it reads "at any of n
instants", with the largest gap between them. Times in sentences count from the job's start. A device's line leaves the
limits out and a job's only names them where they are not the defaults: they stand once, in full, in the report.
"""

from __future__ import annotations

from collections.abc import Iterable

from tenure.domain.names import names
from tenure.domain.reading import Reason
from tenure.domain.use_records import (
    Cause,
    CpuUse,
    DeviceVerdict,
    JobVerdict,
    Limits,
    ListedProcess,
    Verdict,
    Window,
)

PROCEDURE = (
    "Record this. Let the phase finish: nothing is stopped, migrated or preempted for it. "
    "File the plan defect. The width changes at the next phase boundary, not before."
)

NOT_APPLICABLE = "not applicable: no GPU was leased"

_NOUN = {
    Verdict.USED: "used",
    Verdict.CONTEXT_IDLE: "context idle",
    Verdict.NO_CONTEXT: "no context",
    Verdict.UNKNOWN: "unknown",
}


def seconds(value: float) -> str:
    """``60 s``, ``1.0 s``: whole above ten seconds, one decimal below."""
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def over(window: Window) -> str:
    """``61 instants over 60 s (largest gap 1.0 s)``."""
    plural = "" if window.instants == 1 else "s"
    gap = f" (largest gap {window.largest_gap:.1f} s)" if window.instants > 1 else ""
    return f"{window.instants} instant{plural} over {seconds(window.span)}{gap}"


def cause_words(cause: Cause) -> str:
    if cause.instrument == "window" and cause.detail:  # no instrument failed: there was too little to go by
        return f"{cause.detail} ({cause.reason.value})"
    return f"{cause.reason.value}: {cause.instrument}{f' ({cause.detail})' if cause.detail else ''}"


def causes_words(causes: Iterable[Cause]) -> str:
    """Several causes in one line; instruments that gave the very same one stand together."""
    groups: dict[tuple[Reason, str], list[str]] = {}
    for cause in causes:
        groups.setdefault((cause.reason, cause.detail), []).append(cause.instrument)
    return "; ".join(
        cause_words(Cause(reason, ", ".join(instruments), detail)) for (reason, detail), instruments in groups.items()
    )


def process_words(process: ListedProcess) -> str:
    """``pid 31337 (alice, python)``: who, where it is visible."""
    who = ", ".join(part for part in (process.user, process.command) if part)
    return f"pid {process.pid}{f' ({who})' if who else ''}"


def limits_words(limits: Limits) -> str | None:
    """None for the defaults; else what was asked for instead, and what the defaults are."""
    usual, note = Limits(), limits_note(limits)
    if note is None:
        return None
    return (
        f"{note}: at least {limits.samples} samples over at least "
        f"{limits.span_s:g} s, after a grace of {limits.grace_s:g} s, gaps up to {limits.max_gap_s:g} s (defaults: "
        f"{usual.samples}, {usual.span_s:g} s, {usual.grace_s:g} s, {usual.max_gap_s:g} s)"
    )


def limits_note(limits: Limits) -> str | None:
    """None for the defaults; else in two words whether a verdict of absence rests on less than they ask for."""
    usual = Limits()
    if limits == usual:
        return None
    shorter = limits.span_s < usual.span_s or limits.samples < usual.samples or limits.grace_s < usual.grace_s
    return "shortened window" if shorter else "changed window"


def cpu_words(cpu: CpuUse) -> str:
    return f"{cpu.cores:.1f} cores beside it ({cpu.cpu_s:.0f} CPU-seconds over {seconds(cpu.span_s)})"


def device_words(device: DeviceVerdict) -> str:
    """The one line of a device: verdict, what it rests on, and what has changed since."""
    parts = [_core(device)]
    if device.verdict is Verdict.USED and device.idle_since is not None:
        parts.append(f"idle since {_after(device, device.idle_since)}: {_idle_state(device)}")
    if device.verdict is not Verdict.UNKNOWN and device.blind_since is not None:
        why = f": {cause_words(device.blind_cause)}" if device.blind_cause is not None else ""
        parts.append(f"not known since {_after(device, device.blind_since)}{why}")
    if device.verdict is not Verdict.NO_CONTEXT and device.earlier is not None:
        parts.append(f"earlier: no context at any of {over(device.earlier)}")
    if device.contended:
        parts.append(f"contended: {', '.join(map(process_words, device.contenders))} listed on the device too")
    return "; ".join(parts)


def _after(device: DeviceVerdict, at: float) -> str:
    return f"{at - device.started_at:.0f} s after the start"


def _idle_state(device: DeviceVerdict) -> str:
    state = {
        Verdict.NO_CONTEXT: "no context any more in the current window",
        Verdict.CONTEXT_IDLE: "a context, no work in the current window",
    }
    return state.get(device.current, "no work at any instant since")


def _core(device: DeviceVerdict) -> str:
    window = device.window
    if window is None:
        return "unknown (window_too_short): no instant was looked at"
    if device.verdict is Verdict.NO_CONTEXT:
        looks = f"open files read at {window.looks} of them" if window.looks < window.instants else ""
        never = "at no time up to the last look a context of the job, by accounting that was on throughout; "
        parts = f"no context at any of {over(window)}{f'; {looks}' if looks else ''}"
        return f"{never}{parts}" if device.accounting_whole_life else parts
    if device.verdict is Verdict.USED:
        assert device.first_work_at is not None
        assert device.last_work_at is not None
        return (
            f"used: work seen at {device.work_instants} of {over(window)}, first {_after(device, device.first_work_at)}"
            f", last {_after(device, device.last_work_at)}"
        )
    if device.verdict is Verdict.CONTEXT_IDLE:
        seen = f"a context at {device.context_instants} of {device.life.instants if device.life else 0} instants"
        return f"context idle: {seen}, no work at any of {over(window)}"
    return _unknown(device, window)


def _unknown(device: DeviceVerdict, window: Window) -> str:
    why = causes_words(device.reasons)
    seen, looked = "", f"; looked at {over(window)}"
    if device.context_seen:
        waiting = device.reason in (Reason.WINDOW_TOO_SHORT, Reason.SAMPLING_GAP)
        work = "no work seen so far" if waiting else "work unknown"
        seen, looked = f"a context at {device.context_instants} of {over(window)}, {work}; ", ""
    zero = f"; memory read exactly 0 at each of {over(device.zero)}" if device.zero is not None else ""
    return f"unknown: {seen}{why}{looked}{zero}"


def job_words(job: JobVerdict) -> str:
    """The one line of a job."""
    if job.verdict is Verdict.NOT_APPLICABLE:
        return NOT_APPLICABLE
    parts = [_job_core(job)]
    contended = [device for device in job.devices if device.contended]
    if contended and job.of > 1:
        parts.append(f"contended: {_names(contended)}")
    parts += sorted({note for device in job.devices if (note := limits_note(device.limits)) is not None})
    if job.cpu is not None:
        parts.append(cpu_words(job.cpu))
    return "; ".join(parts)


def _names(devices: Iterable[DeviceVerdict]) -> str:
    return names(device.device for device in devices)


def _job_core(job: JobVerdict) -> str:
    if job.of == 1:
        return job.devices[0].words
    if job.verdict is Verdict.NO_CONTEXT:
        return _no_context_everywhere(job)
    groups = []
    for kind, noun in _NOUN.items():
        members = [device for device in job.devices if device.verdict is kind]
        if members:
            groups.append(f"{noun} {len(members)} of {job.of} ({_names(members)})")
    blind = next((device for device in job.devices if device.reasons), None)
    why = f"; {blind.device}: {cause_words(blind.reasons[0])}" if blind is not None else ""
    idle = [device for device in job.devices if device.idle_since is not None]
    since = (
        f"; idle again: {', '.join(f'{d.device} since {_after(d, d.idle_since or 0.0)}' for d in idle)}" if idle else ""
    )
    dark = [d for d in job.devices if d.verdict is not Verdict.UNKNOWN and d.blind_since is not None]
    lost = f"; not known any more: {_names(dark)}" if dark else ""
    return f"{job.label.replace('_', ' ')}: {', '.join(groups)}{why}{since}{lost}"


def _no_context_everywhere(job: JobVerdict) -> str:
    windows = [device.window for device in job.devices if device.window is not None]
    fewest, shortest = min(w.instants for w in windows), min(w.span for w in windows)
    alike = all(w.instants == fewest and w.span == shortest for w in windows)
    least = Window(0.0, shortest, fewest, max(w.largest_gap for w in windows))
    never = "; at no time, by accounting" if all(device.accounting_whole_life for device in job.devices) else ""
    bound = "" if alike else "at least "
    return f"no context on any of {job.of} ({_names(job.devices)}) at any of {bound}{over(least)}{never}"
