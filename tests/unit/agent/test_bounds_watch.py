"""The companion that watches bounds: what it reads of real processes and files, and what it does on a full disk."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from tenure.agent import adopt, bounds
from tenure.agent import records as r
from tenure.agent.options import Options
from tenure.agent.runs import Run
from tenure.agent.shell import Shell
from tenure.domain.bounds import Limits
from tenure.domain.instructions import Grant
from tenure.domain.job import JobSpec
from tenure.domain.reading import Reason, Unavailable, Value
from tenure.durable import LogFailed
from tenure.probes import proc

KEY = ("j1", 1)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def start_ticks(pid: int) -> int:
    entry = proc.read_entry(pid)
    assert entry is not None
    return entry.start_ticks


# -- what is read ------------------------------------------------------------------------------------------------------


def test_output_is_counted_also_where_nothing_of_it_can_be_stored(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    def count() -> int:
        told = bounds.output_count(tmp_path, sleeper.pid)
        assert isinstance(told, Value)
        return told.value

    before = count()
    assert count() == before, "one that waits takes nothing"
    assert sleeper.stdin is not None
    assert sleeper.stdout is not None
    sleeper.stdin.write(b"0123456789")  # taken from a pipe, and stored nowhere
    sleeper.stdin.flush()
    assert sleeper.stdout.read(10) == b"0123456789"
    assert count() == before + 10
    (tmp_path / "output.bin").write_bytes(b"x" * 7)
    assert count() == before + 17


def test_a_full_disk_is_output_that_cannot_be_read_where_the_kernel_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = 2**22 + 1  # above the highest pid: no account of it
    assert isinstance(bounds.output_count(tmp_path, gone), Value)
    full = os.statvfs_result((4096, 4096, 100, 0, 0, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    told = bounds.output_count(tmp_path, gone)
    assert isinstance(told, Unavailable)
    assert "full" in told.detail


def test_cpu_of_a_tree_counts_what_its_ended_children_took_and_one_that_is_gone_is_unknown() -> None:
    burn = f"{sys.executable} -c 'sum(range(6000000))'"
    with subprocess.Popen(
        ["sh", "-c", f"{burn}; echo; read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        ticks = start_ticks(shell.pid)
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"\n"
        told = bounds.cpu_used(shell.pid, ticks)
        assert isinstance(told, Value)
        assert told.value >= 0.05
        another = bounds.cpu_used(shell.pid, ticks + 1)
        assert isinstance(another, Unavailable), "a later process of that number is not it"
        shell.communicate(b"x\n")
    assert isinstance(bounds.cpu_used(shell.pid, ticks), Unavailable)


def test_processes_that_may_not_be_looked_at_make_cpu_work_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = proc.snapshot()
    hidden = proc.ProcTable(whole.entries, whole.at, (12345,), whole.children)
    monkeypatch.setattr(proc, "snapshot", lambda: hidden)
    told = bounds.cpu_used(os.getpid(), start_ticks(os.getpid()))
    assert isinstance(told, Unavailable)
    assert (told.reason, "12345" in told.detail) == (Reason.NO_PERMISSION, True)


def test_the_start_is_the_kernels_account_of_it_whatever_the_wall_clock_says(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    record = {"leader_start_ticks": start_ticks(sleeper.pid), "started_at": 1.0}
    (tmp_path / "supervisor.json").write_text(json.dumps(record))
    began = bounds.began_at(tmp_path, 0.0)
    assert 0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - began < 30
    (tmp_path / "supervisor.json").write_text(json.dumps({"leader_start_ticks": None, "started_at": time.time() - 100}))
    assert time.clock_gettime(time.CLOCK_BOOTTIME) - bounds.began_at(tmp_path, 0.0) == pytest.approx(100, abs=5)
    (tmp_path / "supervisor.json").write_text("{")
    seen_at = time.monotonic() - 40
    assert time.clock_gettime(time.CLOCK_BOOTTIME) - bounds.began_at(tmp_path, seen_at) == pytest.approx(40, abs=5)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"bounds": {"new": 1}}', '{"bounds": null}', "{}"])
def test_a_folder_that_tells_of_no_limits_has_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "spec.json").write_text(text)
    assert bounds.limits_in(tmp_path) == Limits()
    assert bounds.limits_in(tmp_path / "not-there") == Limits()


# -- what it does ------------------------------------------------------------------------------------------------------


@dataclass
class State:
    attempts: dict[r.Key, r.Attempt]


@dataclass
class FullShell:
    """As much of a shell as a companion touches; its journal refuses the first messages of each kind."""

    state: State
    refuses: int
    options: Options = field(default_factory=Options)
    heard: list[tuple[float, str]] = field(default_factory=list)

    def tell(self, message: r.Message) -> None:
        kind = type(message).__name__
        tries = sum(one == f"{kind} refused" for _, one in self.heard)
        said = kind if tries >= self.refuses else f"{kind} refused"
        self.heard.append((time.monotonic(), said))
        if said != kind:
            raise LogFailed(Path("journal"), "append to", OSError(errno.ENOSPC, "full"), usable=True)


def watch(tmp_path: Path, pid: int, limits: dict[str, Any], refuses: int) -> tuple[FullShell, bounds.BoundsWatch]:
    attempt = r.Attempt(*KEY, "ann", (Grant("h:cpu0", "CPU-1", 1, "l1"),), JobSpec(("cat",)), "started")
    shell = FullShell(State({KEY: attempt}), refuses)
    (tmp_path / "spec.json").write_text(json.dumps({"bounds": limits}))
    run = Run(KEY, tmp_path, started_at=time.monotonic())
    run.handle = adopt.Handle.open(tmp_path, pid, start_ticks(pid))
    return shell, bounds.BoundsWatch(cast("Shell", shell), run)


async def test_a_warning_that_the_disk_refuses_is_told_again_and_nothing_ends_before_it_is_kept(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    shell, watcher = watch(tmp_path, sleeper.pid, {"idle_timeout_s": 1.0}, refuses=3)
    await asyncio.wait_for(watcher.run(), 30)
    kinds = [said for _, said in shell.heard]
    assert kinds == ["Noticed refused"] * 3 + ["Noticed"] + ["Overran refused"] * 3 + ["Overran"]
    times = dict(reversed([(said, at) for at, said in shell.heard]))
    assert times["Overran refused"] - times["Noticed"] >= 0.2, "a fifth of the span from the warning that was kept"
    told = watcher.measured()["bounds"]
    assert (told["idle_timeout_s"], told["unread"]) == (1.0, {})
    assert told["longest_idle_s"] >= 1.0


async def test_where_nothing_is_bounded_it_returns_at_once_and_measures_nothing(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    shell, watcher = watch(tmp_path, sleeper.pid, {}, refuses=0)
    await asyncio.wait_for(watcher.run(), 5)
    assert shell.heard == []
    assert watcher.measured() == {}


async def test_one_that_is_to_end_already_is_neither_warned_nor_ended_again(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    shell, watcher = watch(tmp_path, sleeper.pid, {"idle_timeout_s": 1.0, "max_runtime_s": 2.0}, refuses=0)
    shell.state.attempts[KEY] = replace(shell.state.attempts[KEY], stop="cancelled by ann")
    await asyncio.wait_for(watcher.run(), 5)
    assert shell.heard == []


def test_an_agent_loads_it_for_the_first_job_that_has_a_bound() -> None:
    code = "import sys, tenure.agent.shell\nassert 'tenure.agent.bounds' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
