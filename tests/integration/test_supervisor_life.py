"""From the request to the record: what a command gets, how ends are named, who survives whom, who is found again."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.supervised import Floor, alive, until

from tenure.agent import adopt, survivors
from tenure.agent.adopt import Alive, Ended, Lost, examine
from tenure.agent.control import choose
from tenure.agent.spawner import Spawner, StartRefused, StartUnknown


@pytest.fixture
async def floor(tmp_path: Path) -> AsyncIterator[Floor]:
    made = Floor(tmp_path)
    yield made
    await made.close()


# --- how ends are named -------------------------------------------------------------------------------------------


async def test_an_exit_code_and_a_signal_are_told_apart(floor: Floor) -> None:
    exited = await (await floor.shell("exit 137")).ended()
    assert (exited["kind"], exited["code"], exited["signal"]) == ("exited", 137, None)
    signaled = await (await floor.shell("kill -SEGV $$")).ended()
    assert (signaled["kind"], signaled["code"], signaled["signal"]) == ("signaled", None, signal.SIGSEGV)
    assert (signaled["stopped"], signaled["killed"]) == (False, False)
    assert signaled["boot_id"] == adopt.here()[0]
    assert 0 < signaled["ended_at"] - signaled["started_at"] < 60


@pytest.mark.parametrize(
    ("argv", "spec", "code", "says"),
    [
        (["no-such-command-xyz"], {}, 127, "PATH"),
        (["/no/such/file"], {}, 127, "check the name"),
        (["/etc/passwd/x"], {}, 127, "check the name"),
        (["./orphan-script"], {}, 127, "#! line"),
        (["./not-executable"], {}, 126, "execute bit"),
        (["./no-format"], {}, 126, "#! line"),
        (["/"], {}, 126, "execute bit"),
        (["/bin/true"], {"cwd": "/no/such/folder"}, 126, "--cwd"),
        (["/bin/true", "x" * 3_000_000], {}, 126, "too long"),
        (["/bin/true"], {"env": {"BAD\0NAME": "1"}}, 126, "null"),
        ([], {}, 126, ""),
    ],
)
async def test_what_cannot_be_started_has_an_exit_record_that_says_what_to_do(
    floor: Floor, argv: list[str], spec: dict[str, Any], code: int, says: str
) -> None:
    for name, mode, text in (
        ("orphan-script", 0o755, "#!/no/such/interpreter\n"),
        ("not-executable", 0o644, "#!/bin/sh\n"),
        ("no-format", 0o755, "\x01\x02\x03"),
    ):
        (floor.root / name).write_text(text)
        (floor.root / name).chmod(mode)
    run = await floor.start(argv, **spec)
    ended = await run.ended()
    assert (ended["kind"], ended["code"], ended["signal"]) == ("spawn_failed", code, None)
    assert says in ended["error"]
    assert (ended["stragglers"], ended["killed"], ended["output_bytes"]) == (0, False, 0)


async def test_what_the_tree_used_is_counted(floor: Floor) -> None:
    run = await floor.python(
        """
if os.fork() == 0:
    block = bytearray(100_000_000)
    for at in range(0, len(block), 4096): block[at] = 1
    end = time.process_time() + 0.2
    while time.process_time() < end: pass
    os._exit(0)
os.wait()
"""
    )
    ended = await run.ended()
    assert 100_000 < ended["max_rss_kb"] < 200_000
    assert 0.2 <= ended["cpu_s"] < 5
    small = await (await floor.start(["/bin/true"])).ended()
    assert small["max_rss_kb"] is None  # below what the copy of the supervisor took before exec: not measured


# --- what a command gets ------------------------------------------------------------------------------------------


#: Signals 32 and 33 belong to the C library's threads. A posix_spawn of glibc hands them on as ignored (make uses it),
#: no program can tell by them, and glibc lets no program set them.
LIBRARYS_OWN = 0b11 << 31


def ignored(status: str) -> int:
    """The signals that a status file of /proc calls ignored, without those of the C library."""
    return int(status, 16) & ~LIBRARYS_OWN


async def test_a_command_gets_a_clean_start(floor: Floor) -> None:
    run = await floor.python(
        """
