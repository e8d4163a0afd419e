"""One job's samples: what the instruments say of its devices becomes a log on disk and the verdict of use.

Every instant is appended to the attempt's ``samples.log`` and folded at once; the log is synced by its owner at least
every two seconds. A frame is ``{"utc", "samples": [...]}``, ``{"announced": {...}}`` or, once a minute, ``{"fold":
...}``: the whole fold so far, so that a restarted agent goes on from there instead of reading days of samples.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tenure.agent.instants import convert, cpu_of
from tenure.domain import use
from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.domain.use_instant import Work, read_instant
from tenure.domain.use_json import decode
from tenure.durable import FramedLog, read_frames
from tenure.errors import TenureError
from tenure.probes import nvml_records, proc

FOLD_EVERY_S = 60.0
PIDS_KEPT = 4096
#: Between two reports that differ only in why the verdict is unknown: at first, and at most, in seconds.
REASONS_PAUSE_S = (2.0, 300.0)
#: How often a job's devices may be asked, in seconds: below, an instrument is asked again before it has a new answer.
PERIODS_S = (0.1, 60.0)


class Shown(NamedTuple):
    """What makes a verdict news: its label, whether somebody else was seen on a device, which devices idle or cannot be
    looked at since they had more to say than ``unknown``, and why those that are unknown are."""

    label: str
    contended: bool = False
    idle: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()
    reasons: tuple[tuple[str, Reason], ...] = ()


class JobSampler:
    """The proof of use of one attempt. Not a task: it is told each instant and answers what to report.

    ``devices`` maps the UUIDs of the leased GPUs to their names. ``pids`` collects every process the tree was seen to
    have, as (pid -> start ticks). ``gpu_open``: at the last look the tree had something open that a context needs.
    ``period_s``: the seconds from one instant to the next. ``note_quiet``: since when the devices do nothing is kept
    too, for whoever asks ``quiet``.
    """

    def __init__(self, path: Path, devices: Mapping[str, str], *, period_s: float = 1.0) -> None:
        self.devices = dict(devices)
        self.period_s = period_s
        self.sampled_at = float("-inf")
        self.pids: dict[int, int] = {}
        self.looked_at = float("-inf")
        self.trouble = ""
        self.gpu_open = False
        self.note_quiet = False
        self._quiet: Reading[float] | None = None
        self._path = path
        self._log: FramedLog | None = None
        self._fold = use.begin_job([])
        self._announced: dict[str, dict[str, Any]] = {}
        self._last: use.JobVerdict | None = None
        self._reported: Shown | None = Shown("unknown")
        self._saying = self._reported
        self._reasons_at, self._reasons_pause_s = float("-inf"), REASONS_PAUSE_S[0]
        self._folded_at = 0.0

    def begin(self, *, started_at: float, baselines: Mapping[str, Reading[int]], window: Mapping[str, float]) -> None:
        """Begins with nothing looked at; ``window`` overrides the limits of the verdict."""
        limits, trouble = limits_from(window)
        self.trouble = "; ".join(filter(None, (self.trouble, trouble)))
        states = [
            use.begin(name, started_at=started_at, baseline=baselines[uuid], limits=limits)
            for uuid, name in self.devices.items()
        ]
        self._fold = use.begin_job(states)
        self._log = FramedLog.open(self._path, later=True)
        self._keep_fold(started_at)

    def resume(self) -> bool:
        """Goes on from what the log holds; gives whether it held a fold. Reads a file: run in a thread."""
        found = replay(self._path)
        if found is None:
            return False
        self._fold, self._announced, self.pids = found
        self._log = FramedLog.open(self._path)
        self._last = use.judge_job(self._fold)
        self._reported = None  # the one before may have ended between writing it down and telling it
        return True

    @property
    def limits(self) -> use.Limits:
        """The limits of the verdict."""
        return self._fold.devices[0].limits if self._fold.devices else use.Limits()

    def due_at(self) -> float:
        """When the next instant is due, on the monotonic clock."""
        return self.sampled_at + self.period_s

    def due(self, now: float) -> bool:
        """Whether an instant is due. A little early counts: a round that wakes just before would wait a whole one."""
        return now >= self.due_at() - min(0.05, self.period_s / 10)

    def look_due(self, now: float) -> bool:
        """Whether the open files of the tree are to be read in this instant."""
        return bool(self.devices) and now - self.looked_at >= self.limits.look_every_s - 0.5

    def observe(
        self,
        samples: Mapping[str, nvml_records.DeviceSample],
        tree: Sequence[proc.ProcEntry],
        here: set[int],
        *,
        handles: Reading[use.Handles] | None,
        same_namespace: bool,
        resting: Mapping[str, Sequence[str]],
    ) -> dict[str, Any] | None:
        """One instant. Gives the verdict to report where it is news, again each time until ``told`` is called.

        ``tree`` is the job's processes (the supervisor first), ``here`` every pid that existed just before or after.
        """
        living = {entry.pid for entry in tree}
        # A pid that was the job's counts on while nobody has it: drivers list a process for a moment after its end.
        own = living | {pid for pid in self.pids if pid not in here}
        self._remember(tree)
        cpu = cpu_of(tree)
        told = [
            convert(
                self.devices[uuid],
                sample,
                own,
                here,
                handles=handles,
                cpu=cpu,
                same_namespace=same_namespace,
                resting=resting.get(uuid, ()),
            )
            for uuid, sample in samples.items()
            if uuid in self.devices
        ]
        if handles is not None and told:
            self.looked_at = told[0].at
            self.gpu_open = isinstance(handles, Value) and bool(handles.value.open)
        if not told:
            return None
        self._append({"utc": time.time(), "samples": [use.to_dict(sample) for sample in told]})
        if self.note_quiet:
            self._quiet = self._still_quiet(told)
        self._fold = use.observe_job(self._fold, told)
        at = max(sample.at for sample in told)
        if at - self._folded_at >= FOLD_EVERY_S:
            self._keep_fold(at)
        return self._judge(at)

    def _still_quiet(self, told: Sequence[use.DeviceSample]) -> Reading[float]:
        """Since when every device was seen at every instant without certain or possible work of the job."""
        at, before = min(sample.at for sample in told), self._quiet
        by_name = {sample.device: sample for sample in told}
        for state in self._fold.devices:
            sample = by_name.get(state.device)
            if sample is None:
                detail = f"{state.device} was not looked at"
                return Unavailable(Reason.SAMPLING_GAP, at, "bounds.gpu", Scope.DEVICE, detail)
            instant = read_instant(sample, state.baseline, state.known)
            if instant.work is Work.SEEN:
                return Value(at, at, "bounds.gpu", Scope.DEVICE)
            if not instant.no_work:
                cause = instant.work_cause or next(iter((*instant.causes, *instant.look_causes)))
                detail = f"{state.device}: {cause.instrument}: {cause.detail or cause.reason}"
                return Unavailable(cause.reason, at, "bounds.gpu", Scope.DEVICE, detail)
        whole = isinstance(before, Value) and at - before.at <= self.limits.max_gap_s
        return Value(before.value if isinstance(before, Value) and whole else at, at, "bounds.gpu", Scope.DEVICE)

    def quiet(self, now: float) -> Reading[float]:
        """Since when no device was seen at work, as of the reading's own ``at``; unavailable where that is not known
        of the last instant, or that one is too long ago."""
        if self._quiet is None or now - self._quiet.at > self.limits.max_gap_s:
            gap = "no instant yet" if self._quiet is None else f"no instant for {now - self._quiet.at:.1f} s"
            return Unavailable(Reason.SAMPLING_GAP, now, "bounds.gpu", Scope.DEVICE, gap)
        return self._quiet

    def _remember(self, tree: Sequence[proc.ProcEntry]) -> None:
        for entry in tree:
            self.pids.pop(entry.pid, None)  # seen again: to the end of the line
            self.pids[entry.pid] = entry.start_ticks
        while len(self.pids) > PIDS_KEPT:
            self.pids.pop(next(iter(self.pids)))

    def recent_pids(self, count: int = 64) -> list[int]:
        """The pids seen last, for the driver's accounting."""
        return list(self.pids)[-count:]

    def _judge(self, at: float) -> dict[str, Any] | None:
        after = use.judge_job(self._fold, now=at)
        before, self._last = self._last, after
        if self._announce(before, after):
            self._reported = None
        shown, reported = _shown(after), self._reported
        if shown == reported:
            return None
        if reported is not None and shown._replace(reasons=reported.reasons) == reported:
            # Only why it is unknown has changed: told at once, but not again and again where it goes to and fro.
            if at < self._reasons_at + self._reasons_pause_s:
                return None
            self._reasons_pause_s = min(2 * self._reasons_pause_s, REASONS_PAUSE_S[1])
            self._reasons_at = at
        else:
            self._reasons_at, self._reasons_pause_s = float("-inf"), REASONS_PAUSE_S[0]
        self._saying = shown
        return self._body(after)

    def told(self) -> None:
        """What ``observe`` gave last is on its way for good."""
        self._reported = self._saying

    def _announce(self, before: use.JobVerdict | None, after: use.JobVerdict) -> bool:
        """Keeps a warning or an advisory that is due now, on the record before anybody is told."""
        already = [use.AnnouncementKind(kind) for kind in self._announced]
        notice = use.announcement(before, after, already)
        if notice is None:
            return False
        record = {**use.to_dict(notice), "utc": time.time()}
        self._append({"announced": record})
        self.sync()
        self._announced[notice.kind.value] = record
        return True

    def final(self, ended_at: float | None = None) -> dict[str, Any]:
        """The verdict at the job's end as its report tells it, with a warning that only the end settles.

        ``ended_at``: the end on the monotonic clock. A window that was over long before it proves nothing of the end.
        """
        end = use.judge_job(self._fold, now=ended_at, final=True)
        try:
            self._announce(self._last, end)
        except (OSError, TenureError) as error:
            self.trouble = f"a warning could not be kept: {error}"
        return self._body(end)

    def _body(self, verdict: use.JobVerdict) -> dict[str, Any]:
        body = {**use.to_dict(verdict), "utc": time.time()}
        notes = {"announcements": list(self._announced.values())} if self._announced else {}
        return {**body, "label": verdict.label, **notes, **({"trouble": self.trouble} if self.trouble else {})}

    def sync(self) -> None:
        """Makes every sample so far durable. Safe beside ``observe`` from another thread."""
        if (log := self._log) is not None:
            log.sync()

    def let_go(self) -> Callable[[], None]:
        """Nothing is kept from here on; the fold stays. What it gives syncs and closes the log, in any thread."""
        log, self._log = self._log, None

        def close() -> None:
            if log is not None:
                try:
                    log.sync()
                finally:
                    log.close()

        return close

    def close(self) -> None:
        """Syncs and closes the log; the fold stays."""
        self.let_go()()

    def _keep_fold(self, at: float) -> None:
        self._folded_at = at
        self._append({"fold": use.to_dict(self._fold), "announced": self._announced, "pids": list(self.pids.items())})

    def _append(self, record: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.append(json.dumps(record, separators=(",", ":")).encode())


def replay(path: Path) -> tuple[use.JobUse, dict[str, dict[str, Any]], dict[int, int]] | None:
    """(fold, announcements, pids) out of a log of samples: its last fold and what came after. None without a fold."""
    fold: use.JobUse | None = None
    announced: dict[str, dict[str, Any]] = {}
    pids: dict[int, int] = {}
    later: list[bytes] = []
    try:
        for frame in read_frames(path):
            if frame.payload.startswith(b'{"fold"'):
                body = json.loads(frame.payload)
                fold, announced, later = decode(use.JobUse, body["fold"]), body["announced"], []
                pids = {int(pid): int(start) for pid, start in body["pids"]}
            else:
                later.append(frame.payload)
    except FileNotFoundError:
        return None
    if fold is None:
        return None
    for payload in later:
        body = json.loads(payload)
        if "announced" in body:
            announced[body["announced"]["kind"]] = body["announced"]
        else:
            fold = use.observe_job(fold, [use.sample_from_dict(sample) for sample in body["samples"]])
    return fold, announced, pids


def period_from(window: Mapping[str, float], default: float) -> float:
    """The seconds between instants that a job asked for, within what an agent does; else the agent's own."""
    asked, (lowest, highest) = window.get("period_s"), PERIODS_S
    return default if asked is None else min(max(float(asked), lowest), highest)


def limits_from(window: Mapping[str, float]) -> tuple[use.Limits, str]:
    """The limits a job asked for, and in words what of them could not be used (then the defaults hold)."""
    given: dict[str, Any] = {k: v for k, v in window.items() if k in ("grace_s", "span_s", "samples", "max_gap_s")}
    if "samples" in given:
        given["samples"] = int(given["samples"])
    trouble = ""
    if "period_s" in window:
        # Instants asked for so far apart are no gap: one of two may go missing, as with the default.
        period_s = period_from(window, 1.0)
        given.setdefault("max_gap_s", max(use.Limits().max_gap_s, 2 * period_s))
        if period_s != window["period_s"]:
            trouble = f"sampled every {period_s:g} s, not every {window['period_s']:g} s as asked"
    try:
        return use.Limits(**given), trouble
    except ValueError as error:
        return use.Limits(), f"the limits asked for cannot be used, the defaults hold: {error}"


def _shown(verdict: use.JobVerdict) -> Shown:
    known = [d for d in verdict.devices if d.verdict is not use.Verdict.UNKNOWN]
    # That a window is still too short is how every job begins: no news.
    reasons = ((d.device, d.reason) for d in verdict.devices)
    return Shown(
        verdict.label,
        verdict.contended,
        tuple(d.device for d in known if d.idle_since is not None),
        tuple(d.device for d in known if d.blind_since is not None),
        tuple((name, why) for name, why in reasons if why is not None and why is not Reason.WINDOW_TOO_SHORT),
    )
