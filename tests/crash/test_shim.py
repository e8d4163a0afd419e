"""The crash tools against tiny programs whose right answers are known; without these no other crash test means much."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from tests.crash.record import Kind, Recording, record
from tests.crash.replay import IncompleteRecord, Replay, losses, sectors

Run = Callable[[str], Recording]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "watched"


@pytest.fixture
def run(root: Path, shim: Path) -> Run:
    """Runs a few lines of Python in the watched folder, which holds one durable file beforehand."""

    def start(code: str) -> Recording:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        (root / "old").write_bytes(b"old")
        head = "import os, sys\nfrom record import mark\nos.chdir(sys.argv[1])\n"
        return record([sys.executable, "-c", head + dedent(code), root], root, shim)

    return start


def says(name: str, content: bytes, when: str) -> Callable[[Path, list[str]], str | None]:
    """A check: once ``when`` was said, the file holds exactly this."""

    def check(folder: Path, marks: list[str]) -> str | None:
        if when not in marks:
            return None
        path = folder / name
        return None if path.exists() and path.read_bytes() == content else f"{name} is not {content!r}"

    return check


CORRECT = """
    fd = os.open("new", os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, b"hello")
    os.fsync(fd)
    folder = os.open(".", os.O_RDONLY)
    os.fsync(folder)
    mark("saved")