import resource
print(sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1])
print(os.readlink("/proc/self/fd/0"))
status = dict(l.split(":\\t") for l in open("/proc/self/status").read().splitlines() if ":\\t" in l)
print(status["SigBlk"])
print(status["SigIgn"])
print(os.getsid(0) == os.getpid() == os.getpgid(0))
print(oct(os.umask(0)), os.getcwd(), sorted(os.environ))
""",
        umask=0o027,
        env={"ONLY": "this", "LC_ALL": "C"},
        cwd="/usr",
    )
    await run.ended()
    ignored_by_python = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)  # by the test program itself
    lines = run.output.decode().splitlines()
    assert ignored(lines.pop(3)) == ignored_by_python
    assert lines == [
        "[0, 1, 2]",
        "/dev/null",
        f"{0:016x}",
        "True",
        "0o27 /usr ['LC_ALL', 'ONLY']",
    ]


async def test_any_bytes_reach_the_command(floor: Floor) -> None:
    """Also where the spawner has no locale, as it has none: names and arguments are bytes, not text."""
    argv = ["/bin/sh", "-c", 'printf "%s|%s" "$1" "$ODD"', "sh", "grüße \udcff\n"]
    run = await floor.start(argv, env={"ODD": "\udc80€"}, cwd=str(floor.root))
    await run.ended()
    assert run.output == "grüße ".encode() + b"\xff\n|\x80" + "€".encode()


async def test_dispositions_are_the_default_whatever_the_agent_ignores(tmp_path: Path) -> None:
    """An agent started by nohup ignores SIGHUP; one that lets the kernel reap ignores SIGCHLD. The command must not."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGCHLD)}
    made = Floor(tmp_path)
    try:
        await made.spawner.open()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    run = await made.start(["/bin/cat", "/proc/self/status"])
    ended = await run.ended()
    (line,) = (line for line in run.output.decode().splitlines() if line.startswith("SigIgn:"))
    assert ignored(line.split()[1]) == 0
    assert ended["code"] == 0
    await made.close()


# --- claims -------------------------------------------------------------------------------------------------------


def open_files(pid: int) -> list[str]:
    return [str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()]


def locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


async def test_a_claim_is_kept_until_the_outcome_is_written_and_never_inherited(floor: Floor) -> None:
    lock = floor.root / "claim"
    with lock.open("w") as claim:
        fcntl.flock(claim, fcntl.LOCK_EX)
        run = await floor.shell("sleep 1000 & echo ready; exec sleep 1000", claims=[claim.fileno()])
    await run.ready()
    assert locked(lock), "the supervisor keeps it after the agent's copy is closed"
    for pid in alive(run.mark):
        held = open_files(pid)
        assert str(lock) not in held
        assert len(held) == 3
    run.kill()
    await until(lambda: run.exit_file.exists() or not locked(lock), "one of the two")
    assert run.exit_file.exists(), "exit.json comes first"
    await run.gone()
    assert not locked(lock)


async def test_an_orphan_of_a_killed_supervisor_does_not_hold_the_claim(floor: Floor) -> None:
    """A killed wrapper once left an orphan with an inherited flock, which blocked its own owner for 50 minutes."""
    lock = floor.root / "claim"
    with lock.open("w") as claim:
        fcntl.flock(claim, fcntl.LOCK_EX)
        run = await floor.shell("(setsid sleep 1000 &); echo ready; exec sleep 1000", claims=[claim.fileno()])
        await run.ready()
        os.kill(run.started.pid, signal.SIGKILL)
        await until(lambda: isinstance(examine(run.folder), Lost), "the supervisor is gone")
        assert locked(lock), "the agent's own copy holds on while orphans are left"
        assert len(alive(run.mark)) == 2
    assert not locked(lock), "the orphans hold nothing"


# --- who survives whom --------------------------------------------------------------------------------------------

