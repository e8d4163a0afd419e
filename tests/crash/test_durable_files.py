"""The durable files at every point of a power cut, and the guards that each of these proofs would miss.

A mutant is a patched copy of the package with one guard removed. A proof that does not fail on it proves nothing.
"""

from __future__ import annotations

import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from tests.crash.record import Recording, record
from tests.crash.replay import losses

from tenure.durable import FramedLog

SOURCE = Path(__file__).parents[2] / "src"
Check = Callable[[Path, list[str]], "str | None"]
Prove = Callable[..., list[str]]
Mutant = tuple[str, str]


def without(guard: str, around: str = "", after: str = "", instead: str = "") -> Mutant:
    """A mutant that does not run one line of the source, found by what stands right before and after it."""
    return around + guard + after, around + instead + after


def patched(text: str, mutant: Mutant) -> str:
    """The source of the mutant; the piece to replace must be there exactly once."""
    assert text.count(mutant[0]) == 1, f"the guard is not there any more: {mutant[0]!r}"
    return text.replace(*mutant)


FILE_SYNC = without(
    "            sync_fd(fd)\n", around="            write_all(fd, data, 0)\n", instead="            pass\n"
)
FOLDER_SYNC = without("    sync_dir(target.parent)\n", around="        raise\n")
WRITER = {
    "sync that does not": without("            sync_fd(self._fd, data_only=True)\n", instead="            pass\n"),
    "opening does not sync what it found": without(
        "            sync_fd(fd)\n", after="            sync_dir(path.parent)\n"
    ),
    "opening does not sync the folder": without(
        "            sync_dir(path.parent)\n", around="            sync_fd(fd)\n"
    ),
    "a frame calls synced what is not": without(
        "        self._end = start", after=" + len(data)", instead="        self._end = self._synced = start"
    ),
}
RECOVERY = {
    "every later frame proves damage": without("synced = max(synced, frame[1])", instead="synced = offset"),
    "a torn tail stays": without("                os.ftruncate(fd, end)\n"),
    "the checksum is not looked at": without(
        " or zlib.crc32(payload, zlib.crc32(_COVERED.pack(length, synced))) != crc"
    ),
}


@pytest.fixture
def prove(tmp_path: Path, cut: Path, shim: Path) -> Prove:
    """Records a program, perhaps against a mutant of the package, and gives what a check objects to."""

    def run(
        code: str, check: Check, mutant: Mutant | None = None, samples: int = 4, most: int | None = None
    ) -> list[str]:
        root = tmp_path / "state"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        packages = SOURCE
        if mutant is not None:
            packages = tmp_path / "mutant"
            shutil.rmtree(packages, ignore_errors=True)
            shutil.copytree(SOURCE, packages, ignore=shutil.ignore_patterns("__pycache__"))
            module = next(each for each in (packages / "tenure/durable").iterdir() if mutant[0] in each.read_text())
            module.write_text(patched(module.read_text(), mutant))
        head = "import os, sys\nfrom record import mark\nos.chdir(sys.argv[1])\n"
        recording: Recording = record(
            [sys.executable, "-c", head + dedent(code), root], root, shim, python_path=[packages]
        )
        return losses(recording, check, cut, samples=samples, most=most)

    return run


REPLACE = """
    from tenure.durable import write_atomic
    for n in range(4):
        write_atomic("state", bytes([n]) * (3000 + n))
        mark(str(n))
"""


def replaced_whole(folder: Path, marks: list[str]) -> str | None:
    path = folder / "state"
    if not path.exists():
        return "the file is gone" if marks else None
    raw = path.read_bytes()
    if not raw or raw != raw[:1] * (3000 + raw[0]):
        return f"half a file: {len(raw)} bytes"
    return f"back to {raw[0]} after {marks[-1]}" if marks and raw[0] < int(marks[-1]) else None


def test_an_atomic_file_is_the_old_or_the_new_and_never_older_than_acknowledged(
    prove: Prove,
) -> None:
    assert prove(REPLACE, replaced_whole, samples=8) == []


@pytest.mark.parametrize("mutant", [FILE_SYNC, FOLDER_SYNC], ids=["no fsync of the file", "no fsync of the directory"])
def test_an_atomic_file_without_one_of_its_syncs_is_caught(prove: Prove, mutant: Mutant) -> None:
    found = prove(REPLACE, replaced_whole, mutant, samples=8)
    assert found
    assert not any(each.startswith("kept") for each in found)


FOLDERS = """
    from tenure.durable import make_dirs, write_atomic
    make_dirs("a/b/c")
    write_atomic("a/b/c/f", b"x")
    mark("saved")
    make_dirs("a/b/c")
    mark("still")
"""


def folders_there(folder: Path, marks: list[str]) -> str | None:
    return None if not marks or (folder / "a/b/c/f").read_bytes() == b"x" else "lost"


def test_made_folders_are_durable_down_to_the_root(prove: Prove) -> None:
    assert prove(FOLDERS, folders_there, samples=8) == []
    mutant = ("            each.mkdir(mode)\n        sync_dir(each.parent)\n", "            each.mkdir(mode)\n")
    assert prove(FOLDERS, folders_there, mutant, most=1)


def test_a_folder_of_a_call_that_was_killed_is_made_durable_by_the_next(prove: Prove) -> None:
    code = 'os.mkdir("a")\n' + dedent(FOLDERS)  # as left by a call that was killed between mkdir and sync
    assert prove(code, folders_there, samples=8) == []
    mutant = ("    with contextlib.suppress(PermissionError):\n        sync_dir(folder.parent)\n", "")
    assert prove(code, folders_there, mutant, most=1)


