"""A job's bytes to where they belong, and the two lines at its end: how it ended, and what it did with the GPU."""

from __future__ import annotations

import os
import sys

from tenure.cli.options import Option
from tenure.cli.text import clean, note, span
from tenure.domain.names import names
from tenure.sdk.following import Following

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Screen:
    """Writes a job's streams to file descriptors, byte by byte as they came."""

    def __init__(self, stdout: int = 1, stderr: int = 2, only: str = "both") -> None:
        self._fds = {"stdout": stdout, "stderr": stderr}
        self._only = only
        self._open_line = False

    def write(self, stream: str, data: bytes) -> None:
        """All of the data, also where the other end takes it slowly. Raises ``BrokenPipeError`` where it is gone."""
        if self._only not in ("both", stream):
            return
        fd, view = self._fds.get(stream, 1), memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                import select

                select.select([], [fd], [])
        self._open_line = not data.endswith(b"\n")

    def close_line(self) -> None:
        """Ends a line that the job left open, so that a note of ours begins a new one, where both go to a terminal."""
        if self._open_line and os.isatty(2):
            os.write(2, b"\n")
        self._open_line = False


def show(following: Following, screen: Screen) -> dict[str, Any]:
    """Streams until the job is over; gives its record. A warning about its use is shown once, when it is made; so is
    each notice, and those on record before are part of the log that is shown from here."""
    waiting, told = False, 0
    said: set[str] | None = None
    for event in following:
        kind = event["type"]
        if kind in ("job", "ended"):
            told = notices(event["job"], told, screen)
            said = _warn(event["job"], said, screen, new=following.submits and kind == "ended")
        if kind == "output":
            screen.write(event["stream"], event["data"])
        elif kind == "gap":
            screen.close_line()
            note(f"{event['bytes']} bytes of output from byte {event['offset']} on are missing here: {event['why']}")
        elif kind == "job":
            job = event["job"]
            if job["state"] == "queued" and not waiting and os.isatty(2):
                waiting = True
                note(f"job {job['id']} waits in the queue: {job['reason'] or 'no reason was told'}")
    screen.close_line()
    assert following.record is not None
    return following.record


def notices(job: Mapping[str, Any], told: int, screen: Screen) -> int:
    """Shows what the job's host had to say beside the output, from the ``told``-th on; gives how many there are."""
    found = job.get("notices") or ()
    for one in found[told:]:
        screen.close_line()
        note(f"notice: {one.get('words') or one.get('kind')}")
    return max(told, len(found))


def _warn(job: Mapping[str, Any], said: set[str] | None, screen: Screen, *, new: bool) -> set[str]:
    """Shows what was announced since the record seen before; gives the kinds that were shown or on record by now.

    What stands in the first record was announced to whoever followed before: it is only named, unless it is ``new``.
    """
    if not (job.get("use") or {}).get("announcements"):
        return said or set()
    from tenure.cli import warned  # only where there is one

    known = warned.kinds(job)
    if said is None and not new:
        warned.point(job)
        return known
    if not known <= (said or set()):
        screen.close_line()
        warned.tell(job, said or set())
    return known


def trouble(words: str | None, job: str | None) -> None:
    """Tells of a broken connection, once, and of its return."""
    if words is None:
        note("the controller answers again; going on where it stopped")
    else:
        aside = f"; job {job} goes on without it" if job else ""
        note(f"the controller does not answer ({words}){aside}; trying again")


def end_lines(job: Mapping[str, Any]) -> tuple[str, str]:
    """How the job ended, and what it did with the GPU."""
    return f"job {name_of(job)} {end_words(job)}", use_words(job)


def name_of(job: Mapping[str, Any]) -> str:
    """The id, with the label where there is one."""
    return f"{job['id']} ({clean(job['label'])})" if job.get("label") else str(job["id"])


def end_words(job: Mapping[str, Any]) -> str:
    """``exited 7 after 1.2 s on host:gpu0 (simulated)``."""
    said = str(job["words"])
    if job.get("started_at") and job.get("ended_at"):
        said += f" after {span(job['ended_at'] - job['started_at'])}"
    if job.get("devices"):
        said += f" on {devices_of(job)}"
    stragglers = ((job.get("outcome") or {}).get("stats") or {}).get("stragglers")
    return said + (f"; stragglers: {stragglers} (ended with it)" if stragglers else "")


def devices_of(job: Mapping[str, Any]) -> str:
    """Its devices, those in a row as one word, the simulated ones labelled: ``h:gpu0-3 (simulated), h:gpu7``."""
    simulated = set(job.get("simulated") or ())
    pretended = names(clean(d) for d in job["devices"] if d in simulated)
    real = names(clean(d) for d in job["devices"] if d not in simulated)
    return ", ".join(filter(None, (f"{pretended} (simulated)" if pretended else "", real)))


#: Ends of jobs whose command was not started.
_NOT_BEGUN = ("requirement_not_met", "stage_failed")


def use_words(job: Mapping[str, Any]) -> str:
    """The verdict of use in one line; always with the word ``simulated`` where a device is."""
    devices = list(job.get("devices") or ())
    if not devices:
        return "no device was leased"
    if (job.get("outcome") or {}).get("ending") in _NOT_BEGUN:
        return "nothing was run, so nothing was used"
    use = job.get("use")
    if use is not None and use.get("verdict") == "not_applicable":
        return "no GPU was leased"
    if use is None:
        return "no GPU was leased" if cpu_only(job) else "GPU use: unknown, no verdict was recorded"
    count = len(job.get("simulated") or ())
    aside = f" ({'' if count == len(devices) else f'{count} '}simulated)" if count else ""
    return f"GPU use{aside}: {use.get('words') or use.get('verdict')}"


def cpu_only(job: Mapping[str, Any]) -> bool:
    """Whether devices were leased and none of them was a GPU."""
    devices = [str(name).rpartition(":")[2] for name in job.get("devices") or ()]
    return bool(devices) and all(name.startswith("cpu") for name in devices)


#: For every command that ends as a job did.
STRICT = Option(
    "--strict", "", "turn exit status 0 into the verdict's: 1 GPU not used, used in part or idle; 2 unknown"
)


def finish(job: Mapping[str, Any], *, quiet: bool, json: bool, strict: bool = False) -> int:
    """The end of a command that followed a job: the two lines or the record, and the job's exit status.

    With ``strict`` an exit status of 0 becomes the verdict's, and a line says so, in the record too.
    """
    code, why = int(job["exit_status"]), ""
    if strict:
        from tenure.cli import strict as rule  # the rules of verdicts, for those who ask

        code, why = rule.exit_status(job)
    if json:
        from json import dumps

        said = {**job, "strict": {"exit": code, "words": why}} if strict else job
        sys.stdout.write(dumps(said) + "\n")
    else:
        _unmet(job)
    if not json and not quiet:
        for line in end_lines(job):
            note(line)
    if why and (not quiet or code != job["exit_status"]):
        note(why)
    return code


def _unmet(job: Mapping[str, Any]) -> None:
    if (job.get("outcome") or {}).get("ending") == "requirement_not_met":
        from tenure.cli import needs  # only where there is something to tell

        needs.tell(job)