AGENT = """
import asyncio, sys
from pathlib import Path
from tenure.agent.spawner import Spawner
async def main():
    spawner = Spawner()
    started = await spawner.start(Path(sys.argv[1]))
    print(spawner.pid, started.pid, started.leader_pid, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


async def test_a_job_survives_the_agent_and_its_terminal(floor: Floor) -> None:
    script = "i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); sleep 0.002; done"
    folder, mark = floor.prepare(["/bin/sh", "-c", script])
    read, write = os.openpty()
    process = subprocess.Popen(  # noqa: ASYNC220 (returns at once)
        [sys.executable, "-c", AGENT, str(folder)], stdin=write, stderr=write, stdout=subprocess.PIPE,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, 0x540E, 0),
    )  # fmt: skip
    os.close(write)
    assert process.stdout
    with process, process.stdout as told:
        line = await asyncio.to_thread(told.readline)
        spawner, supervisor, leader = map(int, line.split())
        ticks = adopt.start_ticks_of(supervisor)
        os.close(read)  # the terminal closes: SIGHUP to its foreground group
        os.kill(supervisor, signal.SIGHUP)
        os.kill(supervisor, signal.SIGINT)
        process.kill()
    await until(
        lambda: adopt.start_ticks_of(spawner) is None or _dead(spawner), "the spawner saw the end of its socket"
    )
    found = examine(folder)
    assert isinstance(found, Alive)
    with found.handle as handle:
        assert (handle.pid, handle.start_ticks) == (supervisor, ticks)
        assert found.identity.leader_pid == leader
        await asyncio.wait_for(handle.wait_gone(), 20)
    ended = examine(folder)
    assert isinstance(ended, Ended)
    assert (ended.record["code"], ended.record["stopped"]) == (0, False)
    assert (folder / "output.bin").read_text() == "".join(f"line {i}\n" for i in range(400))
    assert alive(mark) == []


def _dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_a_dead_spawner_is_replaced_and_its_jobs_run_on(floor: Floor) -> None:
    first = await floor.shell("echo ready; exec sleep 1000")
    await first.ready()
    old = floor.spawner.pid
    assert old
    os.kill(old, signal.SIGKILL)
    runs = await asyncio.gather(*(floor.shell(f"exit {n}") for n in range(20)))
    assert [(await run.ended())["code"] for run in runs] == list(range(20))
    assert floor.spawner.pid not in (None, old)
    assert not first.exit_file.exists()
    assert first.kill()
    assert (await first.ended())["signal"] == 9


async def test_a_spawner_that_dies_again_and_again_starts_each_command_once(floor: Floor) -> None:
    log = floor.root / "log"

    async def killer() -> None:
        for _ in range(6):
            await asyncio.sleep(0.02)
            if floor.spawner.pid:
                os.kill(floor.spawner.pid, signal.SIGKILL)

    killing = asyncio.create_task(killer())
    runs = await asyncio.gather(*(floor.shell(f"echo {n} >> {log}") for n in range(60)))
    await killing
    for run in runs:
        assert (await run.ended())["code"] == 0
    assert sorted(map(int, log.read_text().split())) == list(range(60))


async def test_an_attempt_starts_once(floor: Floor) -> None:
    run = await floor.shell("echo x >> count; echo ready; sleep 1000", cwd=str(floor.root))
    await run.ready()
    with pytest.raises(StartRefused, match="FileExistsError"):
        await floor.spawner.start(run.folder)
    assert run.output == b"ready\n"
    run.kill()
    await run.gone()
    with pytest.raises(StartRefused):
        await floor.spawner.start(run.folder)
    assert (floor.root / "count").read_text() == "x\n"


@pytest.mark.parametrize("spec", [None, "{", '{"v": 1}'])
async def test_a_folder_without_a_usable_spec_is_refused_and_nothing_comes_of_it(
    floor: Floor, spec: str | None
) -> None:
    folder, _ = floor.prepare(["/bin/true"])
    (folder / "spec.json").unlink()
    if spec is not None:
        (folder / "spec.json").write_text(spec)
    with pytest.raises(StartRefused):
        await floor.spawner.start(folder)
    found = examine(folder)
    assert isinstance(found, Lost)
    assert found.reason == "never_started"


async def test_a_spawner_that_does_not_answer_leaves_the_start_unknown(tmp_path: Path) -> None:
    mute = tmp_path / "mute.py"
    mute.write_text("import sys\nsys.stdin.buffer.raw.read(1)\nimport time\ntime.sleep(100)\n")
    made = Floor(tmp_path, program=mute)
    folder, _ = made.prepare(["/bin/true"])
    spawner = Spawner(mute, timeout_s=0.3)
    with pytest.raises(StartUnknown):
        await spawner.start(folder)
    assert spawner.pid
    os.kill(spawner.pid, signal.SIGKILL)
    await spawner.close()


# --- who is found again -------------------------------------------------------------------------------------------


async def test_a_sealed_folder_can_never_start(floor: Floor) -> None:
    folder, mark = floor.prepare(["/bin/sleep", "1000"])
    found = examine(folder)
    assert isinstance(found, Lost)
    assert found.reason == "never_started"
    with pytest.raises(StartRefused):
        await floor.spawner.start(folder)
    assert alive(mark) == []
    again = examine(folder)
    assert isinstance(again, Lost)
    assert again.reason == "never_started"


async def test_sealing_and_starting_at_once_agree(floor: Floor) -> None:
    """Whoever wins, both sides know it: either the command runs and is found alive, or it never runs."""
    outcomes = set()
    for _ in range(30):
        folder, mark = floor.prepare(["/bin/sleep", "1000"])
        starting = asyncio.ensure_future(floor.spawner.start(folder))
        await asyncio.sleep(0)
        found = await asyncio.to_thread(examine, folder)
        try:
            await starting
        except StartRefused:
            assert isinstance(found, Lost)
            assert found.reason == "never_started"
            assert alive(mark) == []
            outcomes.add("sealed")
        else:
            assert isinstance(found, Alive)
            found.handle.kill()
            await found.handle.wait_gone()
            found.handle.close()
            outcomes.add("started")
    assert outcomes


async def test_a_lost_supervisor_is_told_by_what_is_known(floor: Floor) -> None:
    run = await floor.shell("echo ready; exec sleep 1000")
    await run.ready()
    found = examine(run.folder)
    assert isinstance(found, Alive)
    found.handle.close()
    path = run.folder / "supervisor.json"
    record = json.loads(path.read_bytes())
    for change, reason in (
        ({"boot_id": "another"}, "host_rebooted"),
        ({"pidns": 1}, "other_namespace"),
        ({"start_ticks": record["start_ticks"] - 1}, "gone"),
        ({"pid": 4_000_000}, "gone"),
        ({"pid": None}, "unreadable"),
    ):
        path.write_text(json.dumps(record | change))
        lost = examine(run.folder)
        assert isinstance(lost, Lost)
        assert lost.reason == reason
    path.write_text("")
    lost = examine(run.folder)
    assert isinstance(lost, Lost)
    assert lost.reason == "unreadable"
    path.write_text(json.dumps(record))


async def test_a_handle_never_signals_a_later_process_of_the_same_number(floor: Floor) -> None:
    bystander = await asyncio.create_subprocess_exec("/bin/sleep", "1000")
    ticks = adopt.start_ticks_of(bystander.pid)
    assert ticks
    assert adopt.Handle.open(floor.root, bystander.pid, ticks - 1) is None
    handle = adopt.Handle.open(floor.root, bystander.pid, ticks)
    assert handle
    assert not handle.gone
    waiters = [asyncio.create_task(handle.wait_gone()) for _ in range(3)]
    waiters[0].cancel()
    bystander.kill()
    await bystander.wait()
    await asyncio.wait_for(asyncio.gather(*waiters[1:]), 5)
    assert (handle.gone, handle.stop(), handle.kill()) == (True, False, False)
    handle.close()


# --- whose supervisor died ----------------------------------------------------------------------------------------

SURVIVORS = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ignore(); forever()
    os._exit(0)
os.wait()
if os.fork() == 0:
    os.execve(sys.executable, ["hidden", "-I", "-S", "-c", "import time;time.sleep(1000)", MARK], {})
if os.fork() == 0:
    os.setsid(); ignore()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if os.fork() == 0:
            os.setsid(); time.sleep(0.05); os._exit(0)
        time.sleep(0.005)
if os.fork() == 0:
    os.kill(os.getpid(), signal.SIGSTOP); forever()
time.sleep(0.1); ready(); forever()
"""


