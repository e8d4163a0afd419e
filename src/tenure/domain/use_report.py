"""The evidence behind a verdict, line by line, as ``rc verify`` prints it."""

from __future__ import annotations

from tenure.domain.use_records import DeviceVerdict, JobVerdict, Tally, Verdict
from tenure.domain.use_words import cause_words, cpu_words, limits_words, over, process_words


def explain(job: JobVerdict) -> list[str]:
    """Verdict first, then each device with what was looked at, what answered, and what broke its window."""
    lines = [f"verdict: {job.label.replace('_', ' ')}", job.words]
    if job.verdict is Verdict.NOT_APPLICABLE:
        return lines
    for device in job.devices:
        lines.append(f"{device.device}: {device.words}")
        lines += [f"  {line}" for line in _evidence(device)]
    if job.cpu is not None:
        lines.append(f"CPU: {cpu_words(job.cpu)}")
    if job.changes:
        dropped = f" ({job.changes_dropped} between not kept)" if job.changes_dropped else ""
        start = min(device.started_at for device in job.devices)
        steps = ", ".join(f"{change.label} at {change.at - start:.0f} s" for change in job.changes)
        lines.append(f"verdict changes: {steps}{dropped}")
    return lines


def _evidence(device: DeviceVerdict) -> list[str]:
    start = device.started_at
    lines = []
    if device.life is not None:
        lines.append(f"looked at: {over(device.life)}; open files read at {device.life.looks} of them")
    if device.window is not None and device.verdict in (Verdict.NO_CONTEXT, Verdict.CONTEXT_IDLE):
        window = device.window
        looks = f", {window.looks} looks at the open files (largest gap {window.largest_look_gap:.1f} s)"
        lines.append(f"window: {window.start - start:.0f} s to {window.end - start:.0f} s, {over(window)}{looks}")
    if device.first_context_at is not None and device.last_context_at is not None:
        first, last = device.first_context_at - start, device.last_context_at - start
        lines.append(f"context: at {device.context_instants} instants, first at {first:.0f} s, last at {last:.0f} s")
    if device.first_work_at is not None and device.last_work_at is not None:
        first, last = device.first_work_at - start, device.last_work_at - start
        lines.append(f"work: at {device.work_instants} instants, first at {first:.0f} s, last at {last:.0f} s")
    if device.current is not device.verdict:
        lines.append(f"current window: {device.current.value.replace('_', ' ')}")
    lines += [f"reason: {cause_words(cause)}" for cause in device.reasons]
    lines += [f"instrument: {_tally(tally)}" for tally in device.instruments]
    if device.last_restart is not None:
        restart = device.last_restart
        cause = cause_words(restart.cause) if restart.cause is not None else "a context of the job"
        times = "once, at" if device.restarts == 1 else f"{device.restarts} times, last at"
        lines.append(f"window restarted {times} {restart.at - start:.0f} s: {cause}")
    if device.zero is not None:
        lines.append(f"memory: exactly 0 at each of {over(device.zero)}")
    lines += [f"contended by: {process_words(process)}" for process in device.contenders]
    if device.listed_without_handles:
        count = device.listed_without_handles
        lines.append(f"caution: at {count} instants the job was listed while no driver handle was open in its tree")
    if device.late_samples:
        lines.append(f"samples dropped because they came late or twice: {device.late_samples}")
    shortened = limits_words(device.limits)
    return lines + ([shortened] if shortened else [])


def _tally(tally: Tally) -> str:
    last = f" (last: {tally.last_reason.value})" if tally.last_reason is not None else ""
    return f"{tally.instrument}: answered {tally.answered} times, could not {tally.unavailable} times{last}"
