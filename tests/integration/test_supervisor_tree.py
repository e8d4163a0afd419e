"""A job is its whole process tree: how its end is asked for, waited for and told, and ends at any instant whatever.

What each kind of control must hold against every escape is in tests/contract/test_tree_control.py. Outside tools judge
here too: /proc, by a marker that every member carries.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.supervised import PRELUDE, PYTHON, Floor, Running, alive, tool, until

from tenure.agent.control import choose
from tenure.agent.spawner import PROGRAM

DOUBLE_FORK = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ignore(); ready(); forever()
    os._exit(0)
os.wait(); time.sleep(0.05); lead()
"""


@pytest.fixture(params=["subreaper", "cgroup2"])
async def floor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Floor]:
    control = choose(request.param)
    if control.kind != request.param:
        pytest.skip(f"no {request.param} for jobs here: {control.reason}")
    made = Floor(tmp_path, control)
    yield made
    await made.close()


async def test_a_straggler_that_ignores_term_is_killed_after_the_settling_time(floor: Floor) -> None:
    run = await floor.shell("(trap '' TERM; while :; do sleep 1000; done) & sleep 0.05; exit 0", grace_s=10.0)
    record = await run.ended()
    assert (record["code"], record["killed"]) == (0, True)
    assert record["stragglers"] == 2  # the subshell and its sleep
    assert alive(run.mark) == []


async def test_a_straggler_may_finish_what_it_is_doing(floor: Floor) -> None:
    run = await floor.python(
        """
pid = os.fork()
if pid == 0:
    def finish(number, frame):
        time.sleep(0.05); os.write(1, b"flushed\\n"); os._exit(0)
    signal.signal(signal.SIGTERM, finish); ready(); forever()
time.sleep(0.05); sys.exit(0)
""",
        grace_s=10.0,
    )
    record = await run.ended()
    assert run.output.endswith(b"flushed\n")
    assert (record["killed"], record["stragglers"]) == (False, 1)


async def test_a_stop_leaves_the_grace_to_those_who_use_it(floor: Floor) -> None:
    run = await floor.shell("trap 'echo cleaned; exit 9' TERM; echo ready; while :; do sleep 0.01; done", grace_s=10.0)
    await run.ready()
    run.stop()
    record = await run.ended()
    assert run.stream(1) == b"ready\ncleaned\n"
    assert (record["kind"], record["code"], record["stopped"], record["killed"]) == ("exited", 9, True, False)


async def test_a_kill_during_the_grace_does_not_wait_for_its_end(floor: Floor) -> None:
    run = await floor.python("ignore(); ready(); forever()", grace_s=1000.0)
    await run.ready()
    run.stop()
    run.stop()  # a second one changes nothing
    run.kill()
    record = await run.ended()
    assert (record["stopped"], record["killed"], record["signal"]) == (True, True, 9)


async def test_a_stop_at_the_very_instant_of_the_start_is_not_lost(floor: Floor) -> None:
    """From the first moment at which the supervisor's pid can be known, which is before it forked the command."""

    async def once(number: int) -> None:
        folder, mark = floor.prepare(["/bin/sleep", "1000"], grace_s=5.0)
        starting = asyncio.ensure_future(floor.spawner.start(folder))
        await until((folder / "supervisor.json").exists, "a supervisor began", pause_s=0)
        if number % 2:
            run = Running(folder, mark, await starting)
            floor.runs.append(run)
            run.stop()
        else:
            pid = None
            while pid is None:
                head = (folder / "supervisor.json").read_text().partition('"pid": ')[2].partition(",")[0]
                pid = int(head) if head.isdigit() else None
            os.kill(pid, 15)  # it is alive: nothing but this signal ends it
            run = Running(folder, mark, await starting)
            floor.runs.append(run)
        record = await run.ended()
        assert alive(mark) == []
        assert (record["kind"], record["signal"], record["stopped"]) == ("signaled", 15, True)

    for number in range(20):
        await once(number)