@pytest.mark.parametrize("control", ["subreaper", "cgroup2", "freezer"])
async def test_the_tree_of_a_killed_supervisor_is_found_and_killed(floor: Floor, control: str) -> None:
    floor.control = choose(control)
    if floor.control.kind != control:
        pytest.skip(f"no {control} for jobs here: {floor.control.reason}")
    run = await floor.python(SURVIVORS)
    await run.ready()
    os.kill(run.started.pid, signal.SIGKILL)
    await until(lambda: isinstance(examine(run.folder), Lost), "the supervisor is gone")
    lost = examine(run.folder)
    assert isinstance(lost, Lost)
    assert lost.reason == "gone"
    job, attempt = run.folder.name.rsplit(".", 1)
    before = set(alive(run.mark))
    seen = survivors.census(job, int(attempt), lost.identity)
    assert len(before) >= 5
    assert {s.pid for s in seen.survivors} >= before & set(alive(run.mark))
    assert seen.complete
    # Without the mark only a cgroup is proof that nobody hides.
    unmarked = replace(lost.identity, mark=None) if lost.identity else None
    assert survivors.census(job, int(attempt), unmarked).complete == (control != "subreaper")
    outcome = await survivors.kill(job, int(attempt), lost.identity)
    assert alive(run.mark) == []
    assert outcome.last.survivors == ()
    assert outcome.rounds >= 1
    assert {s.pid for s in outcome.killed} >= {run.started.leader_pid}
    if lost.identity and lost.identity.cgroup:
        assert survivors.cgroup_pids(Path(lost.identity.cgroup)) is None, "the job's cgroup was left"
    assert not run.exit_file.exists(), "nobody saw the end: no record is made up"


