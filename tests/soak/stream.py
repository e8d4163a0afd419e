"""One job's output from its program to the screen, whatever is killed meanwhile: hashes taken at both ends and between.

Used at full size by ``make soak`` and at a small one by the e2e lane. What is stored is read from the controller's two
files by this code, not by the product's.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.e2e.conftest import House, environment_of, until

WRITER = Path(__file__).with_name("writer.py")
NAMES = {1: "stdout", 2: "stderr"}
Streams = dict[str, dict[str, Any]]


@dataclass
class Passed:
    """What became of one output. Each of the three has bytes and SHA-256 by stream."""

    job: str
    produced: Streams
    stored: Streams
    shown: Streams
    status: int
    said: bytes
    writer_s: float
    whole_s: float
    writes: int
    kills: int = 0
    hwm_kib: dict[str, int] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether what is stored, and what was shown on standard output, is what was written."""
        return self.produced == self.stored and self.produced["stdout"] == self.shown["stdout"]


def stored(house: House, job: str) -> Streams:
    """Hashes of what the controller holds, each stream put together by the index."""
    hashes = {1: hashlib.sha256(), 2: hashlib.sha256()}
    counts, at = {1: 0, 2: 0}, 0
    with house.paths.output_bin(job, 1).open("rb") as data, house.paths.output_idx(job, 1).open("rb") as index:
        while raw := index.read(24 * 4096):
            for offset, length, stream, _ in struct.iter_unpack("<QIBxxxd", raw):
                assert (offset, stream in NAMES) == (at, True), f"the index is torn at {at}"
                piece = data.read(length)
                assert len(piece) == length, "the index names bytes that are not there"
                hashes[stream].update(piece)
                counts[stream] += length
                at += length
        assert not data.read(1), "bytes that no record names"
    return {NAMES[n]: {"bytes": counts[n], "sha256": hashes[n].hexdigest()} for n in NAMES}


def _settled(house: House, job: str, size: int) -> bool:
    """Whether so many bytes are there and named by the index: what was shown is made durable a moment later."""
    data, index = house.paths.output_bin(job, 1), house.paths.output_idx(job, 1)
    if data.stat().st_size < size:
        return False
    with index.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-24, os.SEEK_END)
        offset, length, _, _ = struct.unpack("<QIBxxxd", file.read(24))
        return bool(offset + length >= size)


def high_water(pid: int | None) -> int:
    """VmHWM of a process, KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError(f"no VmHWM of {pid}")


def pass_through(
    house: House, kind: str, size: int, *, during: Callable[[threading.Event], int] | None = None, timeout_s: float = 60
) -> Passed:
    """Runs a writer under ``rc run`` and follows its bytes to the end. ``during`` runs beside it until told to stop,
    and gives how often it killed something."""
    with tempfile.TemporaryDirectory(prefix="tenure-soak-") as folder:
        account = Path(folder) / "account.json"
        words = ("run", "-q", "-d", house.gpu(0), "--cwd", folder, "--", sys.executable, "-I", str(WRITER))
        began = time.monotonic()
        running = house.start(*words, kind, str(size), str(account))
        shown: Streams = {}
        said: list[bytes] = []
        assert running.stdout is not None
        assert running.stderr is not None
        readers = [
            threading.Thread(target=_read, args=(running.stdout, "stdout", shown, None)),
            threading.Thread(target=_read, args=(running.stderr, "stderr", shown, said)),
        ]
        over, kills = threading.Event(), 0
        for reader in readers:
            reader.start()
        stopper = threading.Timer(timeout_s, running.kill)
        stopper.start()
        try:
            if during is not None:
                threading.Thread(target=_until_over, args=(running, account, over)).start()
                kills = during(over)
            for reader in readers:
                reader.join()
            status = running.wait()
        finally:
            stopper.cancel()
        whole_s = time.monotonic() - began
        assert account.exists(), (status, b"".join(said)[-2000:])
        told = json.loads(account.read_text())
    job = str(house.newest()["id"])
    wanted = sum(stream["bytes"] for stream in told["streams"].values())
    until(lambda: _settled(house, job, wanted), f"all is durable; {status}: {b''.join(said)[-2000:]!r}", 60)
    return Passed(
        job=job,
        produced=told["streams"],
        stored=stored(house, job),
        shown=shown,
        status=status,
        said=without_notices(b"".join(said)),
        writer_s=told["took_s"],
        whole_s=whole_s,
        writes=told["writes"],
        kills=kills,
        hwm_kib={
            "agent": high_water(house.pid_of(house.paths.agent_lock)),
            "controller": high_water(house.pid_of(house.paths.controller_lock)),
        },
    )


def _until_over(running: subprocess.Popen[bytes], account: Path, over: threading.Event) -> None:
    """Until the program has written all of it: what is killed is what streams, not what tells of the end."""
    while running.poll() is None and not account.exists():
        time.sleep(0.05)
    over.set()


def without_notices(said: bytes) -> bytes:
    """Standard error without what the job's host had to say of other things; each stands on a line of its own, or
    after a line that the job left open."""
    return re.sub(rb"rc: notice: [^\n]*\n", b"", said)


def _read(pipe: IO[bytes], name: str, shown: Streams, said: list[bytes] | None) -> None:
    digest, count = hashlib.sha256(), 0
    while data := os.read(pipe.fileno(), 1 << 18):
        digest.update(data)
        count += len(data)
        if said is not None:
            said.append(data)
    pipe.close()
    shown[name] = {"bytes": count, "sha256": digest.hexdigest()}


def killer(house: House, lock: Path, seed: int, pause_s: tuple[float, float]) -> Callable[[threading.Event], int]:
    """Kills whoever holds a lock with SIGKILL, again and again, and has it started anew each time."""

    def work(over: threading.Event) -> int:
        rng, kills = random.Random(seed), 0
        while not over.wait(rng.uniform(*pause_s)):
            pid = house.pid_of(lock)
            if pid is None or str(house.home).encode() not in environment_of(pid):
                continue  # the file outlives its process, whose number may be somebody else's by now
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            kills += 1
            house.rc("up", timeout=60)
        return kills

    return work
