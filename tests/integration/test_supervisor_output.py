"""The output of a job: exact bytes, tagged as read, on the disk before exit.json, and never in the way of the job.

Disks that are full or stuck are real ones where the machine allows it (a small tmpfs, a frozen ext4 on a loop device),
and stand-ins that anybody can have elsewhere (/dev/full, a pipe in place of output.bin).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.crash.record import build_shim, record
from tests.crash.replay import losses
from tests.integration.supervised import Floor, Running, alive, tool, until

from tenure.agent.shipper import DISK, QUOTA
from tenure.agent.spawner import PROGRAM

MIB = 1 << 20


@pytest.fixture
async def floor(tmp_path: Path) -> AsyncIterator[Floor]:
    made = Floor(tmp_path)
    yield made
    await made.close()


@contextlib.contextmanager
def mounted(device: str, kind: str, folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", kind, "-o", options, device, folder], check=True, timeout=20)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=20)


def agree(run: Running, ended: dict[str, object]) -> None:
    """output.idx describes output.bin without a hole, and exit.json counts the same bytes."""
    at = 0
    for offset, length, stream, _ in run.index():
        assert offset == at
        assert stream in (1, 2)
        at += length
    assert at == len(run.output) == ended["output_bytes"]


async def test_bytes_are_exact_and_tagged(floor: Floor) -> None:
    first = bytes(range(256)) * 50 + b"\0" * 1000 + "é".encode()[:1]
    second = "é".encode()[1:] + b"progress 1%\rprogress 2%\r" + b"x" * 100_000
    run = await floor.python(
        """
import hashlib
os.write(1, bytes(range(256)) * 50 + b"\\0" * 1000 + b"\\xc3")
wait_for(sys.argv[0] if False else os.environ["GO"] + "1")
os.write(2, b"\\xff\\xfe warning \\0")
wait_for(os.environ["GO"] + "2")
sys.stdout.buffer.write(b"\\xa9progress 1%\\rprogress 2%\\r" + b"x" * 100_000)
""",
        env={"PATH": os.environ["PATH"], "GO": str(floor.root / "go")},
    )
    await until(lambda: len(run.output) == len(first), "the first part is stored")
    (floor.root / "go1").touch()
    await until(lambda: run.output.endswith(b"warning \0"), "the error stream is stored")
    (floor.root / "go2").touch()
    ended = await run.gone()
    assert run.stream(1) == first + second
    assert run.stream(2) == b"\xff\xfe warning \0"
    assert run.output == first + b"\xff\xfe warning \0" + second
    agree(run, ended)
    assert (ended["stdout_bytes"], ended["stderr_bytes"]) == (len(first + second), len(b"\xff\xfe warning \0"))
    assert (ended["output_lost_bytes"], ended["output_error"]) == (0, None)
    times = [record[3] for record in run.index()]
    assert times == sorted(times)
    assert abs(times[0] - time.time()) < 60


async def test_what_a_command_wrote_last_is_there(floor: Floor) -> None:
    for _ in range(20):
        run = await floor.shell("head -c 60000 /dev/zero; echo last >&2; exec head -c 5000 /dev/zero")
        ended = await run.ended()
        assert (ended["stdout_bytes"], run.stream(2)) == (65_000, b"last\n")
        agree(run, ended)


async def test_sixty_four_mebibytes_come_whole_and_quickly(floor: Floor) -> None:
    script = "import hashlib,os\nfor n in range(256): os.write(1, hashlib.sha256(bytes([n])).digest() * 8192)"
    began = time.perf_counter()
    ended = await (run := await floor.start([sys.executable, "-I", "-S", "-c", script])).ended()
    took = time.perf_counter() - began
    wanted = hashlib.sha256(b"".join(hashlib.sha256(bytes([n])).digest() * 8192 for n in range(256))).hexdigest()
    assert hashlib.sha256(run.output).hexdigest() == wanted
    assert ended["output_bytes"] == 64 * MIB
    assert took < 10, f"{took:.1f} s"


async def test_a_child_that_holds_the_pipe_does_not_delay_the_end(floor: Floor) -> None:
    run = await floor.shell("(trap '' TERM; while :; do sleep 1000; done) & echo out; exit 0")
    ended = await run.ended(5.0)
    assert (run.output, ended["code"], alive(run.mark)) == (b"out\n", 0, [])


async def test_an_outsider_that_holds_the_pipe_does_not_delay_the_end(floor: Floor) -> None:
    """The write end of stdout is handed out of the tree, as a job does that starts a container through a daemon."""
    path = str(floor.root / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        run = await floor.python(
            """