async def test_bystanders_are_left_alone(floor: Floor) -> None:
    mine = await floor.shell("echo ready; exec sleep 1000")
    other = await floor.shell("echo ready; exec sleep 1000")
    await asyncio.gather(mine.ready(), other.ready())
    found = examine(mine.folder)
    assert isinstance(found, Alive)
    with found.handle:
        job = mine.folder.name.rsplit(".", 1)[0]
        assert {s.pid for s in survivors.census(job, 1, found.identity).survivors} == {mine.started.leader_pid}
        assert survivors.census(job, 2, None).survivors == ()
        # A number that passed on to a process that began at another time is not the leader.
        reused = replace(found.identity, leader_pid=other.started.leader_pid, leader_start_ticks=1, mark=None)
        assert {s.pid for s in survivors.census(job, 1, reused).survivors} == {mine.started.leader_pid}
    for run in (mine, other):
        run.kill()
        await run.gone()


def census_of(identity: adopt.Identity, pid: int | None) -> str:
    found = survivors.census("nobody", 1, identity)
    return f"{pid in [u.pid for u in found.unreadable]} {found.survivors}\n{ {u.reason for u in found.unreadable} }"


def as_nobody(call: Callable[[], str]) -> str:
    """What a call answers in a child of another user. Forked, not executed: the interpreter may be out of its reach."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            os.write(write, call().encode())
        except BaseException as e:
            os.write(write, repr(e).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as told:
        text = told.read()
    os.waitpid(pid, 0)
    return text


@pytest.mark.root(reason="a process of another user that cannot be read is reported, not passed over")
async def test_who_could_not_be_read_is_reported(floor: Floor) -> None:
    """An unprivileged agent cannot read what became another user's."""
    run = await floor.shell("echo ready; exec sleep 1000")
    await run.ready()
    identity = json.loads((run.folder / "supervisor.json").read_bytes())
    identity = adopt.Identity.of(identity | {"leader_pid": None})
    unmarked = replace(identity, mark=None)
    found, reasons = as_nobody(lambda: census_of(unmarked, run.started.leader_pid)).splitlines()
    assert (found, reasons) == ("True ()", "{'Permission denied'}")
    # The mark is there for everybody to read.
    found, _ = as_nobody(lambda: census_of(identity, run.started.leader_pid)).splitlines()
    assert f"pid={run.started.leader_pid}" in found
    assert "sign='mark'" in found
    run.kill()
    await run.gone()


# --- how quick, how small -----------------------------------------------------------------------------------------


def memory_of(pid: int) -> dict[str, int]:
    """The sizes of /proc/PID/smaps_rollup, in KiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


async def test_a_start_costs_milliseconds_and_a_supervisor_little_memory(floor: Floor) -> None:
    """A loose bound: the machine may be busy. The bench measures."""
    await floor.spawner.open()
    await (await floor.start(["/bin/true"])).gone()
    took = []
    for _ in range(20):
        folder, _ = floor.prepare(["/bin/true"])
        began = asyncio.get_running_loop().time()
        await floor.spawner.start(folder)
        took.append(asyncio.get_running_loop().time() - began)
        await until((folder / "exit.json").exists, "ended")
    assert sorted(took)[10] < 0.05, took
    run = await floor.shell("echo ready; exec sleep 1000")
    await run.ready()
    sizes = memory_of(run.started.pid)
    assert sizes["Rss"] < 20_000
    assert sizes["Private_Dirty"] < 4_000
    run.kill()
    await run.gone()
