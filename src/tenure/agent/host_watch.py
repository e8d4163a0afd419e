"""What is sampled of one job: the host at that instant, with what its own tree, group and scratch take, in its log."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.agent import memory_ceilings as ceilings
from tenure.agent import records as r
from tenure.agent.folders import keeps_host_log
from tenure.domain import host_record
from tenure.domain.reading import Value
from tenure.durable import LogFailed
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.agent.host_log import HostLog
    from tenure.agent.runs import Run
    from tenure.agent.shell import Shell
    from tenure.probes.host_values import Flat
    from tenure.probes.proc import ProcTable

log = logging.getLogger("tenure.agent.telemetry")

#: A walk over the scratch is repeated after this many times its own cost, and not before ``WALK_S``.
WALK_SHARE, WALK_S = 200, 2.0
#: Samples that are kept in memory where there is no log.
EARLY_MOST = 12
_PAGE = os.sysconf("SC_PAGESIZE")


class Watch:
    """What is sampled of one job and kept of it. All but ``act`` may run in a thread; nothing in it is shared."""

    def __init__(self, shell: Shell, run: Run) -> None:
        self._shell, self._key = shell, run.key
        self.folder = run.folder
        self.trouble = ""
        self._supervisor = (run.handle.pid, run.handle.start_ticks) if run.handle is not None else None
        self._log: HostLog | None = None
        self._closed = False
        self._early: list[dict[str, Any]] = []
        self._cpu: tuple[float, float] | None = None
        self._ceiling: dict[str, Any] | None = None
        self._kills = 0
        self._scratch: Path | None = None
        self._walk_at = 0.0
        self._lock = threading.Lock()  # around what the end reads: a round may be under way in its thread

    def first(self) -> None:
        """The first sample, before there is a log: reads files of the kernel only."""
        self._early.append(self._sample(self._shell.host_sampler.look(self.folder), {}, {}))

    @property
    def goes_on(self) -> bool:
        """Whether an earlier agent has begun its log."""
        return (self.folder / "host.log").exists()

    def begin(self) -> None:
        """Opens the log, with what was sampled before. Waits for the disk."""
        from tenure.agent.host_log import HostLog

        try:
            self._ceiling = ceilings.ceiling_of(self.folder)
            opened = HostLog(self.folder / "host.log")
            opened.begin(self._shell.identity.boot_id, self._shell.host_sampler.memory_total)
            with self._lock:
                for sample in self._early:
                    opened.append(sample)
                self._log = opened
        except (OSError, ValueError, TenureError) as error:
            self.trouble = f"samples of the host cannot be kept: {error}"
            log.error("%s#%d: %s", *self._key, self.trouble)

    def sample(self, host: Flat, scan: Callable[[], ProcTable]) -> None:
        """One sample, to the log. ``scan`` gives all processes of the host, where the kernel tells no tree."""
        from tenure.probes import descent, proc

        if self._closed or self._supervisor is None:
            return
        if self._log is None and not self.trouble:
            self.begin()  # only now: a job that is over in no time leaves no file, and waits for none
        values: dict[str, float] = {}
        missing: dict[str, str] = {}
        pid, start = self._supervisor
        tree = descent.below(pid, start_ticks=start)
        if tree is None:
            tree = proc.tree(pid, scan(), start_ticks=start)
        if tree:
            self._of_tree(tree, time.monotonic(), values)
        else:
            missing |= dict.fromkeys(("tree_cpu_s", "tree_rss"), "sampling_gap")
        self._of_group(values, missing)
        self._of_scratch(values, missing)
        self._keep(self._sample(host, values, missing))

    def _keep(self, sample: dict[str, Any], *, last: bool = False) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = last
            try:
                if self._log is None:
                    self._early.append(sample)
                    del self._early[1:-EARLY_MOST]  # where no log can be opened: the first one and the last ones
                else:
                    self._log.append(sample)
            except (OSError, TenureError) as error:
                self.trouble = f"samples of the host could not be kept: {error}"

    def _of_tree(self, tree: Any, at: float, values: dict[str, float]) -> None:
        from tenure.probes import host_values, proc

        # It only grows; where less is seen, somebody was missed, and would look like a burst of work the next time.
        seconds = max(proc.cpu_seconds(tree), self._cpu[0] if self._cpu is not None else 0.0)
        if self._cpu is not None and at > self._cpu[1]:
            values["tree_cores"] = round(max(0.0, seconds - self._cpu[0]) / (at - self._cpu[1]), 3)
        self._cpu = (seconds, at)
        values["tree_cpu_s"] = seconds
        values["tree_processes"] = len(tree) - 1  # without its supervisor
        values["tree_rss"] = host_values.resident((entry.pid for entry in tree[1:]), _PAGE)

    def _of_group(self, values: dict[str, float], missing: dict[str, str]) -> None:
        from tenure.probes import memory_group

        group = self._ceiling["group"] if self._ceiling is not None else None
        if group is None:
            return
        seen = memory_group.look(Path(group))
        for name, reading in (("group_memory", seen.current), ("group_peak", seen.peak), ("group_kills", seen.kills)):
            if isinstance(reading, Value):
                values[name] = reading.value
            else:
                missing[name] = str(reading.reason)
        self._kills = int(values.get("group_kills", 0))

    def _of_scratch(self, values: dict[str, float], missing: dict[str, str]) -> None:
        """What the scratch takes, as often as it is cheap. A walk that never comes back is not repeated."""
        from tenure.agent import scratch
        from tenure.probes import disk, host

        now = time.monotonic()
        if self._scratch is None:
            self._scratch = scratch.place_of(self.folder)
        if self._scratch.parent != self.folder:  # elsewhere: its file system may be another than that of the attempts
            room = host.disk_free(str(self._scratch))
            if isinstance(room, Value):
                values["scratch_free"] = room.value.free
            else:
                missing["scratch_free"] = str(room.reason)
        if now < self._walk_at:
            return
        found = disk.usage(str(self._scratch))
        cost = time.monotonic() - now
        self._walk_at = now + max(WALK_S, WALK_SHARE * cost)
        if isinstance(found, Value):
            values["scratch_used"] = found.value.bytes
        else:
            missing["scratch_used"] = str(found.reason)

    def _sample(self, host: Flat, values: Mapping[str, float], missing: Mapping[str, str]) -> dict[str, Any]:
        return {"utc": time.time(), "at": time.monotonic(), "v": {**host[0], **values}, "un": {**host[1], **missing}}

    def act(self) -> None:
        """On the loop, after a sample: a job with a process killed at its ceiling ends as a whole."""
        if self._kills and self._ceiling is not None and self._key in self._shell.runs.live:
            reason = ceilings.look(self._ceiling).words
            with contextlib.suppress(LogFailed):  # said again after the next sample
                self._shell.tell(r.Overran(*self._key, reason))

    def last(self) -> None:
        """The last sample: the host, what the group says, and the scratch where a look at it is cheap."""
        values: dict[str, float] = {}
        missing: dict[str, str] = {}
        self._of_group(values, missing)
        self._of_scratch(values, missing)
        self._keep(self._sample(self._shell.host_sampler.look(self.folder), values, missing), last=True)

    def over(self) -> None:
        """Makes sure of a last sample, where there was no time for one that looks at everything."""
        if not self._closed:
            self._keep(self._sample(self._shell.host_sampler.look(self.folder), {}, {}), last=True)

    def sync(self) -> None:
        """Makes the log durable."""
        if self._log is not None and not self.trouble:
            try:
                self._log.sync()
            except TenureError as error:
                self.trouble = f"samples of the host could not be kept: {error}"
                log.error("%s#%d: %s", *self._key, self.trouble)

    def let_go(self) -> None:
        """Syncs the log where it stays, and closes it; any thread."""
        if keeps_host_log(self.folder):
            self.sync()
        if self._log is not None:
            self._log.close()

    def summary(self) -> dict[str, Any]:
        """What the outcome keeps; empty where the log knows more than was seen here. ``recent`` are the last samples,
        for what is to be said of the end."""
        from tenure.agent.host_log import Account

        if self._log is None and self.goes_on:
            return {}
        with self._lock:
            account = self._log.account if self._log is not None else Account()
            for sample in self._early if self._log is None else ():
                account.take(sample)
            return summary_of(account, self._shell.host_sampler.memory_total, self.trouble)


def summary_of(account: Any, memory_total: int | None, trouble: str = "") -> dict[str, Any]:
    """The part of ``stats`` that tells of the host; empty where there is no sample."""
    if account.whole is None or not account.recent:
        return {"trouble": trouble} if trouble else {}
    told = host_record.summary(account.whole, account.recent[-1])
    told |= {"memory_total": account.memory_total or memory_total, "recent": list(account.recent)}
    return told | ({"trouble": trouble} if trouble else {})
