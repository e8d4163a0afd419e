"""What the table of errors is made of: a stopped home with a history, ways to spoil it, and what an error must say."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.conftest import House

from tenure.errors import CODES

#: A command of the file system inside a sentence: what a reader would copy out of it.
_TYPED = re.compile(r"\b(?:mv|rm -r|rm|cp -a|chmod u\+rwX) (?:'[^']*'|[^\s;,']+)(?: (?:'[^']*'|[^\s;,']+))?")


@dataclasses.dataclass(frozen=True)
class Error:
    """An error as ``-o json`` gives it on stderr."""

    code: str
    message: str
    do: str
    facts: dict[str, Any]

    @property
    def commands(self) -> list[list[str]]:
        """The commands in ``do`` that put files right."""
        return [shlex.split(found.rstrip(".")) for found in _TYPED.findall(self.do)]

    def obey(self) -> None:
        """Types them."""
        assert self.commands, f"nothing to type in {self.do!r}"
        for command in self.commands:
            subprocess.run(command, check=True, timeout=20)


def refused(house: House, *words: str, code: str, timeout: float = 60, **env: str) -> Error:
    """Runs a command that must be refused under a code; holds what is common to all errors, in both forms of output."""
    done = house.rc(words[0], "-o", "json", *words[1:], timeout=timeout, **env)
    assert done.stdout == b"", done
    body = json.loads(done.stderr.splitlines()[-1])["error"]
    error = Error(body["code"], body["message"], body["do"], body["facts"])
    assert error.code == code, body
    assert body["exit"] == done.returncode == CODES[code].exit, body
    assert error.message
    assert error.do, f"{error.message} says nothing about what to do"
    assert b"Traceback" not in done.stderr
    return error


def in_words(house: House, error: Error, *words: str) -> None:
    """The same command for people: the same exit status, message and advice, on stderr alone."""
    done = house.rc(*words)
    assert done.returncode == CODES[error.code].exit, done
    said = done.stderr.decode()
    assert said.startswith("rc: ")
    assert error.message.splitlines()[0] in said
    assert error.do in said
    assert done.stdout == b""


class Spoilt:
    """A home that was used and stopped, put back into that state before every case."""

    def __init__(self, house: House) -> None:
        self.house = house
        house.up("2xH100")
        done = house.rc("run", "-d", house.gpu(0), "--as", "before", "--", "echo", "kept")
        assert done.returncode == 0, done
        self.job = house.newest()["id"]
        assert house.rc("down").returncode == 0
        self._kept = house.home.with_name(house.home.name + ".kept")
        shutil.copytree(house.home, self._kept, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))

    def restore(self) -> None:
        """Stops what runs and puts every file back."""
        self.house.rc("down", "--leave")
        for entry in self.house.home.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        shutil.copytree(self._kept, self.house.home, symlinks=True, dirs_exist_ok=True)

    def close(self) -> None:
        """Removes the copy."""
        shutil.rmtree(self._kept, ignore_errors=True)

    def history_is_whole(self) -> bool:
        """Whether the job from before is there with its end and its output."""
        jobs = {job["id"]: job for job in self.house.json("jobs")["jobs"]}
        return (
            jobs[self.job]["exit_status"] == 0
            and jobs[self.job]["label"] == "before"
            and self.house.rc("logs", self.job).stdout == b"kept\n"
        )


def flip(path: Path, at: int) -> None:
    """Turns one byte of a file into another."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def into_folder(path: Path) -> None:
    """Puts a folder where a file was."""
    path.unlink()
    path.mkdir()


Harm = Callable[[House], object]


@dataclasses.dataclass(frozen=True)
class Case:
    """``harm`` spoils the stopped home, ``rc up`` is refused under ``code`` and names ``file`` (``key`` too), and what
    it says to do is done. ``serves``: the controller is there all the same. ``keeps``: the history is whole afterwards
    (an empty ledger in place of a damaged one has none; the damaged one is kept aside)."""

    name: str
    code: str
    file: Callable[[House], Path]
    harm: Harm
    key: str = ""
    mend: Harm | None = None
    serves: bool = False
    keeps: bool = True
