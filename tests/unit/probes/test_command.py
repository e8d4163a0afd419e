"""Probe commands: exit code and stdout decide, stderr is evidence, and nothing outlives its deadline."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from tenure.domain.reading import Reason, Unavailable, Value
from tenure.probes import command, proc


async def test_output_code_and_evidence() -> None:
    got = await command.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert isinstance(got, Value)
    assert got.value == command.CommandOutput(3, "out", "err")
    assert got.instrument == "command.sh"


async def test_a_signal_shows_as_a_negative_code() -> None:
    got = await command.run(["sh", "-c", "kill -9 $$"])
    assert isinstance(got, Value)
    assert got.value.code == -9


async def test_the_locale_is_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    got = await command.run(["sh", "-c", "echo $LC_ALL"])
    assert isinstance(got, Value)
    assert got.value.output == "C"


async def test_no_such_command_and_one_that_may_not_run(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")
    missing = await command.run([str(tmp_path / "absent")])
    refused = await command.run([str(tmp_path / "script")])
    assert isinstance(missing, Unavailable)
    assert isinstance(refused, Unavailable)
    assert (missing.reason, refused.reason) == (Reason.LIBRARY_MISSING, Reason.NO_PERMISSION)


async def test_one_that_ignores_term_is_killed_with_its_group() -> None:
    nap = f"999.{os.getpid()}"  # by which its sleeps are known wherever they end up in the tree
    inner = f"trap '' TERM; sleep {nap}"
    script = f'trap "" TERM; sh -c "{inner}" & sleep {nap}'
    began = time.monotonic()
    got = await command.run(["sh", "-c", script], deadline_s=0.4)
    assert 0.3 < time.monotonic() - began < 5
    assert isinstance(got, Unavailable)
    assert got.reason is Reason.TIMEOUT
    deadline = time.monotonic() + 10
    while any(nap in _command_line(entry.pid) for entry in proc.snapshot().entries.values() if entry.state != "Z"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


async def test_one_that_ends_on_term_has_not_answered_either() -> None:
    got = await command.run(["sh", "-c", "trap 'echo 42; exit 0' TERM; sleep 999 & wait"], deadline_s=0.4)
    assert isinstance(got, Unavailable)
    assert got.reason is Reason.TIMEOUT


async def test_a_flood_is_cut_off_at_once() -> None:
    began = time.monotonic()
    got = await command.run(["sh", "-c", "cat /dev/zero"], deadline_s=30)
    assert time.monotonic() - began < 10
    assert isinstance(got, Unavailable)
    assert got.reason is Reason.UNPARSEABLE


async def test_a_daemon_that_keeps_the_output_open_holds_nobody_up() -> None:
    began = time.monotonic()
    got = await command.run(["sh", "-c", "echo answer; sleep 5 &"], deadline_s=4)
    assert time.monotonic() - began < 3
    assert isinstance(got, Value)
    assert got.value.output == "answer"


async def test_the_loop_turns_while_a_probe_hangs() -> None:
    gaps: list[float] = []

    async def tick() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    ticking = asyncio.create_task(tick())
    await command.run(["sleep", "999"], deadline_s=0.5)
    ticking.cancel()
    assert len(gaps) > 10
    assert max(gaps) < 0.25


async def test_a_cancelled_probe_is_killed() -> None:
    call = asyncio.create_task(command.run(["sleep", "998"], deadline_s=60))
    deadline = time.monotonic() + 10
    while not (found := [e for e in proc.tree(os.getpid(), proc.snapshot()) if "998" in _command_line(e.pid)]):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    while (entry := proc.read_entry(found[0].pid)) is not None and entry.state != "Z":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
