"""The program that every product starts, and the pipe on which it says when it began."""

from __future__ import annotations

import itertools
import os
import select
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("stamp.c")


def compile_program(folder: Path) -> Path:
    """``stamp``, linked statically. Raises ``RuntimeError`` with the compiler's words where there is none."""
    program = folder / "stamp"
    command = ["cc", "-O1", "-static", "-o", str(program), str(SOURCE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError as error:
        raise RuntimeError("the benches need a C compiler (cc) and a static libc") from error
    if done.returncode:
        raise RuntimeError(f"cc failed: {done.stderr.strip()[-400:]}")
    program.chmod(0o755)
    return program


class Stamps:
    """What the started programs have said so far. The pipe is read without polling: a look costs what is measured."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.program = str(program)
        self.path = str(folder / "stamps")
        os.mkfifo(self.path, 0o666)
        # Open for writing too: the pipe never ends when the last writer goes, and no writer waits for a reader.
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._seen: dict[str, int] = {}
        self._rest = b""
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """Closes the pipe; programs that begin later fail."""
        os.close(self._fd)

    def tag(self) -> str:
        """A name that was not used before."""
        return f"t{next(self._numbers)}"

    def argv(self, tag: str, *words: str) -> list[str]:
        """The command that says ``tag``."""
        return [self.program, self.path, tag, *words]

    def wait(self, tag: str, timeout_s: float = 60.0) -> int:
        """When the program with this tag began (monotonic, ns). Raises ``TimeoutError``."""
        return self.wait_all([tag], timeout_s)[0]

    def wait_all(self, tags: Sequence[str], timeout_s: float) -> list[int]:
        """When each of them began (monotonic, ns), once all have. Raises ``TimeoutError`` with how many are missing."""
        end = time.monotonic() + timeout_s
        while missing := [tag for tag in tags if tag not in self._seen]:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{len(missing)} of {len(tags)} jobs had not begun after {timeout_s:g} s")
            if select.select([self._fd], [], [], left)[0]:
                self._read()
        return [self._seen.pop(tag) for tag in tags]

    def forget(self, tags: Iterable[str]) -> None:
        """Takes note of what came late, and drops it."""
        if select.select([self._fd], [], [], 0)[0]:
            self._read()
        for tag in tags:
            self._seen.pop(tag, None)

    def _read(self) -> None:
        *lines, self._rest = (self._rest + os.read(self._fd, 65536)).split(b"\n")
        for line in lines:
            tag, _, when = line.decode("ascii").partition(" ")
            self._seen[tag] = int(when)
