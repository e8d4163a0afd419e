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
    """Writes a job's streams to file descriptors, byte by byte as they came, and counts them.

    ``whole`` says that it is shown from its first byte on, so that at the end the counts can be compared. On a terminal
    a character that came in pieces is held back until it is whole, so that neither the other stream nor a note of ours
    tears it; anywhere else the bytes go through as they come.
    """

    def __init__(self, stdout: int = 1, stderr: int = 2, only: str = "both", *, whole: bool = True) -> None:
        self._fds = {"stdout": stdout, "stderr": stderr}
        self._only = only
        self._open_line = False
        self._held: dict[str, bytes] = {name: b"" for name, fd in self._fds.items() if os.isatty(fd)}
        self.whole = whole
        self.shown = {name: 0 for name in self._fds if only in ("both", name)}
        self.gaps: list[dict[str, Any]] = []
        self.held: int | None = None

    def write(self, stream: str, data: bytes) -> None:
        """All of the data, also where the other end takes it slowly. Raises ``BrokenPipeError`` where it is gone."""
        if stream not in self.shown:
            return
        count, terminal = len(data), stream in self._held
        if terminal:
            data = self._held[stream] + data
            cut = len(data) - unfinished(data)
            data, self._held[stream] = data[:cut], data[cut:]
        self._put(self._fds[stream], data)
        self.shown[stream] += count
        if terminal and data:
            self._open_line = data[-1:] != b"\n"

    @staticmethod
    def _put(fd: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                import select

                select.select([], [fd], [])

    def flush(self) -> None:
        """Writes what was held back and will not be completed any more."""
        for stream, data in self._held.items():
            if data:
                self._held[stream], self._open_line = b"", True
                self._put(self._fds[stream], data)

    def close_line(self) -> None:
        """Ends a line that the job left open, so that a note of ours begins a new one, where both go to a terminal. A
        progress bar that stands there with the cursor at its beginning is such a line, and stays readable."""
        if self._open_line and os.isatty(2):
            os.write(2, b"\n")
        self._open_line = False

    def gap(self, event: Mapping[str, Any]) -> None:
        """Says, where they would stand, that bytes are missing."""
        stream = event.get("stream")
        if stream is not None and stream not in self.shown:
            return
        self.keep_gap(event)
        self.close_line()
        count, what = event["bytes"], stream or "output"
        note(f"{count} bytes of {what} are missing here, at byte {event['offset']}: {event['why']}")

    def keep_gap(self, event: Mapping[str, Any]) -> None:
        """Takes note of a gap, for ``account``."""
        if len(self.gaps) < _MOST_GAPS:
            self.gaps.append({name: event.get(name) for name in ("offset", "stream", "bytes", "cause", "why")})

    def trouble(self, words: str | None, job: str | None) -> None:
        """Tells of a broken connection, once, and of its return, on a line of its own."""
        self.close_line()
        trouble(words, job)

    def account(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """What was written, stored and shown, compared as far as that can be."""
        from tenure.sdk import account

        return {**account.account(job, self.shown if self.whole else {}, self.held), "gaps": self.gaps}

    def agrees(self, job: Mapping[str, Any]) -> bool:
        """Whether the job's supervisor counted what was shown here: the usual end, told without more ado."""
        stats = (job.get("outcome") or {}).get("stats") or {}
        counts = [stats.get(f"{name}_bytes") for name in self._fds]
        return self.whole and counts == list(self.shown.values()) and sum(counts) == job.get("output_bytes")


_MOST_GAPS = 1000


def unfinished(data: bytes) -> int:
    """How many bytes at the end begin a character of UTF-8 that needs more; 0 to 3."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            need = 2 if 0xC2 <= byte <= 0xDF else 3 if 0xE0 <= byte <= 0xEF else 4 if 0xF0 <= byte <= 0xF4 else 1
            return back if need > back else 0
    return 0


def show(following: Following, screen: Screen) -> dict[str, Any]:
    """Streams until the job is over; gives its record. A warning about its use is shown once, when it is made; so is
    each notice, and those on record before are part of the log that is shown from here."""
    try:
        _show(following, screen)
    finally:
        screen.flush()
    screen.close_line()
    assert following.record is not None
    return following.record


def _show(following: Following, screen: Screen) -> None:
    waiting = False
    told: list[Any] = []
    said: set[str] | None = None
    for event in following:
        kind = event["type"]
        if kind in ("job", "ended"):
            notices(event["job"], told, screen)
            said = _warn(event["job"], said, screen, new=following.submits and kind == "ended")
        if kind == "output":
            screen.write(event["stream"], event["data"])
        elif kind == "gap":
            screen.gap(event)
        elif kind == "ended":
            screen.held = event.get("held")
        elif kind == "job":
            job = event["job"]
            if job["state"] == "queued" and not waiting and os.isatty(2):
                waiting = True
                note(f"job {job['id']} waits in the queue: {job['reason'] or 'no reason was told'}")


def notices(job: Mapping[str, Any], told: list[Any], screen: Screen) -> None:
    """Shows what the job's host had to say beside the output and is not among ``told`` yet, and adds it there.

    What earlier jobs left there is no news of this one, and would be said again with every job: ``rc describe`` has it.
    """
    for one in job.get("notices") or ():
        if one not in told:
            told.append(one)
            if one.get("kind") == "leftovers":
                continue
            screen.close_line()
            note(f"notice: {one.get('words') or one.get('kind')}")


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
    if not_begun(job):
        return "nothing was run, so nothing was used"
    use = job.get("use")
    if use is not None and use.get("verdict") == "not_applicable":
        return "no GPU was leased"
    if use is None:
        return "no GPU was leased" if cpu_only(job) else "GPU use: unknown, no verdict was recorded"
    count = len(job.get("simulated") or ())
    aside = f" ({'' if count == len(devices) else f'{count} '}simulated)" if count else ""
    return f"GPU use{aside}: {use.get('words') or use.get('verdict')}"


def not_begun(job: Mapping[str, Any]) -> bool:
    """Whether its host found that its command must not be started."""
    return (job.get("outcome") or {}).get("ending") in _NOT_BEGUN


def cpu_only(job: Mapping[str, Any]) -> bool:
    """Whether devices were leased and none of them was a GPU."""
    devices = [str(name).rpartition(":")[2] for name in job.get("devices") or ()]
    return bool(devices) and all(name.startswith("cpu") for name in devices)


#: For every command that ends as a job did.
STRICT = Option(
    "--strict", "", "turn exit status 0 into the verdict's: 1 GPU not used, used in part or idle; 2 unknown"
)


def differences(job: Mapping[str, Any], screen: Screen) -> None:
    """Says where what was shown of a job that is over is not what it wrote. Nothing is said where nothing differs."""
    if screen.whole and not screen.agrees(job):
        for line in screen.account(job)["words"]:
            note(f"output of job {job['id']}: {line}")


def finish(
    job: Mapping[str, Any], *, quiet: bool, json: bool, strict: bool = False, screen: Screen | None = None
) -> int:
    """The end of a command that followed a job: the two lines or the record, and the job's exit status.

    With the ``screen`` that its output was shown on, bytes that were written and not shown are told of.
    With ``strict`` an exit status of 0 becomes the verdict's, and a line says so, in the record too.
    """
    code, why = int(job["exit_status"]), ""
    if strict:
        from tenure.cli import strict as rule  # the rules of verdicts, for those who ask

        code, why = rule.exit_status(job)
    if json:
        from json import dumps

        said = {**job, "strict": {"exit": code, "words": why}} if strict else job
        said = {**said, "output": screen.account(job)} if screen is not None else said
        sys.stdout.write(dumps(said) + "\n")
    else:
        _unmet(job)
    if not json and not quiet:
        for line in end_lines(job):
            note(line)
    if screen is not None:
        differences(job, screen)
    if why and (not quiet or code != job["exit_status"]):
        note(why)
    return code


def _unmet(job: Mapping[str, Any]) -> None:
    if (job.get("outcome") or {}).get("ending") == "requirement_not_met":
        from tenure.cli import needs  # only where there is something to tell

        needs.tell(job)
