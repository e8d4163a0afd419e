"""Paths, machine ids, network file systems and long socket paths. Mount tables are real texts of real kinds of host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from textwrap import dedent

import pytest

from tenure import mounts, paths
from tenure.errors import TenureError
from tenure.mounts import Mount, NetworkFileSystem, find_mount, mount_of, parse_mountinfo, require_local
from tenure.paths import Layout, bind_unix, connect_unix, machine_id, tenure_home

TABLE = parse_mountinfo(
    dedent(
        r"""
        22 27 0:21 / /proc rw,relatime - proc proc rw
        25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24683656k
        24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw,mode=755
        27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
        40 27 0:50 / /home rw,relatime shared:20 master:3 - nfs4 filer.example:/export/home rw,vers=4.2
        41 40 8:17 / /home/ann/My\040Disk rw - xfs /dev/sdb1 rw
        42 27 8:33 / /a/b rw - ext4 /dev/sdc1 rw
        43 27 0:60 / /a rw - cifs //server/share rw
        44 27 8:49 / /twice rw - ext4 /dev/sdd1 rw
        45 44 0:61 / /twice rw - lustre mgs@tcp:/scratch rw
        46 27 0:62 / /remote rw - fuse.newthing bob@host:/dir rw
        47 27 0:63 / /usb rw - fuseblk /dev/sde1 rw
        48 27 0:64 / /pool rw - fuse.mergerfs disk1:disk2 rw
        49 27 0:65 / /bucket rw - fuse.s3fs s3fs rw
        50 27 0:66 / /wsl rw - 9p C:\134 rw
        51 27 0:67 / /other rw - fuse.newthing newthing rw
        a line that fits nothing
        """
    )
)


@pytest.mark.parametrize(
    ("path", "fs_type", "network"),
    [
        ("/", "ext4", False),
        ("/homes/x", "ext4", False),
        ("/home", "nfs4", True),
        ("/home/ann/.local/share/tenure", "nfs4", True),
        ("/home/ann/My Disk/tenure", "xfs", False),
        ("/a/b/c", "cifs", True),  # /a was mounted over, so /a/b/c lies on the share: not on the longest prefix
        ("/twice/x", "lustre", True),  # the upper one of a stack
        ("/remote/x", "fuse.newthing", True),
        ("/usb/x", "fuseblk", False),
        ("/pool/x", "fuse.mergerfs", False),
        ("/bucket/x", "fuse.s3fs", True),
        ("/wsl/x", "9p", True),
        ("/other/x", "fuse.newthing", False),
        ("/dev/shm/x", "tmpfs", False),
    ],
)
def test_the_mount_of_a_path(path: str, fs_type: str, network: bool) -> None:
    mount = mount_of(path, TABLE)
    assert mount is not None
    assert (mount.fs_type, mount.is_network) == (fs_type, network)


def test_a_table_without_a_root_answers_only_for_what_it_lists() -> None:
    table = parse_mountinfo("60 59 0:70 / /data rw - nfs srv:/x rw\n")
    assert mount_of("/etc", table) is None
    found = mount_of("/data/x", table)
    assert found is not None
    assert found.is_network
    assert mount_of("/data", ()) is None


def test_the_lookup_agrees_with_findmnt() -> None:
    for path in ("/", "/proc/self", "/dev/shm", "/tmp", "/sys/fs/cgroup", "/usr/bin"):
        real = os.path.realpath(path)
        try:
            told = subprocess.run(
                ["findmnt", "--noheadings", "--first-only", "--output", "TARGET,FSTYPE", "--target", real],
                capture_output=True, text=True, check=True, timeout=10,
            )  # fmt: skip
        except FileNotFoundError:
            pytest.skip("findmnt is not installed")
        if real == "/proc/self":
            continue
        mount = find_mount(path)
        assert mount is not None
        assert told.stdout.split() == [mount.mount_point, mount.fs_type]


def test_network_state_is_refused_by_name_and_a_local_path_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = mounts.read_mounts()
    root = mount_of("/", real)
    assert root is not None
    share = Mount(99999, root.id, str(tmp_path / "share"), "nfs4", "filer:/export")
    monkeypatch.setattr(mounts, "read_mounts", lambda: (*real, share))
    (tmp_path / "share").mkdir()
    (tmp_path / "link").symlink_to("share/deep")
    for path in (tmp_path / "share" / "not" / "there", tmp_path / "link" / "x"):
        with pytest.raises(NetworkFileSystem) as caught:
            require_local(path, user="ann")
        text = str(caught.value)
        assert caught.value.code == "network_file_system"
        for word in ("nfs4", str(tmp_path / "share"), "filer:/export", "TENURE_HOME=/var/tmp/tenure-ann"):
            assert word in text
    with pytest.raises(NetworkFileSystem):
        Layout(tmp_path / "share", "0" * 32).create()
    assert list((tmp_path / "share").iterdir()) == []
    # A home on a share with a link to a local disk is right, and so is a path that only passes through.
    (tmp_path / "share" / "scratch").symlink_to(tmp_path / "local")
    for path in (tmp_path / "share" / ".." / "local", tmp_path / "share" / "scratch" / "tenure"):
        assert require_local(path) == mount_of(tmp_path, real)


def test_a_dead_server_is_named_after_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = mounts.read_mounts()
    root = mount_of("/", real)
    assert root is not None
    dead = Mount(99999, root.id, str(tmp_path / "dead"), "nfs", "gone:/x")
    monkeypatch.setattr(mounts, "read_mounts", lambda: (*real, dead))
    answered = threading.Event()
    realpath = os.path.realpath

    def hang(path: str | os.PathLike[str]) -> str:
        if "dead" in os.fspath(path):
            answered.wait(30)
        return realpath(path)

    monkeypatch.setattr(os.path, "realpath", hang)
    monkeypatch.setattr(mounts, "DEADLINE_S", 0.05)
    with pytest.raises(NetworkFileSystem, match="gone:/x"):
        require_local(tmp_path / "dead" / "home")
    answered.set()


@pytest.mark.root(reason="mounts a tmpfs in a namespace: the lookup sees a mount made after the process began")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
def test_a_fresh_mount_is_seen(tmp_path: Path) -> None:
    code = """
        import subprocess, sys
        from tenure.mounts import find_mount, survives_reboot
        before = find_mount(sys.argv[1] + "/x")
        subprocess.run(["mount", "-t", "tmpfs", "none", sys.argv[1]], check=True)
        after = find_mount(sys.argv[1] + "/x")
        assert before.fs_type != "tmpfs" and after.fs_type == "tmpfs", (before, after)
        assert after.mount_point == sys.argv[1]
        assert survives_reboot(sys.argv[1]) is False
    """
    folder = tmp_path / "mnt"
    folder.mkdir()
    subprocess.run(["unshare", "--mount", sys.executable, "-c", dedent(code), str(folder)], check=True, timeout=20)


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    find_mount(tmp_path / "a" / "x")


def test_what_survives_a_reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    table = parse_mountinfo(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / /run rw - tmpfs tmpfs rw\n3 1 0:8 / /c rw - overlay overlay rw\n"
    )
    monkeypatch.setattr(mounts, "read_mounts", lambda: table)
    answers = {path: paths.survives_reboot(path) for path in ("/opt/x", "/run/x", "/c/x", "/tmp/x")}
    assert answers == {"/opt/x": True, "/run/x": False, "/c/x": None, "/tmp/x": None}
    monkeypatch.setattr(mounts, "read_mounts", lambda: ())
    assert paths.survives_reboot("/opt/x") is None


def test_the_home_comes_from_the_environment_and_must_be_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_HOME", str(tmp_path))
    assert tenure_home() == tmp_path
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("TENURE_HOME", "~/t")
    assert tenure_home() == Path("/home/ann/t")
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("TENURE_HOME")
        else:
            monkeypatch.setenv("TENURE_HOME", unset)
        assert tenure_home().is_absolute()
        assert tenure_home().name == "tenure"
    monkeypatch.setenv("TENURE_HOME", "state")
    with pytest.raises(TenureError) as caught:
        tenure_home()
    assert caught.value.code == "invalid_configuration"


def test_every_path_of_the_layout() -> None:
    at = Layout(Path("/h"), "m")
    root = "/h/machines/m"
    named = [name for name in dir(Layout) if isinstance(getattr(Layout, name), property | cached_property)]
    assert {name: str(getattr(at, name)) for name in named} == {
        "config": "/h/config.toml",
        "root": root,
        "controller": f"{root}/controller",
        "ledger_db": f"{root}/controller/ledger.db",
        "controller_lock": f"{root}/controller/controller.lock",
        "controller_log": f"{root}/controller/controller.log",
        "served": f"{root}/controller/served.json",
        "tokens": f"{root}/controller/tokens.json",
        "certificate": f"{root}/controller/certificate.pem",
        "output": f"{root}/controller/output",
        "stages": f"{root}/controller/stages",
        "agent": f"{root}/agent",
        "identity": f"{root}/agent/identity.json",
        "joined": f"{root}/agent/joined.json",
        "journal": f"{root}/agent/journal.log",
        "agent_lock": f"{root}/agent/agent.lock",
        "agent_log": f"{root}/agent/agent.log",
        "attempts": f"{root}/agent/attempts",
        "run": f"{root}/run",
        "ctl_sock": f"{root}/run/ctl.sock",
        "nudge_sock": f"{root}/run/nudge.sock",
        "sim": f"{root}/sim",
        "sim_library": f"{root}/sim/libnvidia-ml.so.1",
        "sim_scenario": f"{root}/sim/scenario",
    }
    assert str(at.attempt("j1", 2)) == f"{root}/agent/attempts/j1.2"
    assert str(at.output_bin("j1", 2)) == f"{root}/controller/output/j1.2.bin"
    assert str(at.output_idx("j1", 2)) == f"{root}/controller/output/j1.2.idx"
    for job in ("../j", "", "a/b", ".", "a.1"):
        with pytest.raises(ValueError, match="not a job"):
            at.attempt(job, 1)


def test_create_makes_folders_for_this_user_alone(tmp_path: Path) -> None:
    at = Layout(tmp_path / "home", "m")
    at.create()
    for folder in (at.controller, at.output, at.agent, at.attempts, at.run):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_the_machine_id_is_the_systems_own_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    etc, dbus = tmp_path / "etc", tmp_path / "dbus"
    monkeypatch.setattr(paths, "_ID_FILES", (etc, dbus))
    dbus.write_text("b" * 32 + "\n")
    assert machine_id(tmp_path / "home") == "b" * 32
    for empty in ("uninitialized\n", "", "0" * 32, "é" * 32):
        etc.write_text(empty)
        assert machine_id(tmp_path / "home") == "b" * 32
    etc.write_text("a" * 32 + "\n")
    assert machine_id(tmp_path / "home") == "a" * 32
    assert not (tmp_path / "home").exists()


def test_a_generated_machine_id_is_one_for_all_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_ID_FILES", (tmp_path / "none",))
    home = tmp_path / "home"
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(machine_id, [home] * 16))
    assert len(ids) == 1
    assert machine_id(home) in ids
    assert [each.name for each in home.iterdir()] == ["machine-id"]
    (home / "machine-id").write_text("")
    with pytest.raises(TenureError) as caught:
        machine_id(home)
    assert caught.value.code == "damaged_state"


@pytest.fixture(params=["short", "long"])
def sock(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "short":
        return tmp_path / "s"
    folder = tmp_path / ("d" * 120) / "run"
    folder.mkdir(parents=True)
    return folder / "ctl.sock"


def test_a_stream_socket_at_any_length(sock: Path) -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with bind_unix(sock) as server:
        assert sock.is_socket()
        assert sock.stat().st_mode & 0o777 == 0o600
        server.listen()
        with connect_unix(sock, timeout=5) as client:
            accepted = server.accept()[0]
            with accepted:
                client.sendall(b"hello")
                assert accepted.recv(10) == b"hello"
        with pytest.raises(OSError, match="another process listens"):
            bind_unix(sock)
    with pytest.raises(ConnectionRefusedError):
        connect_unix(sock)
    bind_unix(sock).close()  # what a dead process left is replaced
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_a_datagram_socket_at_any_length(sock: Path) -> None:
    with bind_unix(sock, socket.SOCK_DGRAM) as server:
        server.settimeout(5)
        with connect_unix(sock, socket.SOCK_DGRAM) as client:
            client.send(b"nudge")
        assert server.recv(100) == b"nudge"
        with pytest.raises(OSError, match="another process listens"):
            bind_unix(sock, socket.SOCK_DGRAM)


def test_bind_replaces_nothing_but_a_dead_socket(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("precious")
    with pytest.raises(OSError, match="not a socket"):
        bind_unix(tmp_path / "f")
    assert (tmp_path / "f").read_text() == "precious"
    with pytest.raises(FileNotFoundError):
        bind_unix(tmp_path / "no" / "s")
    with pytest.raises(FileNotFoundError):
        connect_unix(tmp_path / ("d" * 120) / "s")
    with pytest.raises(OSError, match="too long"):
        connect_unix(tmp_path / ("n" * 120))