# Bodies of several sectors, so that a torn write can be torn inside a frame; each begins with its number.
JOURNAL = """
    from tenure.durable import FramedLog
    def body(n): return f"{n}:".encode() + bytes([n]) * (700 * (n % 3))
    log = FramedLog.open("log")
    mark("opened")
    for n in range(0, 6):
        log.append(body(n))
        log.sync()
        mark(f"has {n}")
    log.append_many([body(n) for n in range(6, 10)])
    log.append(body(10))
    log.append(body(11))
    log.sync()
    mark("has 11")
    log.append(body(12))
    log.append(body(13))
    log.close()
    # The next process reads what the last one wrote and did not sync: from then on it counts.
    log = FramedLog.open("log")
    mark(f"has {list(log.frames())[-1].payload.split(b':')[0].decode()}")
    log.append(body(14))
    log.sync()
    mark("has 14")
"""


def journal_kept(folder: Path, marks: list[str], log_class: type[FramedLog] = FramedLog) -> str | None:
    """All that was acknowledged is there, in order, nothing else, and the log goes on from there."""
    if not (folder / "log").exists():
        return "the log is gone" if marks else None
    acknowledged = max((int(each.split()[1]) for each in marks if each.startswith("has")), default=-1)
    with log_class.open(folder / "log") as log:
        bodies = [frame.payload for frame in log.frames()]
        log.append(b"after")
    numbers = [int(each.split(b":")[0]) for each in bodies]
    if numbers != list(range(len(numbers))):
        return f"not what was appended: {numbers}"
    if any(body != f"{n}:".encode() + bytes([n]) * (700 * (n % 3)) for n, body in enumerate(bodies)):
        return "a body is not what was appended"
    if len(numbers) <= acknowledged:
        return f"{acknowledged} was acknowledged, {len(numbers)} are there"
    with log_class.open(folder / "log") as log:
        again = [frame.payload for frame in log.frames()]
    return None if log.recovered is None and again == [*bodies, b"after"] else "recovery is not stable"


def test_acknowledged_appends_survive_every_power_cut(prove: Prove) -> None:
    assert prove(JOURNAL, journal_kept, samples=12) == []


def test_a_log_that_is_opened_for_later_is_durable_with_its_name_from_the_first_sync_on(prove: Prove) -> None:
    code = JOURNAL.replace('open("log")\n    mark("opened")', 'open("log", later=True)')
    assert code != JOURNAL
    assert prove(code, journal_kept, samples=12) == []
    assert prove(
        code,
        journal_kept,
        without("                sync_dir(self.path.parent)\n", instead="                pass\n"),
        most=1,
    )


@pytest.mark.parametrize("mutant", WRITER.values(), ids=WRITER)
def test_a_journal_without_one_of_its_guards_is_caught(prove: Prove, mutant: Mutant) -> None:
    assert prove(JOURNAL, journal_kept, mutant, samples=12, most=1)


@pytest.mark.parametrize("mutant", RECOVERY.values(), ids=RECOVERY)
def test_a_recovery_without_one_of_its_guards_is_caught(prove: Prove, mutant: Mutant) -> None:
    module = types.ModuleType("mutant_of_durable")
    sys.modules[module.__name__] = module
    exec(compile(patched((SOURCE / "tenure/durable/framed.py").read_text(), mutant), "mutant", "exec"), module.__dict__)

    def check(folder: Path, marks: list[str]) -> str | None:
        return journal_kept(folder, marks, module.FramedLog)

    assert prove(JOURNAL, check, samples=12, most=1)


COMPACT = """
    from tenure.durable import FramedLog
    log = FramedLog.open("log")
    low, high = 0, 0
    for step in range(12):
        if step % 4 == 3:
            low = high - 1
            log.replace([f"{n}".encode() for n in range(low, high)])
        else:
            log.append(f"{high}".encode())
            high += 1
            log.sync()
        mark(f"{low} {high}")
"""


def compacted(folder: Path, marks: list[str]) -> str | None:
    if not marks:
        return None
    low, high = map(int, marks[-1].split())
    with FramedLog.open(folder / "log") as log:
        numbers = [int(frame.payload) for frame in log.frames()]
    if numbers != list(range(numbers[0], numbers[-1] + 1)):
        return f"not what was there: {numbers}"
    if numbers[0] < low or numbers[-1] < high - 1:
        return f"{low} to {high - 1} was acknowledged, {numbers} is there"
    return None


def test_a_compaction_shows_the_old_log_or_the_new(prove: Prove) -> None:
    assert prove(COMPACT, compacted, samples=8) == []
    assert prove(COMPACT, compacted, FOLDER_SYNC, most=1)


def test_a_torn_tail_cut_off_again_and_again_never_brings_old_frames_back(prove: Prove) -> None:
    """The cut of a torn tail must be durable before anything is written over it."""
    code = """
        from tenure.durable import FramedLog
        def body(n): return f"{n}:".encode() + bytes([n]) * (700 * (n % 3))
        log = FramedLog.open("log")
        for n in range(3):
            log.append(body(n))
        log.sync()
        mark("has 2")
        for n in range(3, 9):
            end = log.append(body(n))
            log.append(body(n + 1))
            log.close()
            fd = os.open("log", os.O_RDWR)      # as a power cut would leave it: the first of the two is torn
            os.pwrite(fd, b"\\0\\0\\0", end + 4)
            os.close(fd)
            log = FramedLog.open("log")
            assert log.recovered is not None and log.end == end
            log.append(body(n))
            log.sync()
            mark(f"has {n}")
    """
    assert prove(code, journal_kept, samples=12) == []