async def test_zombies_of_the_tree_are_reaped_while_it_runs(floor: Floor) -> None:
    run = await floor.python(
        """
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
ready(); forever()
"""
    )
    await run.ready()

    def children() -> list[str]:
        return Path(f"/proc/{run.started.pid}/task/{run.started.pid}/children").read_text().split()

    await until(lambda: children() == [str(run.started.leader_pid)], "only the leader is left below the supervisor")
    run.kill()
    await run.ended()


HOPPER = """
#include <signal.h>
#include <unistd.h>
int main(int argc, char **argv) {
    signal(SIGTERM, SIG_IGN);
    if (fork() == 0) {
        write(1, "ready\\n", 6);
        for (;;) { if (fork() > 0) _exit(0); setsid(); }
    }
    for (;;) pause();
}
"""


async def test_a_native_process_that_hops_is_run_down(floor: Floor, tmp_path: Path) -> None:
    """Fork, leave the session, exit: some fifteen thousand times a second, each time another pid."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    (tmp_path / "hopper.c").write_text(HOPPER)
    await tool(compiler, "-O1", "-o", tmp_path / "hopper", tmp_path / "hopper.c")
    run = await floor.start([str(tmp_path / "hopper"), "MARK"])
    await run.ready()
    run.kill()
    record = await run.ended()
    assert alive(run.mark) == []
    assert (record["killed"], record["kind"]) == (True, "signaled")


# A tree with a bit of everything, ended at random instants: before exec, while it builds, when it stands.
MIXED = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ignore()
        while True:
            if os.fork() == 0:
                os.setsid(); time.sleep(0.01); os._exit(0)
            time.sleep(0.003)
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pass
    os._exit(0)
if os.fork() == 0:
    os.closerange(0, 100); ignore(); forever()
ready()
lead()
"""


async def ended_at_a_random_instant(floor: Floor, random_: random.Random) -> list[int]:
    """One run of the mixed tree, ended at a random instant; the pids found alive when exit.json was there."""
    end = random_.choice(["stop", "kill", "natural", "kill leader"])
    run = await floor.python(MIXED, natural=end == "natural", grace_s=random_.choice([0.0, 0.05]))
    await asyncio.sleep(random_.expovariate(1 / 0.03))
    if end == "kill leader" and not run.exit_file.exists() and run.started.leader_pid:
        os.kill(run.started.leader_pid, 9)
    elif end == "stop" and not run.exit_file.exists():
        run.stop()
    elif end == "kill" and not run.exit_file.exists():
        run.kill()
    await run.ended()
    return alive(run.mark)


async def two_hundred_ends(floor: Floor, seed: int, runs: int = 200) -> list[int]:
    random_ = random.Random(seed)
    gate = asyncio.Semaphore(6)

    async def one() -> list[int]:
        async with gate:
            return await ended_at_a_random_instant(floor, random_)

    return [pid for left in await asyncio.gather(*(one() for _ in range(runs))) for pid in left]


async def test_two_hundred_ends_at_random_instants_leave_nobody(floor: Floor) -> None:
    seed = random.randrange(1 << 30)
    runs = 100  # of each control
    assert await two_hundred_ends(floor, seed, runs) == [], f"seed {seed}"
    assert len(floor.runs) == runs


@pytest.fixture
def leader_only(tmp_path: Path) -> Path:
    """The supervisor with one guard removed: it takes the leader's end for the end of the tree."""
    text = PROGRAM.read_text()
    guard = "return self.reap() and not any("
    assert text.count(guard) == 1
    mutant = tmp_path / "mutant.py"
    mutant.write_text(text.replace(guard, "return (self.reap() or self.over) and not any("))
    return mutant


async def test_the_observer_catches_a_supervisor_that_kills_the_leader_only(leader_only: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    mutated = Floor(tmp_path / "runs", program=leader_only)
    try:
        assert await two_hundred_ends(mutated, 1, 20) != []
        run = await mutated.python(DOUBLE_FORK)
        await run.ready()
        run.stop()
        await run.ended()
        assert alive(run.mark) != []
    finally:
        await mutated.close()


def test_the_prelude_and_the_programs_compile() -> None:
    for code in (DOUBLE_FORK, MIXED):
        compile(PRELUDE + code, "escape", "exec")
    assert PYTHON[-1] == "-c"
