"""/proc with real processes: trees, double forks, handles, environments, and processes that end while looked at."""

from __future__ import annotations

import asyncio
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tenure.domain.reading import Reason, Unavailable, Value
from tenure.probes import proc
from tenure.probes.proc_child import ProcProbe

Start: TypeAlias = Callable[..., tuple[subprocess.Popen[str], str]]

HOLD = """
import mmap, sys
open_files = [open(name, "rb") for name in sys.argv[1:]]
maps = [mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) for f in open_files if ".so" in f.name]
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a command with pipes and waits for its first line."""
    started: list[subprocess.Popen[str]] = []

    def begin(argv: list[str], env: dict[str, str] | None = None) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_own_process_is_what_the_kernel_says() -> None:
    table = proc.snapshot()
    me = table.entries[os.getpid()]
    assert (me.ppid, me.uid, me.session) == (os.getppid(), os.geteuid(), os.getsid(0))
    assert me.state == "R"
    assert os.getpid() in table
    assert 2**22 + 7 not in table


def test_a_tree_holds_children_and_grandchildren(start: Start) -> None:
    shell, first = start(["sh", "-c", "sh -c 'sleep 60 >/dev/null & echo $!; wait' & wait"])
    table = proc.snapshot()
    tree = proc.tree(shell.pid, table)
    assert tree[0].pid == shell.pid
    grandchild = int(first)
    assert grandchild in {entry.pid for entry in tree}
    assert len(tree) == 3
    started = tree[0].start_ticks
    assert proc.tree(shell.pid, table, start_ticks=started) == tree
    assert proc.tree(shell.pid, table, start_ticks=started + 1) == ()  # the number belongs to another process now
    os.kill(grandchild, 9)


def test_what_left_the_tree_is_found_by_its_environment(start: Start) -> None:
    job = f"job-{os.getpid()}-{time.monotonic_ns()}"
    env = {"PATH": os.defpath, "RC_JOB_ID": job}
    leader, first = start(["sh", "-c", "(setsid sleep 60 >/dev/null & echo $!)"], env=env)
    survivor = int(first)
    assert leader.wait(10) == 0
    eventually(lambda: [e.pid for e in proc.survivors("RC_JOB_ID", job, proc.snapshot())[0]] == [survivor])
    assert proc.survivors("RC_JOB_ID", job[:-1], proc.snapshot())[0] == ()  # the whole value counts
    has = proc.environ_has(survivor, "RC_JOB_ID", job)
    assert isinstance(has, Value)
    assert has.value
    os.kill(survivor, 9)
    eventually(lambda: proc.survivors("RC_JOB_ID", job, proc.snapshot())[0] == ())


def test_cpu_seconds_include_children_that_ended(start: Start) -> None:
    burn = "import time; t = time.process_time()\nwhile time.process_time() - t < 0.3: pass"
    shell, first = start(["sh", "-c", f"{sys.executable} -S -c '{burn}'; echo done; read x"])
    assert first == "done"
    tree = proc.tree(shell.pid, proc.snapshot())
    assert [entry.pid for entry in tree] == [shell.pid]
    assert 0.25 <= proc.cpu_seconds(tree) <= 2


def test_open_device_files_and_mapped_libraries(tmp_path: Path, start: Start) -> None:
    names = ["nvidia-uvm", "nvidia0", "renderD128", "libcuda.so.1", "harmless"]
    for name in names:
        (tmp_path / name).write_bytes(b"x" * mmap.PAGESIZE)
    holder, _ = start([sys.executable, "-c", HOLD, *(str(tmp_path / name) for name in names)])
    found = proc.handles(holder.pid)
    assert isinstance(found, Value)
    assert found.value.device_files == tuple(str(tmp_path / n) for n in ("nvidia-uvm", "nvidia0", "renderD128"))
    assert found.value.kinds == {"nvidia-uvm", "nvidia", "render"}
    assert found.value.libraries == ("libcuda.so.1",)
    assert found.value.compute_capable


def test_a_process_without_any_reads_as_having_none(start: Start) -> None:
    holder, _ = start([sys.executable, "-c", HOLD])
    found = proc.handles(holder.pid)
    assert isinstance(found, Value)
    assert found.value == proc.Handles((), (), frozenset())
    assert not found.value.compute_capable


