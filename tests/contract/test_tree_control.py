"""The contract of every kind of control: once exit.json exists, nothing of the job is alive, whatever it did.

Each kind (a cgroup v2, the version 1 freezer, a PID namespace, the subreaper alone) meets the same escapes and the same
three ends: a stop with its grace, a kill, and a leader that ends by itself. Judged from outside: by pidfds of everybody
who showed itself, and by /proc, where what the job left is looked for by a marker. A kind that the machine does not
allow is tried all the same: what jobs get instead is held to the same contract, and the record has to say what it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.contract.escapes import ESCAPES, PRELUDE
from tests.integration.supervised import PYTHON, Floor, Running, until

from tenure.agent import survivors
from tenure.agent.adopt import Identity
from tenure.agent.control import KINDS, Control, choose

STOPPED = ("stop", "kill")


@dataclass
class Witness:
    """The end of the socket at which the processes of the jobs show themselves; keeps a pidfd of each."""

    root: Path
    seen: dict[str, list[int]] = field(default_factory=dict)
    servers: list[asyncio.Server] = field(default_factory=list)

    async def listen(self, name: str) -> Path:
        """A socket for one job."""
        path, pidfds = self.root / f"{name}.sock", self.seen.setdefault(name, [])

        def came(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            writer.close()
            try:
                pidfds.append(os.pidfd_open(pid))
            except ProcessLookupError:
                pidfds.append(-1)  # it was there, and is gone

        self.servers.append(await asyncio.start_unix_server(came, path))
        return path

    def living(self, name: str) -> int:
        """How many of those who showed themselves are alive."""
        return sum(pidfd >= 0 and not select.select([pidfd], [], [], 0)[0] for pidfd in self.seen[name])

    def close(self) -> None:
        for server in self.servers:
            server.close()
        for pidfd in [pidfd for pidfds in self.seen.values() for pidfd in pidfds if pidfd >= 0]:
            os.close(pidfd)


def left(mark: str) -> list[str]:
    """Whoever in /proc bears the marker in its arguments, its environment or a mapped file."""
    wanted, found = mark.encode(), []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        for name in ("cmdline", "environ", "maps"):
            try:
                text = (folder / name).read_bytes()
            except OSError:
                continue  # it ended
            if wanted in text:
                found.append(f"pid {folder.name} by {name}")
                break
    return found


def hopping(witness: Witness, mark: str) -> bool:
    """Whether somebody goes on counting hops: who hops fast enough is in no list that is walked for it."""
    path = witness.root / mark
    before = path.read_bytes()[:8]
    time.sleep(0.1)
    return path.read_bytes()[:8] != before


@pytest.fixture(scope="module", params=KINDS)
def control(request: pytest.FixtureRequest) -> Control:
    """One kind of control, as this machine has it."""
    return choose(request.param)


@pytest.fixture
async def floor(control: Control, tmp_path: Path) -> AsyncIterator[Floor]:
    made = Floor(tmp_path, control)
    yield made
    await made.close()


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Witness]:
    made = Witness(tmp_path)
    yield made
    made.close()


async def begun(floor: Floor, witness: Witness, name: str, end: str, **spec: Any) -> Running:
    """A program, once everybody has shown itself."""
    count, code = ESCAPES[name]
    path = await witness.listen(end)
    run = await floor.start([*PYTHON, PRELUDE + code, "MARK", end, str(path)], **spec)
    await until(lambda: len(witness.seen[end]) >= count, f"{count} of {name!r} showed themselves")
    return run


def whole(run: Running, control: Control) -> None:
    """The records name the kind of control, and its group is gone."""
    body = json.loads((run.folder / "supervisor.json").read_text())
    record = json.loads(run.exit_file.read_text())
    assert (body["control"], record["control"]) == (control.kind, control.kind)
    assert (body["cgroup"] is not None) == (control.parent is not None)
    if body["cgroup"] is not None:
        assert not Path(body["cgroup"]).exists(), "the job's cgroup was left"
    assert record["tree_empty"] is True


@pytest.mark.parametrize("escape", ESCAPES)
async def test_nothing_gets_away(floor: Floor, witness: Witness, control: Control, escape: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        for end in (*STOPPED, "natural"):
            tasks.create_task(nothing_gets_away(floor, witness, control, escape, end), name=end)


async def nothing_gets_away(floor: Floor, witness: Witness, control: Control, escape: str, end: str) -> None:
    run = await begun(floor, witness, escape, end)
    if end in STOPPED:
        assert left(run.mark), "the observer has to see the job while it is there"
        _ = run.stop() if end == "stop" else run.kill()
    record = await run.ended()
    living, found = witness.living(end), left(run.mark)
    assert not hopping(witness, run.mark)
    assert (living, found) == (0, []), escape
    await run.gone()
    whole(run, control)
    if end == "natural":
        assert (record["kind"], record["code"], record["stopped"]) == ("exited", 7, False)
        assert record["stragglers"] >= 1
    else:
        assert (record["kind"], record["stopped"], record["stragglers"]) == ("signaled", True, 0)
        assert record["signal"] in (9, 15)


async def test_stragglers_are_counted_and_the_code_stays_the_commands_own(floor: Floor, control: Control) -> None:
    run = await floor.shell("sleep 1000 & (setsid sleep 1000 &) ; sleep 1000 & exit 3", grace_s=10.0)
    record = await run.gone()
    assert (record["kind"], record["code"], record["stragglers"], record["killed"]) == ("exited", 3, 3, False)
    assert left(run.mark) == []
    whole(run, control)


async def test_where_nothing_outlived_the_command_nothing_is_counted_nor_waited_for(floor: Floor) -> None:
    run = await floor.shell("sleep 0.01 & wait; exit 5", grace_s=100.0)
    record = await run.ended()
    assert (record["code"], record["stragglers"], record["killed"], record["stopped"]) == (5, 0, False, False)
    handle = record["ended_at"]
    assert run.exit_file.stat().st_mtime - handle < 0.4, "it waited for nobody"


async def test_a_grace_that_is_used_is_not_waited_out(floor: Floor, control: Control) -> None:
    """The orphans go on for a moment after the leader; the record comes when they are gone, not when the grace is."""
    script = "(trap 'sleep 0.2; exit 0' TERM; echo ready; while :; do sleep 0.01; done) & trap 'exit 9' TERM; wait"
    run = await floor.shell(script, grace_s=60.0)
    await run.ready()
    run.stop()
    record = await run.ended()
    assert (record["kind"], record["code"], record["killed"]) == ("exited", 9, False)
    assert run.exit_file.stat().st_mtime - record["started_at"] < 30
    assert left(run.mark) == []


NEXT_LEG = """
next_leg() { touch "$0.leg"; trap '' TERM; setsid sleep 1000 & sleep 1000; }
trap 'next_leg & exit 0' TERM
echo ready
while :; do sleep 0.01; done
"""


async def test_a_trap_that_starts_the_next_leg_starts_nothing_that_survives(
    floor: Floor, control: Control, tmp_path: Path
) -> None:
    for grace_s in (0.3, 30.0):
        script = tmp_path / f"leg-{grace_s}.sh"
        script.write_text(NEXT_LEG)
        run = await floor.start(["/bin/bash", str(script), "MARK"], grace_s=grace_s)
        await run.ready()
        run.stop()
        if grace_s > 1:
            await until(Path(f"{script}.leg").exists, "the next leg had begun")
            run.kill()  # in the middle of the grace
        record = await run.ended()
        assert left(run.mark) == []
        await until(Path(f"{script}.leg").exists, "the trap did try", 0.1)
        assert (record["kind"], record["code"], record["stopped"], record["killed"]) == ("exited", 0, True, True)


async def test_what_a_killed_supervisor_leaves_is_found_and_killed(
    floor: Floor, witness: Witness, control: Control
) -> None:
    """Whatever kind there was: by the mark, by the group, or because the namespace's init died with its supervisor."""
    escapes = ["a cleared environment", "frozen in a group below its own", "a PID namespace of its own"]
    for number, name in enumerate(
        (*escapes, "a fork storm", "stopped under a tracer", "forks between the list and the kill")
    ):
        key = f"lost{number}"
        count, code = ESCAPES[name]
        run = await floor.start([*PYTHON, PRELUDE + code, "MARK", "on", str(await witness.listen(key))])
        await until(lambda key=key, count=count: len(witness.seen[key]) >= count, name)  # type: ignore[misc]
        handle = run.handle()
        os.kill(run.started.pid, 9)
        await asyncio.wait_for(handle.wait_gone(), 10)
        handle.close()
        identity = Identity.of(json.loads((run.folder / "supervisor.json").read_text()))
        job, attempt = run.folder.name.rsplit(".", 1)
        if control.kind == "pidns":  # nobody has to come for it
            await until(lambda run=run, key=key: not (witness.living(key) or left(run.mark)), name)  # type: ignore[misc]
        cleared = await survivors.kill(job, int(attempt), identity)
        assert (witness.living(key), left(run.mark)) == (0, []), name
        assert not hopping(witness, run.mark), name
        assert cleared.last.survivors == ()
        assert cleared.last.complete
        if identity.cgroup is not None:
            assert survivors.cgroup_pids(Path(identity.cgroup)) is None, "the job's cgroup was left"
