"""The evidence behind a verdict, line by line, as ``rc verify`` prints it: in short for people, in full on request."""

from __future__ import annotations

from collections.abc import Collection

from tenure.domain.names import names
from tenure.domain.use_records import DeviceVerdict, JobVerdict, Tally, Verdict
from tenure.domain.use_words import NOT_APPLICABLE, cause_words, cpu_words, limits_words, over, process_words


def explain(job: JobVerdict, *, verbose: bool = False, simulated: Collection[str] = ()) -> list[str]:
    """The verdict first, then each device with what was looked at and what could not answer, then the limits, once.

    In short, devices of which the very same is to be said share a line, and of ``simulated`` ones it is not said again
    that their driver has no handles to open. ``verbose`` gives each device its own line, with every instrument, the
    window, its restarts and the changes of the verdict.
    """
    lines = [f"verdict: {job.label.replace('_', ' ')}"]
    if job.verdict is Verdict.NOT_APPLICABLE:
        return [*lines, NOT_APPLICABLE]
    groups: dict[tuple[str, ...], list[str]] = {}
    for device in job.devices:
        under = _evidence(device) if verbose else _open_questions(device, device.device in simulated)
        groups.setdefault((device.device if verbose else "", device.words, *under), []).append(device.device)
    for (_, words, *under), together in groups.items():
        lines += [f"{names(together)}: {words}", *(f"  {line}" for line in under)]
    if job.cpu is not None:
        lines.append(f"CPU: {cpu_words(job.cpu)}")
    if job.changes and (verbose or len(job.changes) > 1):
        dropped = f" ({job.changes_dropped} between not kept)" if job.changes_dropped else ""
        start = min(device.started_at for device in job.devices)
        steps = ", ".join(f"{change.label.replace('_', ' ')} at {change.at - start:.0f} s" for change in job.changes)
        lines.append(f"verdict changes: {steps}{dropped}")
    return lines + list(dict.fromkeys(filter(None, (limits_words(device.limits) for device in job.devices))))


def _open_questions(device: DeviceVerdict, simulated: bool) -> list[str]:
    """What could not answer, and what of the answers does not fit together."""
    silent = [tally for tally in device.instruments if tally.unavailable]
    lines = [f"could not always answer: {', '.join(map(_silence, silent))}"] if silent else []
    return lines if simulated else lines + _caution(device)


def _silence(tally: Tally) -> str:
    why = f", {tally.last_reason.value}" if tally.last_reason is not None else ""
    return f"{tally.instrument} ({tally.unavailable} of {tally.answered + tally.unavailable} times{why})"


def _caution(device: DeviceVerdict) -> list[str]:
    count = device.listed_without_handles
    said = f"caution: at {count} instants the job was listed while no driver handle was open in its tree"
    return [said] if count else []


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
    lines += _caution(device)
    if device.late_samples:
        lines.append(f"samples dropped because they came late or twice: {device.late_samples}")
    return lines


def _tally(tally: Tally) -> str:
    last = f" (last: {tally.last_reason.value})" if tally.last_reason is not None else ""
    return f"{tally.instrument}: answered {tally.answered} times, could not {tally.unavailable} times{last}"
