"""The machine-wide claim of a device: one holder whoever asks, for as long as anybody keeps a copy of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.agent import claims
from tenure.agent.claims import Claim, Occupied, claim, claims_dir, holder_of, path_of
from tenure.errors import TenureError

UUID = "GPU-8f3c2a14-0000-1111-2222-333344445555"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    parent = tmp_path / "lock"
    parent.mkdir()
    parent.chmod(0o1777)
    for each in (tmp_path, *tmp_path.parents):  # others have to reach it, as they reach /run/lock
        if each.stat().st_uid == os.geteuid() and each.stat().st_mode & 0o011 != 0o011:
            each.chmod(each.stat().st_mode | 0o011)
    return claims_dir((parent,))


def held(found: Claim | Occupied) -> Claim:
    assert isinstance(found, Claim)
    return found


def in_a_child(call: Callable[[], str], uid: int | None = None) -> str:
    """What a call answers in another process, as another user where asked."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if uid is not None:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            os.write(write, call().encode())
        except BaseException as e:
            os.write(write, repr(e).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as told:
        text = told.read()
    os.waitpid(pid, 0)
    return text


def try_it(folder: Path, controller: str = "another") -> str:
    found = claim(UUID, controller, folder=folder)
    return f"occupied by {found.holder}" if isinstance(found, Occupied) else f"claimed after {found.left_behind}"


def test_one_claim_a_device_whoever_asks(folder: Path) -> None:
    mine = held(claim(UUID, "alpha", folder=folder))
    assert mine.left_behind is None
    again = claim(UUID, "beta", folder=folder)  # even the same process: an flock belongs to the open file
    assert isinstance(again, Occupied)
    assert again.holder
    assert (again.holder.controller, again.holder.uid, again.holder.pid) == ("alpha", os.geteuid(), os.getpid())
    assert f"pid {os.getpid()}" in in_a_child(lambda: try_it(folder))
    other = held(claim("MIG-1", "beta", folder=folder))
    mine.release()
    other.release()
    assert in_a_child(lambda: try_it(folder)) == "claimed after None"


def test_a_holder_that_vanished_leaves_its_line_behind(folder: Path) -> None:
    assert in_a_child(lambda: try_it(folder, "vanished")) == "claimed after None"
    found = held(claim(UUID, "mine", folder=folder))
    assert found.left_behind
    assert found.left_behind.controller == "vanished"
    holder = holder_of(UUID, folder=folder)
    assert holder
    assert holder.controller == "mine"
    found.release()
    assert holder_of(UUID, folder=folder) is None
    found = held(claim(UUID, "mine", folder=folder))
    assert found.left_behind is None
    found.close()


def test_the_claim_lasts_while_anybody_has_a_copy(folder: Path) -> None:
    """A supervisor's copy, received over a socket, keeps the claim after the agent is gone, and dies with it."""
    ours, theirs = socket.socketpair()
    keep = "import socket; s = socket.socket(fileno=0); fds = socket.recv_fds(s, 1, 1); s.send(b'x'); s.recv(1)"
    keeper = subprocess.Popen([sys.executable, "-I", "-S", "-c", keep], stdin=theirs.fileno())
    mine = held(claim(UUID, "alpha", folder=folder))
    socket.send_fds(ours, [b"x"], [mine.fd])
    assert ours.recv(1) == b"x"
    mine.close()
    assert isinstance(claim(UUID, "beta", folder=folder), Occupied)
    keeper.kill()
    keeper.wait()
    after = held(claim(UUID, "beta", folder=folder))
    assert after.left_behind
    assert after.left_behind.controller == "alpha"
    after.close()
    ours.close()
    theirs.close()


def test_releasing_one_copy_does_not_unlock_the_others(folder: Path) -> None:
    mine = held(claim(UUID, "alpha", folder=folder))
    copy = os.dup(mine.fd)
    mine.release()
    assert isinstance(claim(UUID, "beta", folder=folder), Occupied)
    os.close(copy)
    held(claim(UUID, "beta", folder=folder)).close()


def test_a_claim_is_closed_on_exec(folder: Path) -> None:
    with held(claim(UUID, "alpha", folder=folder)) as mine:
        assert not os.get_inheritable(mine.fd)
        listing = subprocess.run(
            ["/bin/ls", "-l", "/proc/self/fd"], capture_output=True, text=True, check=True, close_fds=False
        ).stdout
        assert UUID not in listing


def test_a_file_removed_while_held_is_noticed_and_its_lock_guards_nothing(folder: Path) -> None:
    mine = held(claim(UUID, "alpha", folder=folder))
    assert mine.intact()
    path_of(UUID, folder).unlink()
    assert not mine.intact()
    second = held(claim(UUID, "beta", folder=folder))
    mine.release()  # of the removed file: the line of the new one stays
    holder = holder_of(UUID, folder=folder)
    assert holder
    assert holder.controller == "beta"
    assert isinstance(claim(UUID, "gamma", folder=folder), Occupied)
    second.close()


def test_a_file_replaced_between_opening_and_locking_is_opened_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = claims._open
    times: list[int] = []

    def replaced(path: Path) -> int:
        fd = real(path)
        if not times:
            path.unlink()
            path.touch()
        times.append(fd)
        return fd

    monkeypatch.setattr(claims, "_open", replaced)
    mine = held(claim(UUID, "alpha", folder=folder))
    assert len(times) == 2
    assert mine.intact()
    monkeypatch.undo()
    assert isinstance(claim(UUID, "beta", folder=folder), Occupied)
    mine.close()


def test_of_many_at_once_exactly_one_wins(folder: Path) -> None:
    for number in range(20):
        uuid = f"GPU-{number}"
        gate_r, gate_w = os.pipe()
        told_r, told_w = os.pipe()
        pids = []
        for _ in range(6):
            pid = os.fork()
            if pid == 0:
                try:
                    os.close(gate_w)
                    os.read(gate_r, 1)  # all at once, when the other end closes
                    found = claim(uuid, "x", folder=folder)
                    os.write(told_w, b"1" if isinstance(found, Claim) else b"0")
                    signal.pause()
                finally:
                    os._exit(0)
            pids.append(pid)
        os.close(gate_r)
        os.close(gate_w)
        told = b""
        while len(told) < 6:
            told += os.read(told_r, 6)
        assert sorted(told) == sorted(b"000001")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(told_r)
        os.close(told_w)


@pytest.mark.root(reason="two users share one claim, whoever made the folder and the file")
def test_users_exclude_one_another(folder: Path) -> None:
    assert in_a_child(lambda: try_it(folder, "nobody's"), uid=65534) == "claimed after None"
    found = held(claim(UUID, "root's", folder=folder))  # their file, in a sticky folder
    assert found.left_behind
    assert found.left_behind.uid == 65534
    assert "(root's, pid" in in_a_child(lambda: try_it(folder), uid=65534)
    found.release()
    held(claim("GPU-made-by-root", "root's", folder=folder)).release()
    theirs = in_a_child(
        lambda: str(isinstance(claim("GPU-made-by-root", "x", folder=folder), Claim)), uid=65534
    )  # our file
    assert theirs == "True"
    holder = holder_of("GPU-made-by-root", folder=folder)
    assert holder
    assert holder.uid == 65534


def test_the_umask_does_not_narrow_a_claim(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    before = os.umask(0o077)
    try:
        folder = claims_dir((tmp_path,))
        held(claim(UUID, "alpha", folder=folder)).close()
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert path_of(UUID, folder).stat().st_mode & 0o777 == 0o666


def test_the_first_folder_that_every_user_may_write_to_is_taken(tmp_path: Path) -> None:
    for name, mode in (("private", 0o755), ("open", 0o777), ("sticky", 0o1777), ("later", 0o1777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    parents = [tmp_path / name for name in ("missing", "private", "open", "sticky", "later")]
    assert claims_dir(parents) == tmp_path / "sticky" / "tenure"
    with pytest.raises(TenureError, match="mode 1777"):
        claims_dir(parents[:3])


@pytest.mark.parametrize(
    "line",
    ["[" * 4096, '{"user":"a","uid":1e999,"controller":"c","pid":1,"since":0}', '{"user":"a","uid":{}}', "\0" * 64],
)
def test_a_line_that_somebody_made_up_is_no_words_and_no_trouble(folder: Path, line: str) -> None:
    path_of(UUID, folder).write_text(line)
    assert holder_of(UUID, folder=folder) is None
    mine = held(claim(UUID, "alpha", folder=folder))
    assert mine.left_behind is None
    mine.close()


def test_a_second_name_of_another_file_is_never_written_to(folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    path_of(UUID, folder).hardlink_to(precious)
    with pytest.raises(TenureError, match="not a regular file"):
        claim(UUID, "alpha", folder=folder)
    assert precious.read_text() == "kept"


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_folder_that_is_none_is_refused_not_passed_over(tmp_path: Path, kind: str) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o1777)
    if kind == "link":
        (tmp_path / "first/tenure").symlink_to(tmp_path / "second")
    else:
        (tmp_path / "first/tenure").touch()
    with pytest.raises(TenureError, match="it is not a folder"):
        claims_dir((tmp_path / "first", tmp_path / "second"))


@pytest.mark.parametrize(("kind", "says"), [("link", "symbolic link"), ("fifo", "not a regular file")])
def test_a_claim_file_that_is_a_trap_is_refused(folder: Path, kind: str, says: str) -> None:
    target = folder.parent / "precious"
    target.write_text("precious")
    if kind == "link":
        path_of(UUID, folder).symlink_to(target)
    else:
        os.mkfifo(path_of(UUID, folder))
    with pytest.raises(TenureError, match=says):
        claim(UUID, "alpha", folder=folder)
    assert target.read_text() == "precious"


@pytest.mark.parametrize("line", ["", "{", "[]", '{"user": 1}', "\0" * 5000, "x" * 100_000])
def test_a_line_that_says_nothing_is_nothing_known(folder: Path, line: str) -> None:
    path_of(UUID, folder).write_text(line)
    path_of(UUID, folder).chmod(0o666)
    assert holder_of(UUID, folder=folder) is None
    mine = held(claim(UUID, "alpha", folder=folder))
    assert mine.left_behind is None
    holder = holder_of(UUID, folder=folder)
    assert holder
    assert holder.controller == "alpha"
    mine.release()


def test_a_uuid_cannot_leave_the_folder(folder: Path) -> None:
    assert path_of("../../etc/passwd", folder).parent == folder
    assert path_of("a/b", folder) != path_of("a%2Fb", folder)
    for bad in ("", "x" * 300):
        with pytest.raises(ValueError, match="not a device UUID"):
            path_of(bad, folder)
