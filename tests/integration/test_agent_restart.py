"""The agent dies and comes back: jobs go on, nothing is lost, nothing is told twice as news, nothing starts twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.integration.agent_kit import FakeController, Host, Job, until

from tenure.agent import core
from tenure.agent import records as r
from tenure.agent.journal import Journal


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host.make(tmp_path)
    yield made
    made.close()


@pytest.fixture
async def controller(host: Host) -> AsyncIterator[FakeController]:
    async with FakeController(host.layout.ctl_sock).serving() as serving:
        host.start()
        yield serving


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def again(controller: FakeController, host: Host) -> None:
    """Starts the agent again and waits until it is connected."""
    count = len(controller.registers)
    host.start()
    await until(lambda: len(controller.registers) > count, what="the new agent")


async def test_a_job_outlives_its_agent_with_its_pid_and_its_whole_output(
    host: Host, controller: FakeController
) -> None:
    job = Job(await controller.connected(), "cpu0")
    script = "i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); sleep 0.01; done; exit 3"
    await controller.tell(job.shell(script))
    pid = (await controller.wait("started"))["pid"]
    await until(lambda: b"line 20\n" in controller.output.get(("j1", 1), b""))
    host.kill(signal.SIGKILL)
    assert alive(pid)
    await again(controller, host)
    assert controller.registers[-1]["instance"] != controller.registers[0]["instance"]
    assert controller.registers[-1]["agent"] == controller.registers[0]["agent"]
    assert [known["job"] for known in controller.registers[-1]["known"]] == ["j1"]
    body = await controller.wait("ended", timeout_s=30)
    assert body["outcome"]["code"] == 3
    await controller.proved()
    expected = "".join(f"line {i}\n" for i in range(400)).encode()
    await until(lambda: len(controller.output[("j1", 1)]) >= len(expected))
    assert bytes(controller.output[("j1", 1)]) == expected
    assert not controller.gaps
    assert {body["pid"] for body in controller.of("started")} == {pid}


async def test_an_end_that_nobody_saw_is_reported_by_the_next_agent(host: Host, controller: FakeController) -> None:
    job = Job(await controller.connected(), "cpu0")
    await controller.tell(job.shell("echo x; read line < fifo; exit 5", cwd=str(_fifo(host))))
    await until(lambda: controller.output.get(("j1", 1)))
    host.kill(signal.SIGKILL)
    (_fifo(host) / "fifo").write_text("go\n")
    await until(lambda: (host.layout.attempt("j1", 1) / "exit.json").exists())
    assert not controller.of("ended")
    await again(controller, host)
    body = await controller.wait("ended")
    assert body["outcome"]["ending"] == "exited"
    assert body["outcome"]["code"] == 5
    assert (await controller.proved())["outcome"] == "clear"


async def test_a_lost_job_is_named_and_its_survivors_are_ended_first(host: Host, controller: FakeController) -> None:
    job = Job(await controller.connected(), "cpu0")
    await controller.tell(job.shell("setsid sleep 300 & echo $!; sleep 300"))
    await until(lambda: controller.output.get(("j1", 1)))
    sleeper = int(bytes(controller.output[("j1", 1)]))
    supervisor = json.loads((host.layout.attempt("j1", 1) / "supervisor.json").read_text())["pid"]
    host.kill(signal.SIGKILL)
    os.kill(supervisor, signal.SIGKILL)
    await until(lambda: not alive(supervisor))
    assert alive(sleeper)
    await again(controller, host)
    body = await controller.wait("ended")
    assert body["outcome"]["ending"] == "lost"
    assert body["outcome"]["cause"] == "lost_cause_not_established"
    assert "ended by SIGKILL" in body["outcome"]["detail"]
    assert not alive(sleeper)
    assert (await controller.proved())["outcome"] == "clear"


async def test_a_supervisor_killed_under_a_living_agent_is_a_lost_job_too(
    host: Host, controller: FakeController
) -> None:
    job = Job(await controller.connected(), "cpu0")
    await controller.tell(job.shell("setsid sleep 300 & echo $!; sleep 300"))
    await until(lambda: controller.output.get(("j1", 1)))
    sleeper = int(bytes(controller.output[("j1", 1)]))
    supervisor = json.loads((host.layout.attempt("j1", 1) / "supervisor.json").read_text())["pid"]
    os.kill(supervisor, signal.SIGKILL)
    body = await controller.wait("ended")
    assert body["outcome"]["ending"] == "lost"
    assert not alive(sleeper)
    assert (await controller.proved())["outcome"] == "clear"


async def test_another_boot_names_the_end_and_frees_the_device(host: Host, controller: FakeController) -> None:
    job = Job(await controller.connected(), "cpu0")
    await controller.tell(job.shell("sleep 300"))
    await controller.wait("started")
    supervisor = json.loads((host.layout.attempt("j1", 1) / "supervisor.json").read_text())["pid"]
    host.kill(signal.SIGKILL)
    os.kill(supervisor, signal.SIGUSR1)
    await until(lambda: not alive(supervisor))
    (host.layout.attempt("j1", 1) / "exit.json").unlink()
    _as_if_accepted_in_another_boot(host)
    await again(controller, host)
    body = await controller.wait("ended")
    assert body["outcome"]["cause"] == "host_rebooted"
    assert (await controller.proved())["outcome"] == "clear"


def _as_if_accepted_in_another_boot(host: Host) -> None:
    state = core.AgentState()
    Journal.open(host.layout.journal, state).close()
    host.layout.journal.unlink()
    fresh = Journal.open(host.layout.journal, core.AgentState())
    for event in core.snapshot(state):
        if isinstance(event, r.AttemptAccepted):
            event = r.AttemptAccepted(
                event.job, event.attempt, event.owner, event.grants, event.spec, ("other", "1", "before")
            )
        fresh.record([event])
    fresh.close()
    folder = host.layout.attempt("j1", 1)
    body = json.loads((folder / "supervisor.json").read_text())
    (folder / "supervisor.json").write_text(json.dumps({**body, "boot_id": "other"}))


async def test_reports_that_were_not_acknowledged_are_sent_again_in_order(
    host: Host, controller: FakeController
) -> None:
    controller.acknowledge = False
    await controller.tell(Job(await controller.connected(), "cpu0").shell("exit 4"))
    await controller.wait("ended")
    host.kill(signal.SIGKILL)
    first = [(report["seq"], report["kind"]) for report in controller.reports if report["seq"]]
    controller.reports.clear()
    controller.acknowledge = True
    await again(controller, host)
    await until(lambda: len([x for x in controller.reports if x["seq"]]) >= len(first))
    assert [(x["seq"], x["kind"]) for x in controller.reports if x["seq"]][: len(first)] == first


async def test_a_start_between_journal_and_spawn_runs_exactly_once(host: Host, controller: FakeController) -> None:
    register = await controller.connected()
    host.kill(signal.SIGKILL)
    job = Job(register, "cpu0")
    marks = host.layout.home / "marks"
    state = core.AgentState()
    journal = Journal.open(host.layout.journal, state)
    start = job.shell(f"echo $$ >> {marks}; echo ran")
    events, effects = core.decide(state, start)
    journal.record(events)
    journal.close()
    assert effects == [r.Spawn(("j1", 1))]
    await again(controller, host)
    body = await controller.wait("ended")
    assert body["outcome"]["code"] == 0
    assert len(marks.read_text().splitlines()) == 1


async def test_killed_at_any_instant_a_job_starts_once_and_ends_once(tmp_path: Path) -> None:
    """The agent is killed at growing delays after a start; whatever instant it was, the attempt runs exactly once."""
    host = Host.make(tmp_path)
    try:
        async with FakeController(host.layout.ctl_sock).serving() as controller:
            host.start()
            register = await controller.connected()
            for number, delay_ms in enumerate((0, 1, 2, 4, 8, 15, 30)):
                job = Job(register, "cpu0", job=f"k{number}", token=10 + number)
                marks = tmp_path / f"marks{number}"
                start = job.shell(f"echo $$ >> {marks}; sleep 0.2; exit 9")
                controller.on_hello = lambda start=start: [start]  # type: ignore[misc]
                await until(lambda: controller.links)
                await controller.tell(start)
                time.sleep(delay_ms / 1000)  # noqa: ASYNC251 - nothing may run here meanwhile, the agent's replies neither
                host.kill(signal.SIGKILL)
                await again(controller, host)
                body = await controller.wait("ended", job.job, 30)
                assert body["outcome"]["code"] == 9, body
                controller.on_hello = list
                assert len(marks.read_text().splitlines()) == 1
                ends = [x for x in controller.of("ended", job.job) if x["outcome"]["code"] != 9]
                assert not ends
                await controller.proved(job=job.job, timeout_s=30)
    finally:
        host.close()


async def test_sigterm_leaves_jobs_running(host: Host, controller: FakeController) -> None:
    job = Job(await controller.connected(), "cpu0")
    await controller.tell(job.shell("sleep 300"))
    pid = (await controller.wait("started"))["pid"]
    assert host.kill(signal.SIGTERM) == 0
    assert alive(pid)
    await again(controller, host)
    await controller.tell(job.stop())
    assert (await controller.wait("ended"))["outcome"]["signal"] == 15
    assert not alive(pid)


def test_a_second_agent_on_one_home_leaves_at_once(host: Host) -> None:
    host.start()
    end = time.monotonic() + 10
    while not host.layout.agent_lock.exists() or not host.layout.agent_lock.read_text().strip():
        assert time.monotonic() < end
        time.sleep(0.01)
    second = subprocess.run(
        [sys.executable, "-m", "tenure.agent"], env=host.environment, capture_output=True, timeout=20, check=False
    )
    assert second.returncode == 73
    assert b"running already" in second.stderr


async def test_a_damaged_journal_starts_nothing(host: Host, controller: FakeController) -> None:
    await controller.tell(Job(await controller.connected(), "cpu0").shell("true"))
    await controller.wait("ended")
    host.kill(signal.SIGTERM)
    data = bytearray(host.layout.journal.read_bytes())
    data[40] ^= 0xFF
    host.layout.journal.write_bytes(data)
    host.start()
    assert host.process is not None
    assert host.process.wait(20) == 74
    assert str(host.layout.journal) in host.log()
    assert host.layout.journal.read_bytes() == bytes(data)


def _fifo(host: Host) -> Path:
    folder = host.layout.home / "place"
    if not folder.exists():
        folder.mkdir()
        os.mkfifo(folder / "fifo")
    return folder
