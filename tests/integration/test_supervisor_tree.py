"""A job is its whole process tree: whatever it does, nothing of it is alive once exit.json exists.

One suite of escapes runs against both controls (cgroup2 with cgroup.kill, and the subreaper alone) and against the
three ways to end: a stop with its grace, a kill, and a leader that ends by itself. Outside tools judge: /proc, by a
marker that every member carries.
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

from tenure.agent import cgroups
from tenure.agent.spawner import PROGRAM

# Each tells what must not get away. The leader calls ready() when the tree stands.
ESCAPES = {
    "setsid": """
if os.fork() == 0:
    os.setsid(); ignore(); ready(); forever()
lead() if not NATURAL else (time.sleep(0.05), lead())
""",
    "double fork": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ignore(); ready(); forever()
    os._exit(0)
os.wait(); time.sleep(0.05); lead()
""",
    "ignores TERM, leader and child": """
ignore()
if os.fork() == 0:
    ready(); forever()
time.sleep(0.05); lead()
""",
    "trap starts new processes": """
def trap(number, frame):
    if os.fork() == 0:
        os.setsid(); ignore()
        if os.fork() == 0:
            forever()
        forever()
signal.signal(signal.SIGTERM, trap)
if os.fork() == 0:
    ready(); forever()
time.sleep(0.05); lead()
""",
    "another name and no environment": """
if os.fork() == 0:
    os.setsid()
    code = "import signal,time,os;signal.signal(15,signal.SIG_IGN);os.write(1,b'ready\\\\n');time.sleep(1000)"
    os.execve(sys.executable, ["[kworker/7:7]", "-I", "-S", "-c", code, MARK], {})
time.sleep(0.1); lead()
""",
    "closed descriptors": """
if os.fork() == 0:
    ready(); os.setsid(); os.closerange(0, 256); ignore()
    if os.fork() == 0:
        forever()
    os._exit(0)
os.wait(); lead()
""",
    "stopped child": """
child = os.fork()
if child == 0:
    ignore(); os.kill(os.getpid(), signal.SIGSTOP); forever()
os.waitpid(child, os.WUNTRACED); ready(); lead()
""",
    "stopped leader group": """
child = os.fork()
if child == 0:
    os.setpgid(0, 0); ignore(); os.kill(os.getpid(), signal.SIGSTOP); forever()
os.waitpid(child, os.WUNTRACED); ready(); lead()
""",
    "zombies nobody waits for": """
if os.fork() == 0:
    os.setsid(); ignore()
    for _ in range(5):
        if os.fork() == 0:
            os._exit(0)
    ready(); forever()
time.sleep(0.1); lead()
""",
    "suspended in vfork": """
if os.fork() == 0:
    os.setsid(); ignore(); ready()
    if LIBC.vfork() == 0:
        while True:
            LIBC.pause()
time.sleep(0.1); lead()
""",
    "first thread ended": """
if os.fork() == 0:
    import _thread
    os.setsid(); ignore()
    _thread.start_new_thread(forever, ())
    time.sleep(0.05); ready()
    LIBC.syscall(60 if os.uname().machine == "x86_64" else 93, 0)
time.sleep(0.15); lead()
""",
    "a subreaper of its own": """
if os.fork() == 0:
    LIBC.prctl(36, 1, 0, 0, 0); os.setsid(); ignore()
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                forever()
            os._exit(0)
    ready(); forever()
time.sleep(0.1); lead()
""",
    "respawns what dies": """
if os.fork() == 0:
    os.setsid(); ignore()
    for _ in range(3):
        if os.fork() == 0:
            forever()
    ready()
    while True:
        os.wait()
        if os.fork() == 0:
            forever()
time.sleep(0.1); lead()
""",
    "fork storm": """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid(); ignore()
        while True:
            if os.fork() == 0:
                if os.fork() == 0:
                    os.setsid()
                time.sleep(0.05); os._exit(0)
            time.sleep(0.002)
time.sleep(0.1); ready(); lead()
""",
    "hops from process to process": """
if os.fork() == 0:
    ignore(); ready()
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()
time.sleep(0.05); lead()
""",
}


@pytest.fixture(scope="module")
def cgroup_parent() -> str:
    found = cgroups.probe()
    if found.parent is None:
        pytest.skip(f"no cgroup v2 for jobs here: {found.reason}")
    return found.parent


@pytest.fixture(params=["subreaper", "cgroup2"])
async def floor(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Floor]:
    parent = request.getfixturevalue("cgroup_parent") if request.param == "cgroup2" else None
    made = Floor(tmp_path, parent)
    yield made
    await made.close()


def control_of(run: Running) -> str:
    text = (run.folder / "supervisor.json").read_text()
    return "cgroup2" if '"control": "cgroup2"' in text else "subreaper"


@pytest.mark.parametrize("escape", ESCAPES)
async def test_nothing_of_the_tree_is_alive_once_exit_json_exists(floor: Floor, escape: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        for end in ("stop", "kill", "natural"):
            tasks.create_task(nothing_is_alive(floor, escape, end), name=end)


async def nothing_is_alive(floor: Floor, escape: str, end: str) -> None:
    run = await floor.python(ESCAPES[escape], natural=end == "natural")
    await run.ready()
    if end == "natural":
        record = await run.ended()
        left = alive(run.mark)
        assert (record["kind"], record["code"], record["stopped"]) == ("exited", 7, False)
        assert record["stragglers"] >= 1
    else:
        assert len(alive(run.mark)) >= 1
        _ = run.stop() if end == "stop" else run.kill()
        record = await run.ended()
        left = alive(run.mark)
        assert (record["stopped"], record["stragglers"], record["kind"]) == (True, 0, "signaled")
        assert record["signal"] in (9, 15)
    assert left == []
    assert record["tree_empty"] is True
    assert control_of(run) == ("cgroup2" if floor.cgroup_parent else "subreaper")
    if floor.cgroup_parent:
        name = f"tenure-{record['job']}.{record['attempt']}"
        assert not (Path(floor.cgroup_parent) / name).exists(), "the job's cgroup was left"


async def test_stragglers_are_counted_and_the_code_stays_the_commands_own(floor: Floor) -> None:
    run = await floor.shell("sleep 1000 & (setsid sleep 1000 &) ; sleep 1000 & exit 3")
    record = await run.ended()
    assert (record["kind"], record["code"], record["stragglers"], record["killed"]) == ("exited", 3, 3, False)
    assert alive(run.mark) == []


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


async def test_nothing_is_counted_where_nothing_outlived_the_command(floor: Floor) -> None:
    record = await (await floor.shell("sleep 0.01 & wait; exit 5")).ended()
    assert (record["code"], record["stragglers"], record["killed"], record["stopped"]) == (5, 0, False, False)


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
    guard = "return self.reap() and not (self.cgroup and "
    assert text.count(guard) == 1
    mutant = tmp_path / "mutant.py"
    mutant.write_text(text.replace(guard, "return (self.reap() or self.over) and not (False and "))
    return mutant


async def test_the_observer_catches_a_supervisor_that_kills_the_leader_only(leader_only: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    mutated = Floor(tmp_path / "runs", None, leader_only)
    try:
        assert await two_hundred_ends(mutated, 1, 20) != []
        run = await mutated.python(ESCAPES["double fork"])
        await run.ready()
        run.stop()
        await run.ended()
        assert alive(run.mark) != []
    finally:
        await mutated.close()


def test_the_prelude_and_the_programs_compile() -> None:
    for code in (*ESCAPES.values(), MIXED):
        compile(PRELUDE + code, "escape", "exec")
    assert PYTHON[-1] == "-c"
