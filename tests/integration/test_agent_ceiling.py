"""A host declared to reboot instead of killing: jobs run under a ceiling that the kernel holds, agent or no agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent_kit import FakeController, Host, Job, until

from tenure.agent import memory_groups
from tenure.agent.spawner import Spawner
from tenure.agent.survivors import remove_cgroup
from tenure.probes.host import parse_meminfo

#: Takes memory without end; says how far it came, so that a test sees it was not refused at the start.
GLUTTON = """
held = []
print("begun", flush=True)
while True:
    held.append(b"x" * (4 << 20))
"""
PROTECT = {"ooms": "reboots", "reserve": "64M", "predicted_free": "2G", "uncertainty": "100M", "ceiling": "128M"}
UNSOUND = {**PROTECT, "reserve": "12000M", "predicted_free": "12223M", "uncertainty": "306M"}


@pytest.fixture
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Host]:
    made = Host.make(tmp_path, protect=getattr(request, "param", PROTECT))
    yield made
    made.close()
    for parent in parents(made):
        remove_cgroup(parent)


@pytest.fixture
async def controller(host: Host) -> AsyncIterator[FakeController]:
    async with FakeController(host.layout.ctl_sock).serving() as serving:
        host.start()
        yield serving


def parents(host: Host) -> list[Path]:
    """The groups that the agents of a home made for all their jobs."""
    with contextlib.suppress(OSError, ValueError):
        return [Path(json.loads((host.layout.agent / "memory-group.json").read_text())["parent"])]
    return []


def groups(host: Host) -> list[str]:
    return sorted(group.name for parent in parents(host) for group in parent.iterdir() if group.is_dir())


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def host_file(name: str) -> str:
    return Path("/proc", name).read_text()


def python(job: Job, code: str, **spec: Any) -> Any:
    return job.start(sys.executable, "-I", "-S", "-c", code, **spec)


async def test_a_job_that_takes_memory_without_end_dies_at_its_ceiling_and_nobody_else_does(
    host: Host, controller: FakeController
) -> None:
    holds = "x = b'y' * (64 << 20); print('held', flush=True); input()"
    pipe = asyncio.subprocess.PIPE
    bystander = await asyncio.create_subprocess_exec(sys.executable, "-c", holds, stdin=pipe, stdout=pipe)
    assert bystander.stdout is not None
    assert await bystander.stdout.readline() == b"held\n"
    try:
        job = Job(await controller.connected(), "cpu0")
        await controller.tell(python(job, GLUTTON))
        body = await controller.wait("ended", timeout_s=60)
        assert bystander.returncode is None
    finally:
        bystander.kill()
        await bystander.wait()
    assert bytes(controller.output[("j1", 1)]) == b"begun\n"
    outcome = body["outcome"]
    assert outcome["cause"].startswith("memory ceiling: limit 128.0 MiB, peak 12"), outcome
    assert "1 process killed by the kernel" in outcome["cause"]
    assert outcome["signal"] == 9
    ceiling = outcome["stats"]["ceiling"]
    assert ceiling["limit"] == 128 << 20
    assert ceiling["kills"] == 1
    assert ceiling["reserve_is"] == "sound"
    assert outcome["stats"]["peak_memory"]["instrument"] == "peak of its cgroup"
    assert outcome["stats"]["peak_memory"]["lower"], "it was held back: what it would have taken nobody saw"
    await until(lambda: groups(host) == [], what="the group is removed")
    assert (await controller.proved())["outcome"] == "clear"


async def test_the_whole_tree_ends_when_one_process_of_it_was_killed(host: Host, controller: FakeController) -> None:
    job = Job(await controller.connected(), "cpu0")
    glutton = f"{sys.executable} -I -S -c 'x=[]\nwhile 1: x.append(b\"x\" * (4 << 20))'"
    await controller.tell(job.shell(f"setsid sleep 300 & echo $!; {glutton}; echo went on; sleep 300"))
    body = await controller.wait("ended", timeout_s=60)
    sleeper = int(bytes(controller.output[("j1", 1)]).split()[0])
    assert body["outcome"]["cause"].startswith("memory ceiling: limit 128.0 MiB")
    assert not alive(sleeper)


async def test_the_ceiling_holds_while_the_agent_is_dead_and_the_next_one_tells_of_it(
    host: Host, controller: FakeController
) -> None:
    job = Job(await controller.connected(), "cpu0")
    go = host.layout.home / "go"
    await controller.tell(
        python(job, f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(.02)\n{GLUTTON}")
    )
    log = host.layout.attempt("j1", 1) / "host.log"
    await until(lambda: log.exists() and log.stat().st_size > 500, what="its first samples")
    host.kill(signal.SIGKILL)
    go.touch()
    await until(lambda: (host.layout.attempt("j1", 1) / "exit.json").exists(), 60)
    assert groups(host) == ["tenure-j1.1"]
    host.start()
    body = await controller.wait("ended", timeout_s=30)
    assert body["outcome"]["cause"].startswith("memory ceiling: limit 128.0 MiB, peak 12")
    assert body["outcome"]["stats"]["host"]["samples"] >= 2, "what the dead agent sampled"
    await until(lambda: groups(host) == [], what="the group is removed")


async def test_a_command_that_cannot_enter_its_group_is_not_run(host: Host) -> None:
    folder = host.layout.attempt("j1", 1)
    marks = host.layout.home / "marks"
    folder.mkdir(parents=True)
    spec = {
        "job": "j1", "attempt": 1, "argv": ["/bin/sh", "-c", f"echo ran > {marks}"], "cwd": "/", "env": {},
        "grace_s": 1, "cgroup_parent": None, "nudge": None, "join": [str(host.layout.home / "no-group")],
    }  # fmt: skip
    (folder / "spec.json").write_text(json.dumps(spec))
    spawner = Spawner()
    await spawner.start(folder, [])
    await until(lambda: (folder / "exit.json").exists())
    await spawner.close()
    record = json.loads((folder / "exit.json").read_text())
    assert record["kind"] == "spawn_failed"
    assert record["code"] == 126
    assert "no-group" in record["error"]
    assert "memory ceiling" in record["error"]
    assert not marks.exists()


@pytest.mark.parametrize(
    "host", [{**PROTECT, "reserve": "12000M", "predicted_free": "12223M", "uncertainty": "306M"}], indirect=True
)
async def test_an_unsound_reserve_is_refused_in_words_and_nothing_runs_unprotected(
    host: Host, controller: FakeController
) -> None:
    register = await controller.connected()
    assert "unsound" in register["facts"]["memory_protection"]
    await controller.tell(Job(register, "cpu0").shell("echo ran"))
    body = await controller.wait("refused")
    assert "predicted 12223 less uncertainty 306 is 11917, at or below the floor of 12000" in body["reason"]
    assert not controller.output
    assert (await controller.proved())["outcome"] == "clear", "what was refused holds no device"


@pytest.mark.parametrize("host", [{"ooms": "reboots", "reserve": "900T"}], indirect=True)
async def test_a_reserve_that_leaves_nothing_refuses_with_the_arithmetic(
    host: Host, controller: FakeController
) -> None:
    register = await controller.connected()
    assert "not_established" in register["facts"]["memory_protection"]
    await controller.tell(Job(register, "cpu0").shell("echo ran"))
    reason = (await controller.wait("refused"))["reason"]
    assert "less 900.0 TiB reserve" in reason
    assert "nothing was run" in reason
    assert (await controller.proved())["outcome"] == "clear", "what was refused holds no device"


async def test_two_jobs_together_stay_under_the_ceiling_of_the_host(tmp_path: Path) -> None:
    """Each may take 800 MiB, both together some 1000: the one that goes over ends, and the other lives."""
    free = parse_meminfo(host_file("meminfo"))["MemAvailable"] >> 20
    host = Host.make(
        tmp_path, sim="2xH100", protect={"ooms": "reboots", "reserve": f"{free - 1000}M", "ceiling": "800M"}
    )
    try:
        async with FakeController(host.layout.ctl_sock).serving() as controller:
            host.start()
            register = await controller.connected()
            held = "import time\nx = b'x' * (400 << 20)\nprint('held', flush=True)\ntime.sleep(300)"
            one, two = Job(register, "gpu0", job="one"), Job(register, "gpu1", job="two")
            await controller.tell(python(one, held))
            await until(lambda: controller.output.get(("one", 1)), 30)
            both = int((parents(host)[0] / "memory.limit_in_bytes").read_text()) if memory_version(host) == 1 else None
            await controller.tell(python(two, GLUTTON))
            body = await controller.wait("ended", "two", 60)
            await asyncio.sleep(0.5)
            assert body["outcome"]["cause"].startswith("memory ceiling: "), (body, both)
            assert not controller.of("ended", "one")
    finally:
        host.close()
        for parent in parents(host):
            await asyncio.sleep(0.2)
            for group in parent.iterdir():
                if group.is_dir():
                    remove_cgroup(group)
            remove_cgroup(parent)


def memory_version(host: Host) -> int:
    return int(json.loads((host.layout.agent / "memory-group.json").read_text())["version"])


def test_a_host_without_a_memory_controller_says_what_was_tried(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text("30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "own").write_text("0::/a/b\n")
    found = list(memory_groups.parents("tenure-x", tmp_path / "mountinfo", tmp_path / "own"))
    assert found == [(2, Path("/sys/fs/cgroup/a/b/tenure-x"))]
