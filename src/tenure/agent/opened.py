"""Who has a GPU open that has no list of contexts: a Jetson without NVML.

Its driver tells nobody who is on it, but no context exists without an open device file (nvhost, nvgpu, nvmap). So its
witness is the open files of every process of the machine: a process that has one is taken for somebody, and nobody is
there only where all could be read. That takes the initial PID namespace and, with other users on the machine, root.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from tenure.agent.watch import describe_process, occupied_by
from tenure.domain.device import Condition
from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.probes import proc

if TYPE_CHECKING:
    from tenure.agent.shell import Shell

#: Reading every process takes some 0.5 ms each, so an idle device is looked at less often than by a list.
LOOK_EVERY_S = 6.0


async def look(shell: Shell, resting: Collection[str] = ()) -> Condition:
    """Looks once, through the child that can be abandoned."""
    table = await asyncio.to_thread(proc.snapshot)
    found: dict[int, Reading[proc.Handles] | proc.Vanished] = {
        pid: Unavailable(Reason.NO_PERMISSION, table.at, "proc.stat", Scope.PROCESS) for pid in table.unreadable
    }
    found |= await shell.proc_probe.handles(table.entries.values())
    return judge(found, everybody=shell.identity.initial_namespace is True, resting=resting)


def judge(
    found: Mapping[int, Reading[proc.Handles] | proc.Vanished],
    *,
    everybody: bool,
    resting: Collection[str] = (),
    describe: Callable[[int], tuple[str, str]] | None = None,
) -> Condition:
    """What the open files of all processes say. ``everybody``: whether those are all processes of the machine."""
    holders = [pid for pid, read in found.items() if isinstance(read, Value) and read.value.compute_capable]
    somebody = occupied_by(holders, resting, describe or describe_process)
    if somebody is not None:
        return somebody
    if not everybody:
        why = "who has the GPU open outside this PID namespace cannot be seen, and it has no list of contexts"
        return Condition("unknown", f"{Reason.FOREIGN_NAMESPACE}: {why}")
    unread = next((read for read in found.values() if isinstance(read, Unavailable)), None)
    if unread is not None:
        # Without numbers, which change from look to look: a report goes out only when something changed.
        why = "not every process can be looked into, and the GPU has no list of contexts"
        do = "; an agent that runs as root can" if unread.reason is Reason.NO_PERMISSION else ""
        return Condition("unknown", f"{unread.reason}: {why}{do}")
    if not any(isinstance(read, Value) for read in found.values()):
        return Condition("unknown", f"{Reason.SAMPLING_GAP}: no process could be looked at, not even this one")
    return Condition("clear", "no process has the GPU open; it has no list of contexts")
