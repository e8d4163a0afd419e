"""The memory ceilings of a host that is declared to reboot instead of killing for want of memory.

The group of an attempt is made before its start; the command's process enters it before anything is executed, or is
not executed. From then on the kernel holds the ceiling, with or without an agent. What happened in a group is read from
its own counters when the attempt is over, by whichever agent sees the end, and then the group is removed.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.agent.folders import key_of
from tenure.domain import protection as rules
from tenure.domain.provision import size
from tenure.domain.reading import Value
from tenure.durable import write_atomic
from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.agent import records as r
    from tenure.agent.shell import Shell

log = logging.getLogger("tenure.agent.memory_ceilings")


class Unprotected(TenureError):
    """Nothing may be started here: the ceiling cannot be had."""

    def __init__(self, why: str) -> None:
        super().__init__(
            "start_refused",
            f"this host is declared to reboot for want of memory, and no ceiling can be set: {why}; nothing was run",
            do="See docs/how-to/protect-a-host.md for what the host needs.",
        )


@dataclass(frozen=True, slots=True)
class Breach:
    """What a group's counters say when its attempt is over. ``peak`` and ``limit`` in bytes, None where not told;
    ``reserve_is``: how the reserve behind the ceiling was judged."""

    group: str
    limit: int
    peak: int | None
    kills: int
    common: bool
    reserve_is: str = ""

    @property
    def words(self) -> str:
        """The reason of an end at the ceiling."""
        return rules.breach(self.limit, self.peak, self.kills, self.common, self.reserve_is)


class MemoryCeilings:
    """Makes, reads and removes the groups of attempts. Its methods touch files: call them in a thread."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self.rules = rules.read(shell.options.protect)
        self._parent: tuple[int, Path] | None = None

    @property
    def on(self) -> bool:
        """Whether attempts need a ceiling here."""
        return self.rules.reboots

    @property
    def words(self) -> str:
        """What holds on this host, for its facts and the log."""
        judged = self.rules.judged
        if judged is None:
            return "jobs run without a memory ceiling"
        if self.rules.refused:
            return f"no job is started: {self.rules.refused}"
        return f"jobs run under a memory ceiling; reserve {size(self.rules.reserve)}: {judged.verdict}"

    def make(self, key: r.Key) -> dict[str, Any]:
        """What spec.json needs for an attempt to run under its ceiling. Raises Unprotected."""
        from tenure.agent import memory_groups

        if self.rules.refused:
            raise Unprotected(f"{self.rules.refused}; correct agent.protect of the settings, running jobs go on")
        try:
            number, parent = self._parent or self._find_parent()
            room, taken = self._room(parent), self._held(parent)
            if room.limit - taken < rules.LEAST_ROOM:
                raise Unprotected(f"{room.words}, too little to start anything in")
            self._parent = (number, parent)
            held = memory_groups.limit(parent, number, max(room.limit, self._current(parent)))
            group = parent / f"tenure-{key[0]}.{key[1]}"
            memory_groups.fresh(group)
            # What is left, so that a newcomer meets its own limit before it takes the others' room from them.
            left = max(held - taken, rules.LEAST_ROOM)
            own = memory_groups.limit(group, number, min(left, self.rules.ceiling or left))
        except (OSError, memory_groups.NoGroup) as error:
            self._parent = None
            raise Unprotected(str(error)) from error
        judged = self.rules.judged
        told = {
            "group": str(group),
            "version": number,
            "limit": own,
            "together": held,
            "reserve": self.rules.reserve,
            "others": room.others,
            "reserve_is": str(judged.verdict) if judged is not None else "",
            "words": room.words,
        }
        if number == 1:
            return {"join": [str(group)], "ceiling": told}
        # Version 2: the supervisor makes the attempt's own group inside, and the command is to be in that one.
        inside = {"control": "cgroup2", "cgroup_parent": str(group)}
        return {"join": [f"{group}/{group.name}"], **inside, "ceiling": told}

    def _find_parent(self) -> tuple[int, Path]:
        """The parent that an earlier agent of this boot made, as long as it is there; else a new one.

        An agent that is started again may sit in another group; one ceiling holds for all jobs, so they stay together.
        """
        from tenure.agent import memory_groups

        kept, boot = self._kept_file, self._shell.identity.boot_id
        try:
            body = json.loads(kept.read_bytes())
            if body["boot"] == boot and Path(body["parent"]).is_dir():
                return int(body["version"]), Path(body["parent"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # none was made yet, or of what it says nothing can be used: a new one is made
        number, parent = memory_groups.make_parent(f"tenure-{self._shell.identity.agent}")
        write_atomic(kept, json.dumps({"boot": boot, "version": number, "parent": str(parent)}).encode())
        return number, parent

    @property
    def _kept_file(self) -> Path:
        return self._shell.layout.agent / "memory-group.json"

    def _room(self, parent: Path) -> rules.Room:
        from tenure.probes import host

        seen = host.sample()
        total, available = seen.memory_total, seen.memory_available
        if not isinstance(total, Value) or not isinstance(available, Value):
            raise OSError(0, "what memory this host has cannot be read")
        return rules.room(total.value, available.value, self._held(parent), self.rules)

    def _held(self, parent: Path) -> int:
        from tenure.probes import memory_group

        found = memory_group.look(parent).held
        return found.value if isinstance(found, Value) else 0

    def _current(self, parent: Path) -> int:
        """What the jobs hold now: the ceiling of all is never set below it, which would end one of them for nothing."""
        from tenure.probes import memory_group

        found = memory_group.look(parent).current
        return found.value if isinstance(found, Value) else 0

    def sweep(self) -> None:
        """Removes the groups of attempts that are not known any more. One that is not empty stays, and is told."""
        from tenure.agent import memory_groups

        try:
            parent = Path(json.loads(self._kept_file.read_bytes())["parent"])
            groups = [group for group in parent.iterdir() if group.is_dir()]
        except (OSError, ValueError, KeyError, TypeError):
            return  # none was ever made in this boot
        known = self._shell.state.attempts  # asked for each: one may be accepted meanwhile
        for group in groups:
            key = key_of(Path(group.name.removeprefix("tenure-")))
            if key not in known and not memory_groups.remove(group):
                log.warning("%s belongs to no attempt of this agent and is not empty", group)
        if not self.on:
            memory_groups.remove(parent)


def ceiling_of(folder: Path) -> dict[str, Any] | None:
    """The ceiling that an attempt was started under, from its spec.json; None where there was none."""
    try:
        found = json.loads((folder / "spec.json").read_bytes()).get("ceiling")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, dict) else None


def look(ceiling: dict[str, Any]) -> Breach:
    """What the counters of an attempt's group say now."""
    from tenure.probes import memory_group

    seen = memory_group.look(Path(ceiling["group"]))
    peak = seen.peak.value if isinstance(seen.peak, Value) else None
    limit = int(ceiling["limit"])
    # Killed below its own limit (less the few pages that an allocation asks for at once): the ceiling of all was met.
    common = peak is not None and peak < limit - max(limit // 64, 1 << 20)
    kills = seen.kills.value if isinstance(seen.kills, Value) else 0
    return Breach(ceiling["group"], limit, peak, kills, common, str(ceiling.get("reserve_is", "")))