import socket
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["S"])
socket.send_fds(s, [b"x"], [1]); s.recv(1); os.write(1, b"mine\\n")
""",
            env={"PATH": os.environ["PATH"], "S": path},
        )
        peer, _ = await asyncio.to_thread(listener.accept)
        with peer:
            _, fds, _, _ = socket.recv_fds(peer, 1, 1)
            os.write(fds[0], b"theirs\n")
            peer.send(b"x")
            ended = await run.ended(5.0)
            os.close(fds[0])
    assert run.output == b"theirs\nmine\n"
    assert ended["code"] == 0


async def test_a_full_disk_costs_bytes_and_nothing_else(floor: Floor) -> None:
    folder, mark = floor.prepare(["/bin/sh", "-c", "head -c 1000000 /dev/zero; echo gone >&2; exit 4"])
    (folder / "output.bin").symlink_to("/dev/full")
    run = Running(folder, mark, await floor.spawner.start(folder))
    ended = await run.ended()
    assert (ended["kind"], ended["code"], ended["killed"]) == ("exited", 4, False)
    assert (ended["output_bytes"], ended["output_lost_bytes"]) == (0, 1_000_005)
    assert (ended["stdout_bytes"], ended["stderr_bytes"]) == (1_000_000, 5)
    assert "No space left" in ended["output_error"]
    assert run.index() == []
    assert {(gap["stream"], gap["cause"], gap["bytes"], gap["at_end"]) for gap in ended["output_gaps"]} == {
        ("stdout", "disk", 1_000_000, 1_000_000),
        ("stderr", "disk", 5, 5),
    }


@pytest.mark.root(reason="a file system that is really full (a mounted tmpfs) still takes exit.json")
async def test_a_really_full_disk_still_takes_the_outcome(floor: Floor) -> None:
    with mounted("none", "tmpfs", floor.root / "small", "size=1m") as small:
        go, floor.root = floor.root / "go", small
        run = await floor.python(
            """
sys.stdout.buffer.write(b"stored\\n" * 1000); sys.stdout.buffer.flush()
wait_for(os.environ["GO"])
fd = os.open("filler", os.O_WRONLY | os.O_CREAT)
for size in (4096, 1):
    try:
        while os.write(fd, bytes(size)): pass
    except OSError: pass
for _ in range(64):
    os.write(1, bytes(65536))
sys.exit(6)
""",
            cwd=str(small),
            env={"PATH": os.environ["PATH"], "GO": str(go)},
        )
        await until(lambda: len(run.output) == 7000, "the first lines are stored")
        go.touch()
        ended = await run.ended()
        assert ended["code"] == 6
        assert shutil.disk_usage(small).free == 16384 - 4096  # no more than what the reserve gave back
        agree(run, ended)
        assert run.output == b"stored\n" * 1000
        assert (ended["stdout_bytes"], ended["output_lost_bytes"]) == (4 * MIB + 7000, 4 * MIB)
        assert "No space left" in ended["output_error"]


@pytest.mark.root(reason="output that finds room again after a full disk is stored, and the gap is marked")
async def test_a_disk_that_finds_room_again_is_used_again(floor: Floor) -> None:
    with mounted("none", "tmpfs", floor.root / "small", "size=1m") as small:
        go, floor.root = floor.root / "go", small
        run = await floor.python(
            """
os.write(1, b"before\\n")
wait_for(os.environ["GO"] + "1")
def read_off(data):
    import fcntl, termios
    os.write(1, data)
    while fcntl.ioctl(1, termios.FIONREAD, bytes(4)) != bytes(4):
        time.sleep(0.001)
