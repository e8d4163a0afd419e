"""What is worked out when an attempt is over: its peaks, the ceiling it met, and whether memory was exhausted.

Everything comes from what outlived the job: the counters of its group, its ``host.log``, its exit record. So it comes
out the same whichever agent sees the end, and however long after.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.agent import folders, host_log
from tenure.agent import memory_ceilings as ceilings
from tenure.agent.host_watch import summary_of
from tenure.domain import provision
from tenure.domain.job import Ending, Outcome
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.agent.runs import Run
    from tenure.agent.shell import Shell

log = logging.getLogger("tenure.agent.aftermath")


async def told(shell: Shell, run: Run, outcome: Outcome) -> Outcome:
    """The outcome with all of that in it. What cannot be worked out is left out, and logged: the end is told anyway."""
    try:
        return await asyncio.to_thread(_told, shell, run.folder, outcome)
    except Exception:
        log.exception("what %s#%d took could not be worked out", *run.key)
        return outcome


def _told(shell: Shell, folder: Path, outcome: Outcome) -> Outcome:
    stats = dict(outcome.stats)
    host = dict(stats.get("host") or look_back(folder))
    recent = host.pop("recent", ())
    ceiling = ceilings.ceiling_of(folder)
    breach = None
    if ceiling is not None:
        breach = ceilings.look(ceiling)
        stats["ceiling"] = {**ceiling, "peak": breach.peak, "kills": breach.kills, "common": breach.common}
    stats |= _peaks(stats, host, breach)
    if folders.keeps_host_log(folder):
        host["log"] = str(folder / "host.log")
    if host:
        stats["host"] = host
    outcome = replace(outcome, stats=stats)
    if breach is not None and ceiling is not None:
        from tenure.agent import memory_groups

        outcome = _at_the_ceiling(outcome, breach)
        if not memory_groups.remove(Path(ceiling["group"])):
            log.warning("the group %s is not empty and stays for now", ceiling["group"])
    return _exhausted(outcome, host, recent)


def look_back(folder: Path) -> dict[str, Any]:
    """The summary of an attempt's ``host.log``, where nobody watched to the end."""
    try:
        account = host_log.read(folder / "host.log")
    except (OSError, ValueError, TenureError) as error:
        return {"trouble": f"its host.log cannot be read: {error}"}
    return summary_of(account, None) if account is not None else {}


def _peaks(stats: Mapping[str, Any], host: Mapping[str, Any], breach: ceilings.Breach | None) -> dict[str, Any]:
    highest = host.get("highest", {})
    largest = stats.get("max_rss_kb")
    peak = provision.memory_peak(
        breach.peak if breach is not None else None,
        breach is None or not breach.kills,  # what was held back at a ceiling would have taken more
        highest.get("tree_rss"),
        int(highest.get("tree_processes", 0)),
        largest * 1024 if isinstance(largest, int) else None,
    )
    found: dict[str, Any] = {"peak_memory": peak.plain()} if peak is not None else {}
    if "scratch_used" in highest:
        used = int(highest["scratch_used"])
        found["peak_disk"] = provision.Peak(used, "blocks of its scratch, sampled", True).plain()
    return found


def _succeeded(outcome: Outcome) -> bool:
    return outcome.ending is Ending.EXITED and outcome.code == 0


def _at_the_ceiling(outcome: Outcome, breach: ceilings.Breach) -> Outcome:
    if not breach.kills:
        return outcome
    if outcome.cause.startswith("memory ceiling"):
        return replace(outcome, cause=breach.words)  # with the figures of the end
    if outcome.cause or _succeeded(outcome):
        return replace(outcome, detail="; ".join(filter(None, (outcome.detail, breach.words))))
    return replace(outcome, cause=breach.words)


def _exhausted(outcome: Outcome, host: Mapping[str, Any], recent: Any) -> Outcome:
    if _succeeded(outcome) or outcome.cause.startswith("memory ceiling"):
        return outcome
    lost = outcome.ending is Ending.LOST
    last = [sample for sample in recent if isinstance(sample, dict)]
    if lost and not last:
        return outcome
    # Nobody saw the end of a lost job: the last sample is as near to it as anything that is known.
    ended = outcome.stats.get("ended_at") if not lost else last[-1]["utc"]
    killed = [sample["v"]["kills"] for sample in last if "kills" in sample.get("v", {})]
    kills = int(killed[-1] - killed[0]) if len(killed) > 1 else None
    at = float(ended) if isinstance(ended, int | float) else time.time()
    words = provision.exhausted(last, at, host.get("memory_total"), kills)
    if not words:
        return outcome
    stats = {**outcome.stats, "memory_exhausted": words}
    return replace(outcome, detail="; ".join(filter(None, (outcome.detail, words))), stats=stats)