def test_an_ended_process_vanished_and_is_not_one_without_handles(
    start: Start,
) -> None:
    holder, _ = start([sys.executable, "-c", HOLD])
    entry = proc.read_entry(holder.pid)
    assert entry is not None
    assert isinstance(proc.handles(holder.pid, start_ticks=entry.start_ticks + 1), proc.Vanished)
    holder.kill()
    eventually(lambda: (e := proc.read_entry(holder.pid)) is not None and e.state == "Z")
    assert isinstance(proc.handles(holder.pid), proc.Vanished)  # a zombie holds nothing and was not looked at
    holder.wait(10)
    assert isinstance(proc.handles(holder.pid), proc.Vanished)
    assert isinstance(proc.environ_has(holder.pid, "A", "b"), proc.Vanished)
    assert proc.read_entry(holder.pid) is None


def test_a_process_whose_main_thread_ended_still_holds_what_it_holds(tmp_path: Path, start: Start) -> None:
    (tmp_path / "nvidia-uvm").write_bytes(b"x")
    script = (
        "import ctypes, os, threading, time, sys\n"
        f"f = open({str(tmp_path / 'nvidia-uvm')!r})\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('ready', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    holder, _ = start([sys.executable, "-c", script])
    eventually(lambda: (e := proc.read_entry(holder.pid)) is not None and e.state == "Z")
    found = proc.handles(holder.pid)
    assert isinstance(found, Value)
    assert found.value.kinds == {"nvidia-uvm"}


def test_a_table_read_while_processes_come_and_go() -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            subprocess.run(["true"], check=True)

    churner = threading.Thread(target=churn)
    churner.start()
    try:
        for _ in range(50):
            table = proc.snapshot()
            assert os.getpid() in table.entries
            assert table.unreadable == ()
    finally:
        stop.set()
        churner.join()


def test_a_broken_stat_file_is_no_process(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("7 (half")
    (tmp_path / "8").mkdir()
    assert proc.snapshot(tmp_path).entries == {}


async def test_the_child_answers_as_the_functions_do(tmp_path: Path, start: Start) -> None:
    (tmp_path / "nvidia-uvm").write_bytes(b"x")
    holder, _ = start([sys.executable, "-c", HOLD, str(tmp_path / "nvidia-uvm")], env={"RC_JOB_ID": "j7"})
    entry = proc.read_entry(holder.pid)
    assert entry is not None
    gone = entry._replace(pid=2**22 - 1)
    probe = ProcProbe(deadline_s=5)
    try:
        found = await probe.handles([entry, gone])
        held = found[holder.pid]
        assert isinstance(held, Value)
        direct = proc.handles(holder.pid)
        assert isinstance(direct, Value)
        assert held.value == direct.value
        assert isinstance(found[gone.pid], proc.Vanished)
        has = await probe.environ_has([holder.pid, os.getpid(), gone.pid], "RC_JOB_ID", "j7")
        assert [getattr(has[pid], "value", None) for pid in (holder.pid, os.getpid(), gone.pid)] == [True, False, None]
        disks = await probe.disk_free([str(tmp_path), "/nonexistent"])
        free = disks[str(tmp_path)]
        assert isinstance(free, Value)
        assert free.value.size == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
        missing = disks["/nonexistent"]
        assert isinstance(missing, Unavailable)
        assert missing.reason is Reason.NOT_SUPPORTED
    finally:
        await probe.close()


async def test_a_child_killed_between_two_calls_is_replaced_unnoticed() -> None:
    probe = ProcProbe(deadline_s=5)
    try:
        await probe.disk_free(["/"])
        assert probe._child is not None
        pid = probe._child.pid
        os.kill(pid, 9)
        deadline = time.monotonic() + 10
        while (entry := proc.read_entry(pid)) is not None and entry.state != "Z":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        assert isinstance((await probe.disk_free(["/"]))["/"], Value)
    finally:
        await probe.close()


async def test_a_stopped_child_is_left_behind_and_replaced() -> None:
    """Stopped, it answers nothing: as good as stuck in the kernel, for whoever waits."""
    me = proc.read_entry(os.getpid())
    assert me is not None
    probe = ProcProbe(deadline_s=0.3)
    try:
        await probe.disk_free(["/"])
        assert probe._child is not None
        os.kill(probe._child.pid, 19)
        began = asyncio.get_running_loop().time()
        first = await probe.disk_free(["/", "/proc"])
        assert asyncio.get_running_loop().time() - began < 3
        stuck = first["/"]
        assert isinstance(stuck, Unavailable)
        assert stuck.reason is Reason.TIMEOUT
        assert isinstance(first["/proc"], Value)  # the second subject went to a fresh child
        assert isinstance((await probe.handles([me]))[os.getpid()], Value)
    finally:
        await probe.close()
