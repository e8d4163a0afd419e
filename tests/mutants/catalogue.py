"""The guards that carry the guarantees, each as the edit that takes it away."""

from __future__ import annotations

from dataclasses import dataclass

MODEL = ("tests/model",)
KILLS = ("tests/kill/test_no_early_free.py",)
LEFT = ("tests/unit/domain/test_leftovers.py", "tests/unit/agent/test_leftovers.py", "tests/unit/agent/test_core.py")

#: A supervisor that signals its leader alone, and takes the leader's end for that of the tree.
_LEADER_ALONE = (
    (
        '            return self.reap() and not (self.cgroup and b"populated 1" in'
        ' read_file(f"{self.cgroup}/cgroup.events"))',
        "            return self.reap() or self.over",
    ),
    (
        "        found = self.members()\n        for p in found:  # it may end first;",
        "        found = [p for p in self.members() if p.pid == self.leader]\n"
        "        for p in found:  # it may end first;",
    ),
    (
        '            if self.cgroup:\n                with suppress(OSError), open(f"{self.cgroup}/cgroup.kill", "w")',
        '            if False:\n                with suppress(OSError), open(f"{self.cgroup}/cgroup.kill", "w")',
    ),
    ("            for _ in range(200 if pause < 0.1 else 1):", "            for _ in range(0):"),
)


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces a text that stands exactly once in a file of the package."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A guard taken away, and the tests that must notice."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...] = MODEL


