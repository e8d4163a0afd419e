"""The host beside each running job: one sampler for all of them, one log for each.

Once a second the host is looked at once, whatever the number of jobs; each job's log gets that look together with what
its own tree takes. Looking and writing happen in a thread, syncing in another, so that neither a busy host nor a slow
disk holds up the agent. A job that is over in no time still has a first and a last sample in its outcome.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.agent.host_watch import Watch
from tenure.domain.reading import Value

if TYPE_CHECKING:
    from tenure.agent.runs import Run
    from tenure.agent.shell import Shell
    from tenure.probes.host_values import Flat

log = logging.getLogger("tenure.agent.telemetry")

PERIOD_S = 1.0
#: A look this young serves another job that begins or ends: a storm of short jobs does not cost a look each.
YOUNG_S = 0.25
#: How long the last sample of a job may take; its end is told without it then.
LAST_S = 0.15


class HostSampler:
    """The one sampler of the host. It runs while there is a job to sample beside."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._watches: set[Watch] = set()
        self._task: asyncio.Task[None] | None = None
        self._syncing: asyncio.Future[None] | None = None
        self._last: tuple[float, Flat] | None = None
        self.memory_total: int | None = None

    def add(self, watch: Watch) -> None:
        """Samples beside a job from now on."""
        self._watches.add(watch)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="host sampler")

    def remove(self, watch: Watch) -> None:
        """Samples beside a job no more."""
        self._watches.discard(watch)
        if not self._watches and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        due = time.monotonic() + PERIOD_S
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due + PERIOD_S, time.monotonic())
            watches = list(self._watches)
            try:
                await asyncio.to_thread(self._round, watches)
            except Exception:
                log.exception("a look at the host failed")
            for watch in watches:
                watch.act()
            if self._syncing is None or self._syncing.done():
                self._syncing = asyncio.get_running_loop().run_in_executor(None, _sync_all, watches)

    def _round(self, watches: list[Watch]) -> None:
        from tenure.probes import proc

        scan = functools.cache(proc.snapshot)  # once for all jobs, and only where one needs it
        for watch in watches:
            watch.sample(self.look(watch.folder), scan)

    def look(self, folder: Path) -> Flat:
        """The host now, or as it was a moment ago. Reads files of the kernel and asks for the free room; any thread."""
        from tenure.probes import host, host_values

        now = time.monotonic()
        if self._last is not None and now - self._last[0] < YOUNG_S:
            return self._last[1]
        seen = host.sample(self._root)
        if isinstance(seen.memory_total, Value):
            self.memory_total = seen.memory_total.value
        found = host_values.flat(seen, host.disk_free(str(folder)), host_values.kills(self._root))
        self._last = (now, found)
        return found


class Telemetry:
    """The companion of one attempt."""

    def __init__(self, shell: Shell, run: Run) -> None:
        self._shell = shell
        self._watch: Watch | None = None
        if run.handle is not None:  # else nothing runs any more: what was written down then is read at the end
            self._watch = Watch(shell, run)
            self._watch.first()

    async def run(self) -> None:
        """Samples until cancelled, and once more then."""
        watch = self._watch
        if watch is None:
            return
        try:
            if watch.goes_on:
                await asyncio.to_thread(watch.begin)
            self._shell.host_sampler.add(watch)
            await asyncio.Event().wait()
        finally:
            self._shell.host_sampler.remove(watch)
            await asyncio.wait([asyncio.get_running_loop().run_in_executor(None, watch.last)], timeout=LAST_S)

    def measured(self) -> Mapping[str, Any]:
        """The summary, and the peaks as far as they were sampled."""
        watch = self._watch
        if watch is None:
            return {}
        watch.over()
        self._shell.aside(asyncio.to_thread(watch.let_go))
        told = watch.summary()
        return {"host": told} if told else {}


def _sync_all(watches: list[Watch]) -> None:
    for watch in watches:
        watch.sync()
