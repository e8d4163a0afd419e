"""Attempts whose supervisor is gone without an exit record: what is left of them is ended, and their end is named."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.agent import adopt, survivors
from tenure.agent import records as r
from tenure.domain.ends import Identity, name_end
from tenure.domain.job import Ending, Outcome
from tenure.durable import write_atomic
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.agent.shell import Shell

log = logging.getLogger("tenure.agent.lost")

_NAMED = 8


def rebooted(shell: Shell, attempt: r.Attempt) -> bool:
    """Whether this is another boot than the one the attempt was accepted in: then nothing of it can be alive."""
    before, now = attempt.identity[0], shell.identity.boot_id
    return bool(before) and bool(now) and before != now


async def census(shell: Shell, key: r.Key) -> survivors.Census:
    """Who is left of an attempt. A scan of /proc, in a thread."""
    return await asyncio.to_thread(survivors.census, *key, _identity(shell, key))


async def end_survivors(shell: Shell, key: r.Key) -> survivors.Cleared:
    """Ends what is left of an attempt, until a census finds nobody; at most ten seconds.

    In a thread with a loop of its own, because each look is a scan of /proc that can take its time.
    """
    identity = await asyncio.to_thread(_identity, shell, key)
    return await asyncio.to_thread(lambda: asyncio.run(survivors.kill(*key, identity)))


def _identity(shell: Shell, key: r.Key) -> adopt.Identity | None:
    """Who the supervisor was, where its record is of this boot and PID namespace: elsewhere it means nothing."""
    found = adopt.examine(shell.layout.attempt(*key))
    if isinstance(found, adopt.Alive):
        found.handle.close()
        return found.identity
    if isinstance(found, adopt.Lost) and found.reason == "gone":
        return found.identity
    return None


def emptied(shell: Shell, key: r.Key) -> bool:
    """Whether an attempt of another PID namespace of this boot has provably nobody left: its cgroup is removed, which
    the kernel allows of an empty one alone, whoever can see who was in it. Blocks for a moment."""
    folder = shell.layout.attempt(*key)
    shown = folder / "emptied"
    if shown.exists():
        return True
    found = adopt.examine(folder)
    if not isinstance(found, adopt.Lost) or found.reason != "other_namespace" or found.identity is None:
        return False
    if found.identity.cgroup is None or not survivors.end_group(Path(found.identity.cgroup)):
        return False
    write_atomic(shown, b"")  # a group is removed but once, and the devices may have to be looked at for long yet
    return True


def names_of(left: survivors.Census) -> tuple[str, ...]:
    """The survivors as people read them."""
    return tuple(f"pid {s.pid} ({s.name})" for s in left.survivors[:_NAMED])


async def settle(shell: Shell, attempt: r.Attempt, why: str = "") -> Outcome:
    """Ends what the attempt left behind and names its end."""
    details = [why] if why else []
    if not rebooted(shell, attempt):
        cleared = await end_survivors(shell, attempt.key)
        if cleared.killed:
            count = len(cleared.killed)
            details.append(f"{count} {'process' if count == 1 else 'processes'} that it left behind ended by SIGKILL")
        if cleared.last.survivors:
            details.append(f"still alive: {', '.join(names_of(cleared.last))}")
    before, after = (Identity(*(part or None for part in t)) for t in _alike(attempt.identity, shell.identity.triple))
    cause = name_end(before, after, supervisor_alive=False)
    if cause == "lost_cause_not_established":
        details.insert(0, "its supervisor is gone without an exit record")
    stats: dict[str, Any] = {}
    if cause == "host_rebooted":
        stats["reboot"], words = await asyncio.to_thread(_across_the_boot, shell, attempt)
        details.append(words)
    log.warning("%s#%d is lost: %s; %s", attempt.job, attempt.attempt, cause, "; ".join(details))
    return Outcome(Ending.LOST, cause=cause, detail="; ".join(details), stats=stats)


def _alike(before: tuple[str, str, str], now: tuple[str, str, str]) -> tuple[tuple[str, str, str], ...]:
    """Both identities; where the earlier one was written down by a version that knew a namespace by its number alone,
    the number is all that they are compared by."""
    if ":" in before[1]:
        return before, now
    return before, (now[0], now[1].partition(":")[0], now[2])


def _across_the_boot(shell: Shell, attempt: r.Attempt) -> tuple[dict[str, Any], str]:
    """What is known of a reboot that took an attempt with it: both boot ids, the last sample, and when this boot began
    as far as uptime tells. The ids prove the reboot; the time is derived and never does."""
    from tenure.agent import host_log
    from tenure.domain import provision
    from tenure.probes import identity

    now, boot = time.time(), identity.read().boot
    told: dict[str, Any] = {"boot_before": attempt.identity[0], "boot_now": shell.identity.boot_id}
    if boot is not None:
        told["boot_began"] = {
            "no_later_than": boot.latest,
            "strength": "derived",
            "instrument": "proc.uptime",
            "assumption": boot.assumption,
        }
    try:
        account = host_log.read(shell.layout.attempt(*attempt.key) / "host.log")
    except (OSError, ValueError, TenureError) as error:
        return told, f"its samples of the host cannot be read: {error}"
    if account is None or not account.recent:
        return told, "no sample of the host was kept beside it"
    last = account.recent[-1]
    told |= {"last_sample": last, "last_sample_age_s": round(now - last["utc"], 1)}
    words = provision.before_reboot(last, account.memory_total, now, boot.latest if boot is not None else None)
    return told, words