MUTANTS = (
    Mutant(
        "grant on unknown",
        (
            Edit(
                "domain/evolve.py",
                "state.queue.set_ready(device.name, now is DeviceState.READY)",
                "state.queue.set_ready(device.name, now in (DeviceState.READY, DeviceState.UNKNOWN)"
                " and device.lease is None)",
            ),
            Edit(
                "domain/grants.py",
                "if device.state is not DeviceState.READY:  # I9: only ready is free",
                "if device.state not in (DeviceState.READY, DeviceState.UNKNOWN):",
            ),
            Edit(
                "domain/state.py",
                'assert (device.state == "ready") == (name in self.queue.ready), f"{name}: ready index disagrees"',
                "pass",
            ),
        ),
    ),
    Mutant(
        "free on expiry",
        (
            Edit(
                "domain/fleet.py",
                "    return [ev.ContactLost(at=now, agent=command.agent, silent_s=command.silent_s)]",
                "    freed: list[ev.Event] = []\n"
                "    for lease in list(state.leases.values()):\n"
                "        job = state.jobs.get(lease.job)\n"
                "        if lease.agent == command.agent and job is not None:\n"
                "            if lease.state == 'held':\n"
                "                expired = Outcome(Ending.LOST, cause='lease_expired')\n"
                "                freed.append(ended(job, expired, now, 'controller'))\n"
                "            freed.append(ev.LeaseReleased(at=now, lease=lease.id, device=lease.device,"
                " token=lease.token, proof='expired'))\n"
                "    return [*freed, ev.ContactLost(at=now, agent=command.agent, silent_s=command.silent_s)]",
            ),
        ),
    ),
    Mutant(
        "start without fence",
        (Edit("agent/core.py", "if grant.token <= high:  # I5: the fence", "if False:"),),
    ),
    Mutant(
        "STOP that does not fence",
        (
            Edit(
                "agent/core.py",
                "    for grant in event.grants:  # what was declined once is never started later:"
                " a repeated start is fenced too\n        _raise(state, grant.uuid, grant.token)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "clear by device instead of by token",
        (
            Edit(
                "domain/reports.py",
                "    leases = state.live_leases(report.job, report.attempt)\n    if not leases:",
                "    leases = [lease for lease in state.leases.values() if lease.device in report.tokens]\n"
                "    if not leases:",
            ),
            Edit(
                "domain/reports.py", "        if report.tokens.get(lease.device) != lease.token:", "        if False:"
            ),
            Edit(
                "domain/reports.py",
                "    _current(state, report)\n    job = state.jobs.get(report.job)\n"
                "    if job is None or job.attempt != report.attempt or job.state is JobState.QUEUED:",
                "    job = state.jobs.get(_current(state, report)[0].job)\n    if job is None:",
            ),
            Edit(
                "domain/reports.py",
                "    for lease in state.live_leases(report.job, report.attempt):\n        seen",
                "    for lease in [x for x in state.leases.values() if x.device in report.tokens]:\n        seen",
            ),
        ),
    ),
    Mutant(
        "overwrite a terminal state",
        (
            Edit(
                "domain/reports.py",
                'if any(lease.state != "ending" for lease in leases):  # I7: a terminal state is written once',
                "if leases:",
            ),
        ),
    ),
    Mutant(
        "release before the final report",
        (
            Edit(
                "domain/reports.py",
                "    return decided + _proved(state, report, now)  # I8: the end first, then the release",
                "    return _proved(state, report, now) + decided",
            ),
        ),
    ),
    Mutant(
        "high water in memory only",
        (
            Edit(
                "agent/core.py",
                "    for grant in event.grants:\n        _raise(state, grant.uuid, grant.token)\n"
                "    attempt = r.Attempt(",
                "    attempt = r.Attempt(",
            ),
            Edit(
                "agent/core.py",
                "    return [accepted], [r.Spawn(key)]",
                "    for grant in message.grants:\n        _raise(state, grant.uuid, grant.token)\n"
                "    return [accepted], [r.Spawn(key)]",
            ),
        ),
    ),
    Mutant(
        "outbox in memory only",
        (
            Edit(
                "agent/core.py",
                "    return [*events, report], effects",
                "    for event in events:\n        evolve(state, event)\n    evolve(state, report)\n"
                "    return events, effects",
            ),
        ),
    ),
    Mutant(
        "kill the leader only",
        (
            *(Edit("agent/supervisor.py", old, new) for old, new in _LEADER_ALONE),
            Edit(
                "agent/supervisor.py",
                "                    os.killpg(group, signal.SIGKILL)",
                "                    pass",
            ),
        ),
        KILLS,
    ),
    Mutant(
        "kill the leader's process group only",
        tuple(Edit("agent/supervisor.py", old, new) for old, new in _LEADER_ALONE),
        KILLS,
    ),
    Mutant(
        "what cannot be read is gone",
        (
            Edit(
                "domain/leftovers.py",
                "                self._unseen(name, item, found.blind[hidden])\n                continue\n",
                "                self._unseen(name, item, found.blind[hidden])\n",
            ),
        ),
        LEFT,
    ),
    Mutant(
        "unreadable before, and a job named all the same",
        (
            Edit(
                "domain/leftovers.py",
                "            by = self._by if blind is None else",
                "            by = self._by if True else",
            ),
        ),
        LEFT,
    ),
    Mutant(
        "the last of several jobs did it",
        (
            Edit(
                "domain/leftovers.py",
                "    named = tuple(dict.fromkeys(jobs))\n    if not named",
                "    named = tuple(dict.fromkeys(jobs))[-1:]\n    if not named",
            ),
        ),
        LEFT,
    ),
    Mutant(
        "a job that is still asked after its look",
        (
            Edit(
                "agent/leftovers.py",
                "        return [job for job, attempt in keys if (job, attempt) not in covered]",
                "        return [job for job, attempt in keys]",
            ),
        ),
        LEFT,
    ),
    Mutant(
        "who began during a look was not there",
        (
            Edit(
                "agent/leftovers.py",
                "        seen = await self._probe.look(self._read)\n        ran, more = self._ran(), ",
                "        ran, _ = self._ran(), 0\n        seen = await self._probe.look(self._read)\n        more = ",
            ),
        ),
        LEFT,
    ),
    Mutant(
        "a compacted journal that forgets whom to ask",
        (
            Edit(
                "agent/core.py",
                "        events.append(r.JobsUnlooked(tuple(state.unlooked), state.unlooked_more))",
                "        pass",
            ),
        ),
        LEFT,
    ),
)
