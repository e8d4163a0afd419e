"""Where a job will start, as the looks of the preflight see it: its environment, its folder, and what can be run there.

Everything here runs in the preflight's own child (``preflight_worker``), in one thread for each requirement, because
any of these calls may never come back: a ``stat`` on a mount whose server is gone, a compiler that hangs.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tenure.domain.reading import Reason
from tenure.domain.requirement import Look, Requirement, Result

#: How long a command that is asked something (``nvcc --version``) may take.
COMMAND_S = 5.0
MAX_OUTPUT = 16 << 20  # nvcc's own headers, preprocessed, are 1.3 MB
#: Commands that are asked something at the same time: two hundred compilers at once would be a load of their own.
_turns = threading.BoundedSemaphore(24)
_GONE = (errno.ENOENT, errno.ENOTDIR)


class CannotLook(Exception):
    """Nobody could look: ``reason`` says why, ``words`` what was tried and what was met."""

    def __init__(self, reason: Reason, words: str) -> None:
        super().__init__(words)
        self.reason = reason
        self.words = words

    @classmethod
    def of(cls, path: str, problem: OSError) -> CannotLook:
        """What an operating system's error on a path means."""
        denied = problem.errno in (errno.EACCES, errno.EPERM)
        reason = Reason.NO_PERMISSION if denied else Reason.UNPARSEABLE
        if problem.errno in (errno.ENOSYS, errno.EOPNOTSUPP):
            reason = Reason.NOT_SUPPORTED
        return cls(reason, f"{path}: {problem.strerror}")


@dataclass(frozen=True, slots=True)
class Said:
    """What a command said: its exit code (negative for a signal), its stdout, and the end of its stderr."""

    code: int
    output: str
    error: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where the job starts. ``program`` is the first word of its command; ``scratch`` its own folder. ``at`` is told
    what is about to be done, so that a look that never ends says where it stopped."""

    env: Mapping[str, str]
    cwd: str
    program: str
    scratch: str
    at: Callable[[str], None] = field(default=lambda what: None)

    def absolute(self, path: str) -> str:
        """A path as the job would mean it."""
        return os.path.join(self.cwd, path)  # noqa: PTH118 - the paths here are text that the job gave

    def stat(self, path: str) -> os.stat_result | None:
        """What is there, links followed; None where nothing is. Raises ``CannotLook``."""
        self.at(f"stat {path}")
        try:
            return os.stat(path)  # noqa: PTH116
        except OSError as problem:
            if problem.errno in _GONE:
                return None
            raise CannotLook.of(path, problem) from None

    def ancestor(self, path: str) -> str:
        """The nearest folder above a path that is there: the control for a thing that is not."""
        path = os.path.abspath(path)  # noqa: PTH100
        while path != "/":
            path = os.path.dirname(path)  # noqa: PTH120
            found = self.stat(path)
            if found is not None:
                break
        return path

    def search_path(self) -> Iterator[str]:
        """The folders of the job's PATH, as execvp takes them: an empty one is the working directory."""
        for folder in self.env.get("PATH", os.defpath).split(":"):
            yield self.absolute(folder or ".")

    def which(self, name: str, troubles: list[CannotLook] | None = None) -> str | None:
        """The program that the job would run under that name; what could not be looked at goes to ``troubles``."""
        folders = [""] if "/" in name else self.search_path()
        for folder in folders:
            path = os.path.join(folder, name) if folder else self.absolute(name)  # noqa: PTH118
            try:
                found = self.stat(path)
            except CannotLook as problem:
                if troubles is not None:
                    troubles.append(problem)
                continue
            if found is not None and stat.S_ISREG(found.st_mode) and os.access(path, os.X_OK):
                return path
        return None

    def run(self, argv: Sequence[str], *, text: str = "", env: Mapping[str, str] | None = None) -> Said:
        """Runs a command as the job would be run, with a deadline. Raises ``CannotLook`` where it gave no answer.

        It stays in the child's process group, which is ended as a whole when the looking is over, so that what it
        started cannot outlive the look by more than that.
        """
        shown = " ".join(argv[:2])
        self.at(f"{shown} (waits for its turn)")
        with (
            _turns,
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            self.at(shown)
            given.write(text.encode())
            given.seek(0)
            folder = self.cwd if os.path.isdir(self.cwd) else "/"  # noqa: PTH112
            chosen = {**(self.env if env is None else env), "LC_ALL": "C", "LANGUAGE": ""}
            try:
                process = subprocess.Popen(list(argv), stdin=given, stdout=out, stderr=err, env=chosen, cwd=folder)
            except OSError as problem:
                raise CannotLook.of(shown, problem) from None
            _wait(process, shown, out.fileno(), err.fileno())
            said = os.pread(out.fileno(), MAX_OUTPUT, 0).decode("utf-8", "replace")
            errors = os.pread(err.fileno(), MAX_OUTPUT, 0).decode("utf-8", "replace")
        return Said(process.returncode, said, errors)


def _wait(process: subprocess.Popen[bytes], shown: str, *written: int) -> None:
    """Until it has ended, is late, or floods the disk."""
    end = time.monotonic() + COMMAND_S
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
            return
        if time.monotonic() >= end:
            process.kill()
            raise CannotLook(Reason.TIMEOUT, f"{shown} did not end within {COMMAND_S:g} s")
        if any(os.fstat(fd).st_size > MAX_OUTPUT for fd in written):
            process.kill()
            raise CannotLook(Reason.UNPARSEABLE, f"{shown} printed over {MAX_OUTPUT >> 20} MiB")


def present(need: Requirement, words: str, *, path: str = "", version: str = "") -> Look:
    """It is there."""
    return Look(need, Result.PRESENT, words, "", path, version)


def absent(need: Requirement, words: str, *, path: str = "", version: str = "") -> Look:
    """It is not: a control was found by the same look."""
    return Look(need, Result.ABSENT, words, "", path, version)


def failed(said: Said, argv: Sequence[str]) -> CannotLook:
    """A command that ended with an error instead of an answer."""
    how = f"was ended by signal {-said.code}" if said.code < 0 else f"exited {said.code}"
    last = said.error.strip().splitlines()[-1:] or said.output.strip().splitlines()[-1:]
    aside = re.sub(r"\s+", " ", f": {last[0]}" if last else "")[:200]
    return CannotLook(Reason.UNPARSEABLE, f"{' '.join(argv[:2])} {how}{aside}")
