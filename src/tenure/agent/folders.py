"""The folder that agent and supervisor share for one attempt: what is written there for it, and what it says.

``spec.json`` goes in, ``supervisor.json`` and ``exit.json`` come out. Here they are read into records; a file that
does not say what it should is reported as such, never taken for one that is not there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenure.agent import scratch
from tenure.domain.job import Ending, Outcome
from tenure.durable import write_atomic

#: What stays of an attempt when the controller has everything: the samples are the evidence of its verdict.
_KEPT = frozenset({"samples.log", "host.log", "exit.json", "supervisor.json"})
#: What stays too where the scratch does.
_SCRATCH = ("scratch", "scratch.json")
#: A log of the host up to this size holds no more than the outcome says, and is no reason to keep a folder.
_SHORT_LOG_BYTES = 2048


def make(folder: Path) -> None:
    """Makes the folder alone: from then on it can be sealed, which proves that nothing of its attempt was started."""
    if scratch.is_left_over(folder):
        _set_aside(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def prepare(
    folder: Path, spec: Mapping[str, Any], place: Path | None = None, *, keep: bool = False, why: str = ""
) -> None:
    """Makes the folder and its scratch, and writes the spec. Doing it again for the same attempt changes nothing.

    ``place`` is where the scratch lies (in the folder), ``keep`` whether it stays after the end, ``why`` why it lies
    elsewhere than it was meant to.
    """
    make(folder)
    scratch.make(folder, place or folder / "scratch", keep=keep, why=why)
    temporary = folder / ".spec.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as out:
        out.write(json.dumps(spec).encode())
    temporary.rename(folder / "spec.json")


def _set_aside(folder: Path) -> None:
    """Moves away what is left of an attempt that was over and discarded.

    Its number comes again only where the controller's ledger was restored from an old copy; its exit record must not
    be taken for that of the new run.
    """
    for number in range(1, 1000):
        target = folder.with_name(f"{folder.name}.before-{number}")
        if not target.exists():
            folder.rename(target)
            return
    raise FileExistsError(f"{folder} was set aside too often")


def read_exit(folder: Path) -> dict[str, Any] | None:
    """The exit record; None where there is none yet. Where it exists no process of the tree is alive."""
    body = _read(folder / "exit.json")
    if body is not None and not {"kind", "output_bytes"} <= body.keys():
        raise ValueError(f"{folder / 'exit.json'} lacks kind or output_bytes")
    return body


def write_not_begun(folder: Path, outcome: Outcome) -> None:
    """The exit record of an attempt whose command was never started; the folder must have been sealed before."""
    record = {**outcome.stats, "v": 1, "kind": str(outcome.ending), "code": outcome.code, "error": outcome.detail}
    record |= {"stopped": False, "output_bytes": 0, "tree_empty": True, "ended_at": time.time()}
    write_atomic(folder / "exit.json", json.dumps(record).encode())


def outcome_of(record: Mapping[str, Any], stop: str | None) -> Outcome:
    """The outcome that an exit record states. ``stop`` says who asked for the end, if anybody did before it came."""
    try:
        ending = Ending(str(record["kind"]))
    except ValueError:
        ending = Ending.SPAWN_FAILED
    details = [str(record["error"])] if record.get("error") else []
    if record.get("stragglers"):
        details.append(f"stragglers: {record['stragglers']}")
    stats = {k: v for k, v in record.items() if k not in ("v", "job", "attempt", "kind", "code", "signal", "error")}
    return Outcome(
        ending,
        code=record.get("code"),
        signal=record.get("signal"),
        cause=(stop or "") if record.get("stopped") else "",
        detail="; ".join(details),
        stats=stats,
    )


def keeps_host_log(folder: Path) -> bool:
    """Whether the samples of the host outlive the attempt: with its other evidence, or where there are many."""
    try:
        return (folder / "samples.log").exists() or (folder / "host.log").stat().st_size > _SHORT_LOG_BYTES
    except OSError:
        return False


def discard(folder: Path) -> None:
    """Deletes what the controller has: all but the evidence and a kept scratch, and the folder too where neither is.

    Nothing of the attempt runs any more. What of a scratch cannot be removed stays, with the folder, and is said.
    """
    left = scratch.finish(folder)
    stays = {*_KEPT, *(_SCRATCH if left or scratch.is_kept(folder) else ())}
    if not (folder / "samples.log").exists() and not keeps_host_log(folder) and stays == _KEPT:
        scratch.remove(folder)
        return
    for entry in folder.iterdir():
        if entry.name in stays or (left and scratch.is_remains(entry)):
            continue
        scratch.remove(entry)


def key_of(folder: Path) -> tuple[str, int] | None:
    """(job, attempt) of a folder by its name; None for a name of another kind."""
    job, _, attempt = folder.name.rpartition(".")
    return (job, int(attempt)) if job and attempt.isdecimal() else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    if not isinstance(body, dict):
        raise ValueError(f"{path} holds no object")
    return body
