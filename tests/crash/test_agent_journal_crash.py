"""The agent's journal after a power cut at any point: no token that was acted on is forgotten, no report that was owed.

The mutants show that this test would see it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest
from tests.crash.mutant import mutant
from tests.crash.record import Recording, record
from tests.crash.replay import losses

from tenure.agent import core
from tenure.agent.journal import Journal

#: The shell's rule in few words: decide, record, evolve, and only then act. What is acted on is marked.
PROGRAM = """
    import sys
    from pathlib import Path
    from record import mark
    from tenure.agent import core, records as r
    from tenure.agent.journal import Journal
    from tenure.domain.device import CLEAR
    from tenure.domain.instructions import Grant, StartJob, StopJob
    from tenure.domain.job import Ending, JobSpec, Outcome
    from tenure.durable import make_dirs

    folder = Path(sys.argv[1]) / "agent"
    make_dirs(folder)
    state = core.AgentState(("boot", "namespace", "instance"))
    journal = Journal.open(folder / "journal.log", state, limit_bytes=6000)
    forgotten = []

    def tell(message):
        events, effects = core.decide(state, message)
        if events:
            journal.record(events)
            for event in events:
                core.evolve(state, event)
        for effect in effects:
            match effect:
                case r.Spawn(key):
                    for grant in state.attempts[key].grants:
                        mark(f"spawned {key[0]} {grant.uuid} {grant.token}")
                case r.Send(seq):
                    mark(f"sent {seq}")
                case r.Discard(key):
                    forgotten.append(key[0])
        journal.compact(state)
        if journal.durable:
            while forgotten:
                mark(f"discarded {forgotten.pop()}")

    for number in range(1, 9):
        job, grant = f"j{number}", Grant("h:gpu0", "GPU-0", number, f"GPU-0#{number}")
        if number == 5:
            tell(StopJob(job, 1, (grant,), "cancelled"))
            mark(f"fenced GPU-0 {number}")
            tell(r.Looked(job, 1, {"h:gpu0": CLEAR}))
        else:
            tell(StartJob(job, 1, "ann", (grant,), JobSpec(("true",), env={"A": "x" * 200})))
            tell(r.Started(job, 1, (10, 20), 30))
            tell(r.Ended(job, 1, Outcome(Ending.EXITED, 0), 0, {"h:gpu0": CLEAR}))
        if number < 8:
            for seq in sorted(state.outbox):
                mark(f"acked {seq}")
                tell(r.Acked(seq))
    mark("closing")
    journal.close()
"""


def lost(folder: Path, marks: list[str]) -> str | None:
    """What a recovered journal fails to keep of what had been acted on; it must open in any case."""
    path, state = folder / "agent" / "journal.log", core.AgentState()
    if path.parent.exists():
        Journal.open(path, state).close()
    acked = {mark.split(" ")[1] for mark in marks if mark.startswith("acked ")}
    for what, *rest in (mark.split(" ") for mark in marks):
        if what in ("spawned", "fenced"):
            uuid, token = rest[-2], int(rest[-1])
            if state.high_water.get(uuid, 0) < token:
                return f"token {token} of {uuid} was acted on, and {state.high_water} is remembered"
        if what == "sent" and rest[0] not in acked and int(rest[0]) not in state.outbox:
            return f"report {rest[0]} was sent, never acknowledged, and is owed no more"
        if what == "discarded" and (rest[0], 1) in state.attempts:
            return f"the output of {rest[0]} was deleted, and it is remembered"
    return None


def run(tmp_path: Path, shim: Path, source: Path | None = None) -> Recording:
    root = tmp_path / "state"
    root.mkdir()
    path = [] if source is None else [source]
    return record([sys.executable, "-c", dedent(PROGRAM), root], root, shim, python_path=path)


def test_nothing_that_was_acted_on_is_forgotten_at_any_point(tmp_path: Path, cut: Path, shim: Path) -> None:
    recording = run(tmp_path, shim)
    assert sum(mark.startswith("spawned") for mark in recording.marks) == 7
    assert recording.marks[-1] == "closing"
    assert losses(recording, lost, cut, points=60, most=3) == []


_SYNC = "        if not all(isinstance(event, _MAY_BE_LATE) for event in events):\n            self._log.sync()\n"
_SYNC_DIR = "    try:\n        sync_fd(fd)\n    finally:\n        os.close(fd)\n\n\ndef make_dirs"

MUTANTS = {
    "no fsync of the journal": ("agent/journal.py", _SYNC, ""),
    "no fsync of the directory": ("durable/files.py", _SYNC_DIR, "    os.close(fd)\n\n\ndef make_dirs"),
    "output deleted before that is durable": (
        "agent/journal.py",
        "return self._log.synced == self._log.end",
        "return True",
    ),
    "reports left for later": (
        "agent/journal.py",
        "_MAY_BE_LATE = (r.ReportAcked, r.OutputAcked, r.AttemptForgotten, r.JobsUnlooked)",
        "_MAY_BE_LATE = (r.ReportAcked, r.OutputAcked, r.AttemptAccepted, r.AttemptEnded, r.ReportQueued)",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_promise_left_out_is_seen(tmp_path: Path, cut: Path, shim: Path, name: str) -> None:
    recording = run(tmp_path, shim, mutant(tmp_path, *MUTANTS[name]))
    assert losses(recording, lost, cut, points=60, most=1), "no cut showed the loss"