"""


def test_what_is_synced_with_its_folder_is_never_lost(run: Run, cut: Path) -> None:
    recording = run(CORRECT)
    assert [each.kind.name for each in recording.operations] == ["CREATE", "WRITE", "SYNC", "SYNC", "MARK"]
    assert losses(recording, says("new", b"hello", "saved"), cut) == []


@pytest.mark.parametrize(
    ("without", "why"),
    [("os.fsync(fd)", "the content was never synced"), ("os.fsync(folder)", "the name was never synced")],
)
def test_each_sync_left_out_is_found(run: Run, cut: Path, without: str, why: str) -> None:
    recording = run(CORRECT.replace(without, "pass"))
    found = losses(recording, says("new", b"hello", "saved"), cut)
    assert any(each.startswith("undone") for each in found), why
    assert not any(each.startswith("kept") for each in found), "killing the program alone shows nothing"


def test_a_sync_before_the_last_write_does_not_cover_it(run: Run, cut: Path) -> None:
    recording = run(CORRECT.replace("os.fsync(folder)", "os.fsync(folder); os.pwrite(fd, b'H', 0)"))
    assert losses(recording, says("new", b"Hello", "saved"), cut)


def test_a_rename_is_durable_only_with_its_folder(run: Run, cut: Path) -> None:
    code = """
        fd = os.open("tmp", os.O_WRONLY | os.O_CREAT)
        os.write(fd, b"new")
        os.fsync(fd)
        os.rename("tmp", "old")
        os.fsync(os.open(".", os.O_RDONLY))
        mark("saved")
    """
    check = says("old", b"new", "saved")
    assert losses(run(code), check, cut) == []
    assert losses(run(code.replace('os.fsync(os.open(".", os.O_RDONLY))', "pass")), check, cut)

    def whole(folder: Path, marks: list[str]) -> str | None:
        content = (folder / "old").read_bytes()
        return None if content in (b"old", b"new") else f"half a replacement: {content!r}"

    assert losses(run(code), whole, cut) == []
    assert losses(run(code.replace("os.fsync(fd)", "pass")), whole, cut), "the rename may overtake the data"


@pytest.mark.parametrize(("synced", "safe"), [("ab", True), ("ba", True), ("a", False), ("b", False), ("", False)])
def test_a_rename_between_folders_needs_both(run: Run, cut: Path, synced: str, safe: bool) -> None:
    recording = run(f"""
        def sync(name): os.fsync(os.open(name, os.O_RDONLY))
        os.mkdir("a"); os.mkdir("b"); sync(".")
        open("a/f", "w").close()
        sync("a")
        os.rename("a/f", "b/f")
        for name in "{synced}": sync(name)
        mark("moved")
    """)

    def check(folder: Path, marks: list[str]) -> str | None:
        there = [name for name in "ab" if (folder / name / "f").exists()]
        return f"not moved: {there}" if "moved" in marks and there != ["b"] else None

    assert (losses(recording, check, cut) == []) is safe


def test_an_unlink_may_come_back_until_its_folder_is_synced(run: Run, cut: Path) -> None:
    def gone(folder: Path, marks: list[str]) -> str | None:
        return "it came back" if "removed" in marks and (folder / "old").exists() else None

    assert losses(run('os.unlink("old"); mark("removed")'), gone, cut)
    again = 'open("old", "w").close(); os.unlink("old"); os.fsync(os.open(".", os.O_RDONLY)); mark("removed")'
    assert losses(run(again), gone, cut) == []


def test_every_part_of_an_unsynced_write_is_tried(run: Run, cut: Path) -> None:
    recording = run('fd = os.open("old", os.O_WRONLY); os.pwrite(fd, b"x" * 2048, 256)')
    replay = Replay(recording)
    replay.check_complete()
    seen = set()
    for state in replay.cuts(samples=60):
        content = (state.build(cut) / "old").read_bytes()
        assert content[:3] == b"old"
        assert set(content[256:]) <= {0, ord("x")}
        seen.add(content)
    assert b"old" in seen
    assert b"old" + bytes(253) + b"x" * 2048 in seen
    holes = [each for each in seen if b"x" in each and b"\0x" in each[300:]]
    assert holes, "later sectors without earlier ones"
    assert len(seen) > 20
    assert sectors(256, 2048) == [(0, 256), (256, 768), (768, 1280), (1280, 1792), (1792, 2048)]
    assert sectors(512, 512) == [(0, 512)]
    assert sectors(0, 10) == [(0, 10)]


def test_all_ways_to_change_a_file_are_seen(run: Run, root: Path) -> None:
    recording = run("""
        import ctypes, shutil
        fd = os.open("f", os.O_RDWR | os.O_CREAT)
        os.write(fd, b"0123456789")
        os.pwrite(fd, b"ab", 2)
        os.writev(fd, [b"x", b"yz"])
        os.pwritev(fd, [b"Q", b"R"], 20)
        os.ftruncate(fd, 15)
        os.truncate("f", 14)
        os.posix_fallocate(fd, 0, 30)
        os.lseek(fd, 3, os.SEEK_SET)
        os.write(os.dup(fd), b"dup")
        log = os.open("f", os.O_WRONLY | os.O_APPEND)
        os.write(log, b"end")
        os.pwrite(log, b"!", 0)          # Linux appends this one too
        with open("text", "w") as file: file.write("hello")
        with open("text", "a") as file: file.write(" there")
        open("emptied", "w").write("gone")
        open("emptied", "w").close()
        os.mkdir("d"); os.makedirs("d/e/f"); os.rmdir("d/e/f")
        os.symlink("f", "s"); os.link("f", "d/hard"); os.rename("d", "moved")
        folder = os.open("moved", os.O_RDONLY)
        os.close(os.open("inside", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
        os.rename("inside", "inside2", src_dir_fd=folder, dst_dir_fd=folder)
        os.unlink("hard", dir_fd=folder)
        os.remove("old")
        import threading
        def fill(n):
            with open(f"t{n}", "wb", buffering=0) as file:
                for i in range(50): file.write(bytes([n]) * n)
        threads = [threading.Thread(target=fill, args=(n,)) for n in range(1, 5)]
        [t.start() for t in threads]; [t.join() for t in threads]
        shared = os.open("shared", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        children = []
        for n in range(4):
            pid = os.fork()
            if pid == 0:
                for i in range(50): os.write(shared, f"{n}:{i};".encode())
                os._exit(0)
            children.append(pid)
        [os.waitpid(pid, 0) for pid in children]
        outside = open("../outside", "w"); outside.write("not ours"); outside.close()
        os.fdatasync(fd); os.fsync(fd); os.sync()
    """)
    Replay(recording).check_complete()
    assert (root / "f").read_bytes() == b"01adup6789xyz".ljust(30, b"\0") + b"end!"
    kinds = {each.kind for each in recording.operations}
    assert kinds == set(Kind) - {Kind.WRITE_SYNCED, Kind.MARK, Kind.UNSUPPORTED}
    assert len({each.pid for each in recording.operations}) == 5
    final = recording.operations[-1]
    assert final.kind is Kind.SYNC_ALL
    assert Replay(recording).undurable(final.number) == []


def test_a_write_through_o_dsync_is_durable_by_itself(run: Run, cut: Path) -> None:
    recording = run('os.write(os.open("old", os.O_WRONLY | os.O_DSYNC), b"NEW"); mark("saved")')
    assert losses(recording, says("old", b"NEW", "saved"), cut) == []


def test_a_failed_operation_is_not_recorded(run: Run) -> None:
    recording = run("""
        for wrong in (lambda: os.rename("no", "old"), lambda: os.mkdir("old"), lambda: os.unlink("no"),
                      lambda: os.open("no/x", os.O_CREAT), lambda: os.write(os.open("old", os.O_RDONLY), b"x")):
            try: wrong()
            except OSError: pass
            else: sys.exit("it worked")
    """)
    assert recording.operations == []


def test_a_descriptor_inherited_over_exec_and_a_closed_one(run: Run) -> None:
    recording = run("""
        import subprocess
        fd = os.open("f", os.O_WRONLY | os.O_CREAT)
        subprocess.run([sys.executable, "-c", f"import os; os.write({fd}, b'child')"], pass_fds=[fd], check=True)
        os.closerange(3, 1000)
        os.close(os.open("after", os.O_WRONLY | os.O_CREAT))
    """)
    Replay(recording).check_complete()
    assert [each.kind.name for each in recording.operations] == ["CREATE", "WRITE", "CREATE"]


def test_a_killed_writer_leaves_a_usable_record_and_no_lock(run: Run, root: Path, shim: Path) -> None:
    recording = run("""
        import signal, subprocess, time
        code = "import os\\nfd = os.open('f', os.O_WRONLY | os.O_CREAT)\\nwhile True: os.write(fd, b'x')"
        for _ in range(5):
            child = subprocess.Popen([sys.executable, "-c", code])
            before = os.path.getsize("f") if os.path.exists("f") else 0
            until = time.monotonic() + 10
            while not os.path.exists("f") or os.path.getsize("f") <= 50:
                assert time.monotonic() < until
            child.kill(); child.wait()
            os.truncate("f", 0)
        mark("end")
    """)
    assert recording.marks == ["end"]
    Replay(recording).check_complete()


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ('import mmap; f = open("old", "r+b"); m = mmap.mmap(f.fileno(), 0); m[0] = 0', "mmap"),
        ('a = os.open("old", 0); b = os.open("b", 65); os.sendfile(b, a, 0, 3)', "sendfile"),
        ('a = os.open("old", 0); b = os.open("b", 65); os.copy_file_range(a, b, 3)', "copy_file_range"),
        ('os.open(".", os.O_TMPFILE | os.O_RDWR)', "O_TMPFILE"),
        ('os.rename("old", "../gone")', "rename across the root"),
    ],
)
def test_what_cannot_be_replayed_is_refused(run: Run, code: str, word: str) -> None:
    with pytest.raises(IncompleteRecord, match=word):
        Replay(run(code))


def test_what_the_shim_cannot_see_is_noticed(run: Run) -> None:
    # stdio writes from inside the C library, past every symbol that could be replaced
    recording = run("""
        import ctypes
        c = ctypes.CDLL(None); c.fopen.restype = ctypes.c_void_p
        file = c.fopen(b"old", b"a"); c.fputs(b"unseen", ctypes.c_void_p(file)); c.fclose(ctypes.c_void_p(file))
    """)
    with pytest.raises(IncompleteRecord, match="old"):
        Replay(recording).check_complete()


def test_a_mark_without_the_shim_fails(tmp_path: Path) -> None:
    from tests.crash.record import mark

    with pytest.raises(AttributeError):
        mark("nobody writes this down")