read_off(b"x" * 50_000)
read_off(b"y")  # whoever reads this is through with the bytes before
open(os.environ["GO"] + "2", "w").close()
wait_for(os.environ["GO"] + "3")
os.write(1, b"after\\n")
""",
            cwd="/",
            env={"PATH": os.environ["PATH"], "GO": str(go)},
        )
        await until(lambda: run.output == b"before\n", "the first line is stored")
        filler = small / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"\0" * 4096):
                pass
        go.with_name("go1").touch()
        await until(go.with_name("go2").exists, "the supervisor has read what it cannot store")
        filler.unlink()
        go.with_name("go3").touch()
        ended = await run.ended()
        late = run.output.removeprefix(b"before\n").removesuffix(b"after\n")  # the y may have come into new room
        assert (run.output, late) in ((b"before\n" + late + b"after\n", b""), (b"before\n" + late + b"after\n", b"y"))
        records = [(offset, length, stream) for offset, length, stream, _ in run.index()]
        assert records[0] == (0, 7, 1)
        assert records[1] == (7, 50_001 - len(late), 1 | DISK)  # so many of stdout were lost here
        assert sum(length for _, length, stream in records if stream == 1) == len(run.output)
        assert ended["output_lost_bytes"] == 50_001 - len(late)


@pytest.mark.parametrize("quota", [1, 4096, 99_999])
async def test_a_quota_keeps_what_fits_exactly_and_the_job_never_notices(floor: Floor, quota: int) -> None:
    data = bytes(n % 251 for n in range(100_000))
    code = "os.write(1, b''); [os.write(1, bytes(n % 251 for n in range(a, a + 1000))) for a in range(0, 100000, 1000)]"
    run = await floor.python(code + "; os.write(2, b'e' * 70_000); sys.exit(9)", output_quota=quota)
    ended = await run.ended()
    assert ended["code"] == 9
    assert run.output == data[:quota]
    assert (ended["stdout_bytes"], ended["stderr_bytes"], ended["output_bytes"]) == (100_000, 70_000, quota)
    assert (ended["output_lost_bytes"], ended["output_error"]) == (0, None)
    gaps = {gap["stream"]: gap for gap in ended["output_gaps"]}
    assert gaps == {
        "stdout": {"stream": "stdout", "cause": "quota", "bytes": 100_000 - quota, "at_end": 100_000 - quota},
        "stderr": {"stream": "stderr", "cause": "quota", "bytes": 70_000, "at_end": 70_000},
    }
    *whole, (offset, length, tag, _) = run.index()
    assert (offset, length, tag & QUOTA) == (quota, 0, QUOTA), "the place is marked, for the agent to announce"
    assert sum(length for _, length, _, _ in whole) == quota
    assert {stream for _, _, stream, _ in whole} == {1}


async def test_a_quota_that_is_met_exactly_is_not_hit(floor: Floor) -> None:
    run = await floor.shell("head -c 5000 /dev/zero; echo end >&2", output_quota=5004)
    ended = await run.ended()
    agree(run, ended)
    assert (ended["output_bytes"], ended["output_gaps"], ended["output_quota_bytes"]) == (5004, [], 5004)


async def test_a_stop_works_while_the_pipe_is_full_and_the_disk_stuck(floor: Floor) -> None:
    """output.bin is a pipe that nobody reads: the supervisor's write blocks, and then the job's does."""
    folder, mark = floor.prepare(["/bin/sh", "-c", "trap '' TERM; cat /dev/zero"])
    os.mkfifo(folder / "output.bin")
    reader = os.open(folder / "output.bin", os.O_RDWR)
    run = Running(folder, mark, await floor.spawner.start(folder))
    stuck = Path(f"/proc/{run.started.pid}/task")
    await until(lambda: any(_waits(task, "pipe_write") for task in stuck.iterdir()), "the supervisor's write is stuck")
    run.stop()
    await until(lambda: alive(mark) == [], "the tree is dead", 5.0)
    assert not run.exit_file.exists(), "the outcome needs the disk; the end of the tree must not"
    draining = asyncio.create_task(asyncio.to_thread(_drain, reader, run))
    ended = await run.ended()
    await draining
    os.close(reader)
    assert (ended["stopped"], ended["killed"], ended["signal"]) == (True, True, 9)


def _waits(task: Path, where: str) -> bool:
    """Whether a thread sleeps in that kernel function (or, where the kernel does not say, in a write)."""
    try:
        found = (task / "wchan").read_text()
        return where in found or (found in ("0", "") and (task / "syscall").read_text().split()[0] == "1")
    except (OSError, IndexError):
        return False


def _drain(fd: int, run: Running) -> None:
    os.set_blocking(fd, False)
    end = time.monotonic() + 10
    while not run.exit_file.exists() and time.monotonic() < end:
        try:
            os.read(fd, MIB)
        except BlockingIOError:
            time.sleep(0.002)


@pytest.mark.root(reason="a kill works while the disk of the attempt is frozen (ext4 on a loop device, fsfreeze)")
async def test_a_kill_works_while_the_disk_is_frozen(floor: Floor) -> None:
    image = floor.root / "disk"
    with image.open("wb") as file:
        file.truncate(16 * MIB)
    await tool("mkfs.ext4", "-q", "-F", image)
    with mounted(str(image), "ext4", floor.root / "frozen", "loop") as disk:
        floor.root = disk
        run = await floor.shell("trap '' TERM; echo ready; exec 2>&1; while :; do echo more; done", cwd="/")
        await run.ready()
        await tool("fsfreeze", "--freeze", disk)
        try:
            tasks = Path(f"/proc/{run.started.pid}/task")
            await until(lambda: any(_state(task) == "D" for task in tasks.iterdir()), "the supervisor's write is stuck")
            run.kill()
            await until(lambda: alive(run.mark) == [], "the tree is dead", 5.0)
            seen = run.exit_file.exists()
        finally:
            await tool("fsfreeze", "--unfreeze", disk)
        assert not seen
        ended = await run.gone()
        assert (ended["killed"], ended["signal"], ended["output_lost_bytes"]) == (True, 9, 0)
        agree(run, ended)


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


async def test_the_agent_is_nudged_when_there_is_output_and_at_the_end(floor: Floor) -> None:
    deep = floor.root / ("d" * 60) / ("e" * 60)  # longer than an address of a Unix socket may be
    deep.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        parent = os.open(deep, os.O_RDONLY)
        ear.bind(f"/proc/self/fd/{parent}/nudge.sock")
        os.close(parent)
        ear.setblocking(False)
        heard = []

        def hears(what: str) -> bool:
            with contextlib.suppress(BlockingIOError):
                heard.append(json.loads(ear.recv(4096)))
            return {"dir": str(run.folder), "what": what} in heard

        run = await floor.shell("echo hello; exec sleep 1000", nudge=str(deep / "nudge.sock"))
        await until(lambda: hears("output"), "a nudge about output")
        assert run.output == b"hello\n"
        run.kill()
        await until(lambda: hears("exit"), "a nudge about the end")
        assert run.exit_file.exists()


DRIVER = """
import json, os, socket, subprocess, sys, time
from record import mark
root, program = sys.argv[1:3]
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
spawner = subprocess.Popen([sys.executable, "-I", "-S", program], stdin=theirs.fileno())
ours.send(json.dumps({"dir": root}).encode())
pid = json.loads(ours.recv(65536))["pid"]
end = time.monotonic() + 30
pidfd = os.pidfd_open(pid)
import select
assert select.select([pidfd], [], [], 30)[0]
mark("ended")
ours.close()
spawner.wait(30)
"""


@pytest.mark.parametrize("mutant", ["", "os.fsync(fd)\n            except", "os.fsync(os.open"])
def test_at_every_power_cut_exit_json_means_that_the_output_is_there(tmp_path: Path, mutant: str) -> None:
    """Replayed from a record of writes and syncs; each removed sync has to be missed."""
    root, program = tmp_path / "state", tmp_path / "supervisor.py"
    root.mkdir()
    text = PROGRAM.read_text()
    if mutant:
        assert text.count(mutant) == 1
        text = text.replace(mutant, mutant.replace("os.fsync(", "(lambda fd: None)(", 1))
    program.write_text(text)
    script = "head -c 5000 /dev/zero; echo err >&2; exit 3"
    spec = {"job": "j", "attempt": 1, "argv": ["/bin/sh", "-c", script], "cwd": "/", "grace_s": 1.0}
    (root / "spec.json").write_text(json.dumps(spec | {"env": {"PATH": os.environ["PATH"]}}))
    recording = record(
        [sys.executable, "-c", DRIVER, str(root), str(program)], root, build_shim(tmp_path), python_path=()
    )
    assert recording.marks == ["ended"]

    def check(folder: Path, marks: list[str]) -> str | None:
        if not (folder / "exit.json").exists():
            return "ended, and no exit.json" if marks else None
        try:
            ended = json.loads((folder / "exit.json").read_bytes())
        except ValueError:
            return "exit.json is torn"
        output = (folder / "output.bin").read_bytes() if (folder / "output.bin").exists() else b""
        index = (folder / "output.idx").read_bytes() if (folder / "output.idx").exists() else b""
        if ended["code"] != 3 or len(output) != 5004 or output.count(b"\0") != 5000:
            return "exit.json is there, the output is not"
        return None if index and len(index) % 24 == 0 else "exit.json is there, the index is not"

    found = losses(recording, check, tmp_path / "cut")
    assert bool(found) == bool(mutant), found[:3]
