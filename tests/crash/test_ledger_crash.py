"""The ledger after a power cut at any point: it opens, what was acknowledged is there, no device is lent twice.

The mutants show that this test would see it: each is one promise taken out of a copy of the source tree.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from tests.crash.record import Recording, record
from tests.crash.replay import losses

import tenure
from tenure.domain.job import JobState
from tenure.domain.state import FleetState
from tenure.ledger import Ledger
from tenure.ledger.check import disagreements

#: Several people submit at once; each job is started and ended as its instruction comes; the last few stay open. What
#: anybody was told is marked: submissions answered, starts sent (with their tokens), ends acknowledged.
PROGRAM = """
    import asyncio, sys
    from pathlib import Path
    from record import mark
    from tenure.domain import commands as cmd
    from tenure.domain.device import CLEAR
    from tenure.domain.instructions import StartJob
    from tenure.domain.job import Ending, JobSpec, Outcome
    from tenure.ledger import Ledger, Writer

    async def main():
        started = asyncio.Queue()

        def committed(batch):
            for each in batch:
                for _, told in each.instructions:
                    if isinstance(told, StartJob):
                        for grant in told.grants:
                            mark(f"start {told.job} {told.attempt} {grant.uuid} {grant.token}")
                        started.put_nowait(told)

        async def submit(job):
            await writer.submit(cmd.Submit(job, "ann", JobSpec(("true",), env={"A": "x" * 500}), f"key of {job}", "x"))
            mark(f"submitted {job}")

        async def end_some(count):
            for _ in range(count):
                told = await started.get()
                tokens = {grant.device: grant.token for grant in told.grants}
                await writer.submit(cmd.ReportStarted("a", told.job, told.attempt, tokens, 7))
                proofs = dict.fromkeys(tokens, CLEAR)
                outcome = Outcome(Ending.EXITED, 0)
                await writer.submit(cmd.ReportEnded("a", told.job, told.attempt, tokens, outcome, 1, proofs))
                mark(f"ended {told.job}")

        ledger = Ledger.open(Path(sys.argv[1]) / "machine" / "controller" / "ledger.db")
        async with Writer(ledger, committed) as writer:
            await writer.submit(cmd.Begin())
            devices = tuple(cmd.OfferedDevice(f"h:gpu{n}", f"GPU-{n}", "nvidia", False, 0, CLEAR) for n in range(2))
            await writer.submit(cmd.Register("a", "h", "b", "n", "i", "ann", devices))
            mark("registered")
            for turn in range(2):
                await asyncio.gather(*(submit(f"j{turn}-{n}") for n in range(4)), end_some(3))
                ledger.rest()
            mark("closing")
        ledger.close()

    asyncio.run(main())
"""


def lost(folder: Path, marks: list[str]) -> str | None:
    """What a recovered ledger fails to keep of what had been said; it must open in any case."""
    ledger, state = Ledger.open(folder / "machine" / "controller" / "ledger.db"), FleetState()
    try:
        ledger.load(state)
        found = disagreements(ledger, state)
        if found:
            return "; ".join(found)
        if "registered" in marks and sorted(state.devices) != ["h:gpu0", "h:gpu1"]:
            return f"devices are {sorted(state.devices)}"
        told = [mark.split(" ") for mark in marks]
        for what, *rest in told:
            job = ledger.job(rest[0]) if rest else None
            if rest and job is None:
                return f"{what} {rest[0]} was said, and there is no such job"
            if what == "submitted" and ledger.key_lookup("ann", f"key of {rest[0]}") != (rest[0], "x"):
                return f"the key of {rest[0]} is lost"
            if what == "ended" and job is not None and job.state is not JobState.ENDED:
                return f"the end of {rest[0]} was acknowledged, and it is {job.state}"
        starts = [(uuid, int(token), job) for what, *rest in told if what == "start" for job, _, uuid, token in [rest]]
        for uuid, token, name in starts:
            if not any((lease.uuid, lease.token) == (uuid, token) for lease in ledger.leases_of(name)):
                return f"{name} was started under {uuid}#{token}, and the lease is lost: the device would be lent again"
            if state.tokens[uuid] < token:
                return f"token {token} of {uuid} would be used twice"
        return None
    finally:
        ledger.close()


def run(tmp_path: Path, shim: Path, source: Path | None = None) -> Recording:
    root = tmp_path / "state"
    root.mkdir()
    path = [] if source is None else [source]
    return record([sys.executable, "-c", dedent(PROGRAM), root], root, shim, python_path=path)


def test_nothing_that_was_said_is_lost_at_any_point(tmp_path: Path, cut: Path, shim: Path) -> None:
    recording = run(tmp_path, shim)
    assert sum(mark.startswith("submitted") for mark in recording.marks) == 8
    assert sum(mark.startswith("ended") for mark in recording.marks) == 6
    assert recording.marks[-1] == "closing"
    assert losses(recording, lost, cut, points=30, most=3) == []


def mutant(tmp_path: Path, file: str, good: str, bad: str) -> Path:
    """A copy of the source tree with one passage replaced; fails where the passage is not there exactly once."""
    source = tmp_path / "mutant"
    shutil.copytree(Path(tenure.__file__).parent, source / "tenure", ignore=shutil.ignore_patterns("__pycache__"))
    path = source / "tenure" / file
    text = path.read_text()
    assert text.count(good) == 1, f"{file} does not have {good!r} once: the mutant has to follow the code"
    path.write_text(text.replace(good, bad))
    return source


COMMIT = "                if decided.events and not await self._commit(decided):\n"
EARLY = """                self._on_committed(decided.committed)
                for waiting, result in zip(decided.waiting, decided.results):
                    waiting.resolve(result)
                await asyncio.sleep(0)
"""

FULL = '"PRAGMA synchronous=FULL"'
SYNC_DIR = "    try:\n        sync_fd(fd)\n    finally:\n        os.close(fd)\n\n\ndef make_dirs"
BUILDING = 'building = path.with_name(f"{mark}{os.getpid()}")'

MUTANTS = {
    "synchronous=OFF": ("ledger/sqlite.py", FULL, FULL.replace("FULL", "OFF")),
    "synchronous=NORMAL": ("ledger/sqlite.py", FULL, FULL.replace("FULL", "NORMAL")),
    "reply before commit": ("ledger/writer.py", COMMIT, EARLY + COMMIT),
    "no fsync of the directory": ("durable/files.py", SYNC_DIR, "    os.close(fd)\n\n\ndef make_dirs"),
    "no fsync of a new ledger": ("ledger/sqlite.py", "        sync_fd(fd)\n", ""),
    "built under its own name": ("ledger/sqlite.py", BUILDING, "building = path"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_promise_left_out_is_seen(tmp_path: Path, cut: Path, shim: Path, name: str) -> None:
    recording = run(tmp_path, shim, mutant(tmp_path, *MUTANTS[name]))
    found = losses(recording, lost, cut, points=40, most=1)
    assert found, "no cut showed the loss"
