"""Proves devices empty of attempts that are over, at once where it can, and again and again where it cannot yet.

The tree's own proof comes first and is of one of four kinds: the supervisor's exit record, another boot, a search that
found no process of the attempt, or that nothing of it was ever started. Only with it are a device's instruments asked.
Before a device is called empty its claim is held again, so that it is never offered unclaimed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tenure.agent import adopt, folders, lost, opened, release, strays
from tenure.agent import records as r
from tenure.agent.devices import AgentDevice
from tenure.agent.release import Traces
from tenure.agent.watch import listed, sees_all
from tenure.domain.device import Condition
from tenure.domain.reading import Value
from tenure.durable import LogFailed
from tenure.probes import proc

if TYPE_CHECKING:
    from tenure.agent.shell import Shell

log = logging.getLogger("tenure.agent.prover")

QUICK_S = 0.5
PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 2.0, 4.0, 8.0, 15.0)


class Prover:
    """Looks at the devices of ended attempts. One task an attempt, until all its devices are proved empty."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._tasks: dict[r.Key, asyncio.Task[None]] = {}
        self._traces: dict[r.Key, Traces] = {}
        self._told: dict[r.Key, str] = {}

    def remember(self, key: r.Key, traces: Traces) -> None:
        """Keeps what is known of an attempt's processes for the looks after its end."""
        self._traces[key] = traces

    def look(self, key: r.Key) -> None:
        """Effect ``Look``: looks at the unproved devices until they are empty of the attempt."""
        if key not in self._tasks or self._tasks[key].done():
            self._tasks[key] = asyncio.create_task(self._until_proved(key), name=f"look {key[0]}#{key[1]}")

    async def stop(self) -> None:
        """Ends every look; the next agent takes them up."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def at_once(self, attempt: r.Attempt, traces: Traces, tree: str) -> dict[str, Condition]:
        """What one quick look proves, for the report of the end: nothing where others still run something for the job.
        Never longer than half a second."""
        others = asyncio.ensure_future(asyncio.to_thread(lambda: strays.find(self._label(attempt))))
        devices = self._devices(attempt)
        proofs = {
            name: release.of_cpu(tree)
            for name, d in devices.items()
            if d is not None and d.probe is None and not d.by_open_files
        }
        gpus = {name: d for name, d in devices.items() if d is not None and d.probe is not None}
        looking = asyncio.ensure_future(self._sample(gpus, traces, tree, settled=False)) if gpus else None
        done, late = await asyncio.wait([task for task in (others, looking) if task is not None], timeout=QUICK_S)
        for task in late:
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
        if others not in done or others.exception() is not None or others.result():
            return {}
        if looking in done and looking.exception() is None:
            proofs.update({name: seen for name, seen in looking.result().items() if seen.outcome == "clear"})
        return self._claimed(proofs)

    async def _until_proved(self, key: r.Key) -> None:
        await self._shell.discovered()
        began = time.monotonic()
        tries = 0
        while (attempt := self._shell.state.attempts.get(key)) is not None and attempt.unproved:
            settled = time.monotonic() - began >= self._shell.options.settle_s
            try:
                proofs = await self._look_once(attempt, settled)
                if proofs:
                    self._shell.tell(r.Looked(*key, proofs))
            except LogFailed as error:
                if not error.usable:
                    return
                log.error("%s", error)
            except Exception:  # one bad look must not end the looking: the device would stay in ending for ever
                log.exception("a look at the devices of %s#%d failed", *key)
            attempt = self._shell.state.attempts.get(key)
            if attempt is None or not attempt.unproved:
                break
            await asyncio.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
            tries += 1
        self._traces.pop(key, None)
        self._told.pop(key, None)
        self._tasks.pop(key, None)

    async def _look_once(self, attempt: r.Attempt, settled: bool) -> dict[str, Condition]:
        tree, alive = await self._tree(attempt)
        wanted = {name: device for name, device in self._devices(attempt).items() if name in attempt.unproved}
        if alive is not None:
            return dict.fromkeys(wanted, alive) if settled else {}
        if not (lost.rebooted(self._shell, attempt) or _never_ran(attempt)):
            tree, unwilling = await self._end_strays(attempt, tree)
            if unwilling is not None:
                return dict.fromkeys(wanted, unwilling) if settled else {}
        proofs: dict[str, Condition] = {}
        gpus: dict[str, AgentDevice] = {}
        for name, device in wanted.items():
            if device is None or device.missing is not None:
                if lost.rebooted(self._shell, attempt) and device is None:
                    proofs[name] = Condition("clear", f"{tree}; the device is not here any more")
                elif settled:
                    proofs[name] = (device and device.missing) or Condition("unknown", "the device is not found")
            elif device.by_open_files:
                seen = await opened.look(self._shell, self._shell.options.resting.get(name, ()))
                if seen.outcome == "clear":
                    proofs[name] = Condition("clear", f"{tree}; {seen.detail}")
                elif settled or seen.outcome == "occupied":
                    proofs[name] = seen
            elif device.probe is None:
                proofs[name] = release.of_cpu(tree)
            else:
                gpus[name] = device
        if gpus:
            traces = self._traces.get(attempt.key, Traces())
            proofs.update(await self._sample(gpus, traces, tree, settled=settled))
        return self._claimed(proofs)

    async def _tree(self, attempt: r.Attempt) -> tuple[str, Condition | None]:
        """(the proof that no process of the tree is alive, None), or what stands against it."""
        if lost.rebooted(self._shell, attempt):
            return "the host has booted since", None
        try:
            if folders.read_exit(self._shell.layout.attempt(*attempt.key)) is not None:
                return "process tree empty (its supervisor's exit record)", None
        except (OSError, ValueError) as error:
            log.warning("%s#%d: %s", *attempt.key, error)
        if _never_ran(attempt):
            return "nothing of it was started here", None
        if attempt.outcome is None and attempt.supervisor is None:
            # Accepted, and stopped before its command was begun: the seal on its folder says that nobody began it.
            found = await asyncio.to_thread(adopt.examine, self._shell.layout.attempt(*attempt.key))
            if isinstance(found, adopt.Lost) and found.reason == "never_started":
                return f"nothing of it was started ({found.detail})", None
            if isinstance(found, adopt.Alive):
                found.handle.close()
        cleared = await lost.end_survivors(self._shell, attempt.key)
        if cleared.last.survivors:
            names = lost.names_of(cleared.last)
            return "", Condition("dirty", f"processes of the job that SIGKILL does not end: {', '.join(names)}", names)
        if not cleared.last.complete and await asyncio.to_thread(lost.emptied, self._shell, attempt.key):
            return "its PID namespace was another, and its cgroup is empty", None
        if not cleared.last.complete:
            why = "its supervisor died, and without a cgroup or a mark on its processes those that hide cannot be found"
            return "", Condition("unknown", f"{why}; a reboot of the host proves them gone")
        return "no process of it found" + (f", {len(cleared.killed)} ended" if cleared.killed else ""), None

    async def _end_strays(self, attempt: r.Attempt, tree: str) -> tuple[str, Condition | None]:
        """Ends what others run for the job, and says so once: (the proof with what was ended, None), or who is left."""
        ended = await asyncio.to_thread(lambda: strays.end(self._label(attempt)))
        if ended.gone or ended.left:
            known = self._traces.get(attempt.key, Traces())
            self._traces[attempt.key] = Traces(known.pids | {stray.pid for stray in ended.gone})
            self._tell_of(attempt, ended)
        if ended.left:
            names = strays.names_of(ended.left)
            return "", Condition(
                "dirty", f"run for the job by others, and not ended by SIGKILL: {', '.join(names)}", names
            )
        if not ended.gone:
            return tree, None
        return f"{tree}; ended what others ran for it: {', '.join(strays.names_of(ended.gone))}", None

    def _tell_of(self, attempt: r.Attempt, ended: strays.Ended) -> None:
        said = [f"ended: {', '.join(strays.names_of(ended.gone))}"] if ended.gone else []
        said += [f"cannot be ended: {', '.join(strays.names_of(ended.left))}"] if ended.left else []
        words = f"processes that others ran for the job {'; '.join(said)}"
        log.warning("%s#%d: %s", *attempt.key, words)
        if self._told.get(attempt.key) != words:
            self._told[attempt.key] = words
            facts = {"ended": [s.pid for s in ended.gone], "left": [s.pid for s in ended.left]}
            self._shell.tell(
                r.Noticed(*attempt.key, {"kind": "strays", "words": words, "utc": time.time(), "facts": facts})
            )

    def _label(self, attempt: r.Attempt) -> strays.Label:
        leases = ",".join(grant.lease for grant in attempt.grants)
        return strays.label_of(*attempt.key, self._shell.layout.attempt(*attempt.key), leases)

    async def _sample(
        self, gpus: Mapping[str, AgentDevice], traces: Traces, tree: str, *, settled: bool
    ) -> dict[str, Condition]:
        """What one sample of each GPU proves; a device is missing from it while nothing can be said yet."""
        shell = self._shell
        samples = await shell.devices.sample(device.uuid for device in gpus.values())
        # Who exists here matters only where a driver lists somebody; after most jobs it lists nobody.
        anybody = any(isinstance(on_it := listed(sample), Value) and on_it.value for sample in samples.values())
        table = await asyncio.to_thread(proc.snapshot) if anybody else ()
        proofs = {}
        for name, device in gpus.items():
            seen = release.of_gpu(
                samples[device.uuid],
                shell.baseline_of(device.uuid),
                traces,
                here=table,
                tree_proof=tree,
                settled=settled,
                sees_all=sees_all(samples[device.uuid], shell.identity.initial_namespace),
                resting=shell.options.resting.get(name, ()),
            )
            if seen is not None:
                proofs[name] = seen
        return proofs

    def _claimed(self, proofs: dict[str, Condition]) -> dict[str, Condition]:
        """Holds each proof back until its device's claim is ours again; another holder is what occupies it."""
        shell = self._shell
        unclaimed = [
            name for name in proofs if (device := shell.devices.by_name(name)) is not None and device.claim is None
        ]
        if unclaimed:
            shell.devices.take_claims()
        for name in unclaimed:
            device = shell.devices.by_name(name)
            if device is not None and device.claim is None:
                if device.held_by is None or device.held_by.outcome != "occupied":
                    del proofs[name]  # a supervisor of ours may be about to let go of it
                elif proofs[name].outcome in r.PROVES_EMPTY:
                    proofs[name] = device.held_by
        for name, seen in proofs.items():
            device = shell.devices.by_name(name)
            if device is not None and seen.outcome in r.PROVES_EMPTY:
                shell.saw(device, seen)
        return proofs

    def _devices(self, attempt: r.Attempt) -> dict[str, AgentDevice | None]:
        return {grant.device: self._shell.devices.by_uuid.get(grant.uuid) for grant in attempt.grants}


def _never_ran(attempt: r.Attempt) -> bool:
    return attempt.outcome is None and attempt.supervisor is None and (attempt.spec is None or attempt.unasked)
