"""What a daemon runs for a job ends with it, or keeps its device from being free, by name.

The daemon is the test's own process, far from every supervisor: asked by a job over a socket, it starts a worker with
the environment that the job sent along, as a container's daemon would.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent_kit import FakeController, Host, Job, until

from tenure.agent import strays
from tenure.agent.control import KINDS, choose

PYTHON = (sys.executable, "-I", "-S", "-c")
STUBBORN = "import signal,time;signal.signal(signal.SIGTERM,signal.SIG_IGN)\nwhile True: time.sleep(100)"
PATIENT = "import time\nwhile True: time.sleep(100)"
# What a job runs to have a worker started: sends what is asked for and its environment, and reads the worker's pid.
ASK = """
import json, os, socket, sys
asked = {"code": sys.argv[2], "env": {k: v for k, v in os.environ.items() if k in sys.argv[3].split(",")}}
with socket.socket(socket.AF_UNIX) as link:
    link.connect(sys.argv[1])
    link.sendall(json.dumps(asked).encode() + b"\\n")
    print(link.makefile().readline().strip(), flush=True)
"""
WHOLE = "PATH,RC_JOB_ID,RC_ATTEMPT,RC_LEASE_ID,RC_SCRATCH,RC_DEVICE"


@dataclass
class Daemon:
    """Starts workers on request, and waits for them."""

    path: Path
    workers: list[asyncio.subprocess.Process] = field(default_factory=list)
    waiting: set[asyncio.Task[int]] = field(default_factory=set)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(await reader.readline())
        worker = await asyncio.create_subprocess_exec(*PYTHON, asked["code"], env=asked["env"], start_new_session=True)
        self.workers.append(worker)
        self.waiting.add(asyncio.create_task(worker.wait()))
        writer.write(f"{worker.pid}\n".encode())
        writer.close()

    def living(self) -> list[int]:
        return [worker.pid for worker in self.workers if worker.returncode is None]

    async def close(self) -> None:
        for worker in self.workers:
            if worker.returncode is None:
                worker.kill()
        await asyncio.gather(*self.waiting)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    made = Daemon(tmp_path / "daemon.sock")
    async with await asyncio.start_unix_server(made.answer, made.path):
        yield made
        await made.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host.make(tmp_path, sim="1xH100")
    yield made
    made.close()


@pytest.fixture
async def controller(host: Host) -> AsyncIterator[FakeController]:
    async with FakeController(host.layout.ctl_sock).serving() as serving:
        host.start()
        yield serving


def new(register: dict[str, Any], *devices: str) -> Job:
    """A job with an id that no other test on this machine has."""
    return Job(register, *devices, job=f"j{uuid.uuid4().hex[:12]}")


def ask(job: Job, daemon: Daemon, code: str, variables: str = WHOLE, then: str = "") -> Any:
    """The start of a job that has a worker started for it."""
    script = '"$@"; ' + (then or "exit 4")
    return job.start("/bin/sh", "-c", script, "sh", *PYTHON, ASK, str(daemon.path), code, variables)


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.parametrize("device", ["cpu0", "gpu0"])
@pytest.mark.parametrize("variables", [WHOLE, "PATH,RC_JOB_ID"])
async def test_a_worker_with_the_jobs_label_ends_with_it(
    controller: FakeController, daemon: Daemon, device: str, variables: str
) -> None:
    job = new(await controller.connected(), device)
    await controller.tell(ask(job, daemon, STUBBORN, variables))
    ended = await controller.wait("ended", job.job)
    assert ended["outcome"]["code"] == 4
    assert ended["proofs"] == {}, "with the worker alive nothing is proved"
    proof = await controller.proved(f"h:{device}", job.job)
    (worker,) = daemon.workers
    assert not is_there(worker.pid), "told before it was true"
    assert proof["outcome"] == "clear"
    assert f"pid {worker.pid}" in proof["detail"]
    notice = (await controller.wait("notice", job.job))["notice"]
    assert notice["kind"] == "strays"
    assert notice["facts"] == {"ended": [worker.pid], "left": []}


async def test_a_stopped_jobs_worker_is_ended_too(controller: FakeController, daemon: Daemon) -> None:
    job = new(await controller.connected(), "cpu0")
    await controller.tell(ask(job, daemon, PATIENT, then="sleep 1000"))
    await until(daemon.living, what="the worker")
    await controller.tell(job.stop())
    proof = await controller.proved("h:cpu0", job.job)
    assert (proof["outcome"], daemon.living()) == ("clear", [])


async def test_a_worker_that_is_started_again_keeps_the_device_dirty_until_it_is_not(
    controller: FakeController,
) -> None:
    job = new(await controller.connected(), "cpu0")
    await controller.tell(job.start("/bin/sleep", "1000"))
    await controller.wait("started", job.job)
    again = 'while :; do env -i RC_JOB_ID="$1" /bin/sleep 1000; done'
    keeper = await asyncio.create_subprocess_exec("/bin/sh", "-c", again, "sh", job.job, env={})
    try:
        await controller.tell(job.stop())
        await until(lambda: controller.proofs("h:cpu0", job.job), what="what is left")
        await asyncio.sleep(2.0)
        assert {proof["outcome"] for proof in controller.proofs("h:cpu0", job.job)} == {"dirty"}
        assert "(sleep)" in controller.proofs("h:cpu0", job.job)[-1]["by"][0]
    finally:
        keeper.kill()
        await keeper.wait()
    proof = await controller.proved("h:cpu0", job.job, timeout_s=30)
    assert proof["outcome"] == "clear"


async def test_a_worker_that_sigkill_does_not_end_keeps_the_device_dirty_and_its_end_frees_it(
    controller: FakeController, daemon: Daemon
) -> None:
    parent = choose("freezer").parent
    if parent is None:
        pytest.skip("no cgroup v1 freezer here: what is frozen in it does not die of SIGKILL")
    group = Path(parent) / f"test-{uuid.uuid4().hex}"
    group.mkdir()
    job = new(await controller.connected(), "cpu0")
    await controller.tell(ask(job, daemon, PATIENT, then="sleep 1000"))
    try:
        (pid,) = await until(daemon.living, what="the worker")
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        await controller.tell(job.stop())
        dirty = await until(lambda: controller.proofs("h:cpu0", job.job), what="what is left")
        assert dirty[0]["outcome"] == "dirty"
        assert dirty[0]["by"][0].startswith(f"pid {pid} ")
        assert is_there(pid)
    finally:
        (group / "freezer.state").write_text("THAWED")
    proof = await controller.proved("h:cpu0", job.job, timeout_s=30)
    assert (proof["outcome"], daemon.living()) == ("clear", [])
    group.rmdir()


async def test_a_worker_without_a_label_occupies_the_gpu_that_it_is_on(
    host: Host, controller: FakeController, daemon: Daemon
) -> None:
    job = new(await controller.connected(), "gpu0")
    await controller.tell(ask(job, daemon, STUBBORN, "PATH", then="sleep 1000"))
    (pid,) = await until(daemon.living, what="the worker")
    host.scenario.add_process(0, pid, 300)
    await controller.tell(job.stop())
    proof = await controller.proved("h:gpu0", job.job)
    assert proof["outcome"] == "occupied"
    assert f"pid {pid} " in proof["by"][0]
    assert is_there(pid), "nothing says that it is the job's"
    await daemon.close()
    await until(lambda: controller.device("gpu0")["condition"]["outcome"] == "clear", what="the device is free")


async def test_who_bears_another_jobs_label_or_none_is_left_alone(controller: FakeController, tmp_path: Path) -> None:
    job = new(await controller.connected(), "cpu0")
    others = [
        {},
        {"RC_JOB_ID": job.job + "x", "RC_ATTEMPT": "1"},
        {"RC_JOB_ID": job.job, "RC_ATTEMPT": "2"},
        {"RC_JOB_ID": job.job, "RC_ATTEMPT": "1", "RC_SCRATCH": str(tmp_path / "another-home")},
        {"RC_JOB_ID": job.job, "RC_LEASE_ID": "another"},
        {"NOTE": f"RC_JOB_ID={job.job}"},
    ]
    await controller.tell(job.start("/bin/sleep", "1000"))
    await controller.wait("started", job.job)
    bystanders = [await asyncio.create_subprocess_exec("/bin/sleep", "1000", env=env) for env in others]
    try:
        await controller.tell(job.stop())
        assert (await controller.proved("h:cpu0", job.job))["outcome"] == "clear"
        assert [is_there(process.pid) for process in bystanders] == [True] * len(others)
        assert controller.of("notice", job.job) == []
    finally:
        for process in bystanders:
            process.kill()
            await process.wait()


async def test_one_is_known_by_its_cgroup_and_by_its_parent_where_its_environment_says_nothing() -> None:
    parent = choose("freezer").parent or choose("cgroup2").parent
    if parent is None:
        pytest.skip("no cgroups for jobs here: nobody can be put into one")
    job = f"j{uuid.uuid4().hex[:12]}"
    group = Path(parent) / f"tenure-{job}.1"
    (group / "inner").mkdir(parents=True)
    script = "read line; /bin/sleep 1000 & echo $!; wait"
    process = await asyncio.create_subprocess_exec("/bin/sh", "-c", script, env={}, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        (group / "inner" / "cgroup.procs").write_text(str(process.pid))
        process.stdin.write(b"\n")
        child = int(await process.stdout.readline())
        (Path(parent).parent / "cgroup.procs").write_text(str(child))
        label = strays.Label(job, 1, 0, {})
        assert [(s.pid, s.sign) for s in strays.find(label)] == [(process.pid, "cgroup"), (child, "descent")]
        assert strays.find(strays.Label(job, 11, 0, {})) == ()
        ended = await asyncio.to_thread(strays.end, label)
        assert ({s.pid for s in ended.gone}, ended.left) == ({process.pid, child}, ())
        await process.wait()
    finally:
        await until(lambda: (group / "inner" / "cgroup.procs").read_text() == "", what="an empty group")
        (group / "inner").rmdir()
        group.rmdir()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_agent_ends_a_stubborn_tree_by_the_kind_of_control_that_it_was_set_to(
    tmp_path: Path, kind: str
) -> None:
    """With the agent killed and started again meanwhile; the record says by which kind."""
    host = Host.make(tmp_path, control=kind)
    script = "trap '' TERM; (setsid sleep 1000 &) ; sleep 1000 & echo ready; sleep 1000; sleep 1000"
    try:
        async with FakeController(host.layout.ctl_sock).serving() as controller:
            host.start()
            job = new(await controller.connected(), "cpu0")
            await controller.tell(job.shell(script, grace_s=0.2))
            await until(lambda: b"ready\n" in controller.output.get((job.job, 1), b""), what="the tree")
            host.kill()
            host.start()
            await until(lambda: len(controller.registers) >= 2, what="the next agent")
            await controller.tell(job.stop())
            ended = await controller.wait("ended", job.job)
            assert (await controller.proved("h:cpu0", job.job))["outcome"] == "clear"
            wanted = choose(kind)
            assert ended["outcome"]["stats"]["control"] == wanted.kind
            assert (ended["outcome"]["stats"]["killed"], ended["outcome"]["ending"]) == (True, "signaled")
            assert f"control of jobs: {wanted.kind}" in host.log()
            assert ("does not work here" in host.log()) == bool(wanted.fell_back)
    finally:
        host.close()
