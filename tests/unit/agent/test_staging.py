"""One tree fetched over a real socket and unpacked on a real disk, from a controller that sends what it likes."""

from __future__ import annotations

import hashlib
import io
import socket
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

import pytest

from tenure.agent import staging
from tenure.agent.reach import Reach
from tenure.agent.staging import Cancelled, Refused, Staging, Unanswered
from tenure.domain.tree import MAGIC, TreeError, TreeWriter, read_tree


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


class Sender:
    """Answers on a socket with ``stream``; stops after ``stop_after`` bytes: ``cut`` (the connection) or ``hang``."""

    def __init__(self, path: Path) -> None:
        self.stream, self.status, self.stop_after, self.how = b"", 200, -1, "cut"
        self.asked: list[str] = []
        self.quit = threading.Event()
        sender = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                sender.asked.append(self.path)
                self.send_response(sender.status)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                whole = sender.stream if sender.stop_after < 0 else sender.stream[: sender.stop_after]
                for start in range(0, len(whole), 1000):
                    piece = whole[start : start + 1000]
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                if sender.stop_after < 0:
                    self.wfile.write(b"0\r\n\r\n")
                elif sender.how == "hang":
                    self.wfile.flush()
                    sender.quit.wait(30)
                else:
                    self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

            def log_message(self, *words: object) -> None: ...

            def address_string(self) -> str:
                return "local"

        self.server = _Server(str(path), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.quit.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Sender]:
    made = Sender(tmp_path / "s.sock")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def tree() -> tuple[bytes, str]:
    out = io.BytesIO()
    writer = TreeWriter(out.write)
    writer.begin(b"a/run", executable=True)
    writer.data(b"x" * 100_000)
    writer.finish()
    writer.link(b"b", b"a/run")
    digest = writer.close()
    return out.getvalue(), digest


def test_it_gets_its_name_only_when_all_of_it_is_there(sender: Sender, place: Path, tmp_path: Path) -> None:
    sender.stream, digest = tree()
    sender.stop_after = len(sender.stream) - 1
    job = Staging(Reach(path=tmp_path / "s.sock"), digest, place)
    with pytest.raises(Unanswered):
        job.run(0o022)
    assert list(place.iterdir()) == []
    (place / ".tree.partial/left/over").mkdir(parents=True)  # of an agent that died
    sender.stop_after = -1
    job.run(0o027)
    assert (place / "tree/a/run").stat().st_mode & 0o777 == 0o750
    assert (place / "tree/b").readlink() == Path("a/run")
    assert [path.name for path in place.iterdir()] == ["tree"]
    asked = len(sender.asked)
    job.run(0o027)  # a later agent, asked to do it once more
    assert len(sender.asked) == asked


def test_a_stop_ends_it_at_once_although_no_byte_comes(sender: Sender, place: Path, tmp_path: Path) -> None:
    sender.stream, digest = tree()
    sender.stop_after, sender.how = 50_000, "hang"
    job = Staging(Reach(path=tmp_path / "s.sock"), digest, place)
    ended: list[object] = []

    def run() -> None:
        try:
            job.run(0o022)
        except Cancelled as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.5)
    assert thread.is_alive()
    began = time.monotonic()
    job.cancel()
    thread.join(10)
    assert len(ended) == 1
    assert time.monotonic() - began < 2
    assert list(place.iterdir()) == []


def test_a_sender_that_falls_silent_is_given_up(
    sender: Sender, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_QUIET_S", 0.3)
    sender.stream, digest = tree()
    sender.stop_after, sender.how = 50_000, "hang"
    with pytest.raises(Unanswered, match="broke"):
        Staging(Reach(path=tmp_path / "s.sock"), digest, place).run(0o022)
    assert list(place.iterdir()) == []


def test_what_the_controller_refuses_is_said_in_its_words(sender: Sender, place: Path, tmp_path: Path) -> None:
    sender.status, sender.stream = 500, b'{"error": {"message": "the tree is not here (any more)"}}'
    with pytest.raises(Refused, match="not here"):
        Staging(Reach(path=tmp_path / "s.sock"), "0" * 64, place).run(0o022)


def _file(name: bytes, content: bytes = b"x") -> bytes:
    piece = struct.pack("<I", len(content)) + content
    return b"f" + struct.pack("<I", len(name)) + name + piece + bytes(4) + hashlib.sha256(content).digest()


def _link(name: bytes, target: bytes) -> bytes:
    return b"l" + struct.pack("<I", len(name)) + name + struct.pack("<I", len(target)) + target


@pytest.mark.parametrize(
    ("entries", "name"),
    [
        (_file(b"../escaped"), "'../escaped'"),
        (_file(b"/tmp/escaped-from-a-tree"), "'/tmp/escaped-from-a-tree'"),
        (_file(b"n" * 300), "300 bytes"),
        (_link(b"a", b"../../outside") + _file(b"a/escaped"), "'a/escaped'"),
        (b"b" + struct.pack("<I", 3) + b"sda", "b'b'"),
        (b"c" + struct.pack("<I", 4) + b"null", "b'c'"),
    ],
)
def test_hostile_trees_are_refused_by_name_and_contained(
    sender: Sender, place: Path, tmp_path: Path, entries: bytes, name: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    sender.stream = MAGIC + entries
    with pytest.raises(TreeError) as refused:
        Staging(Reach(path=tmp_path / "s.sock"), "0" * 64, place).run(0o022)
    assert name in str(refused.value)
    assert list(place.iterdir()) == []
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "escaped").exists()
    assert not Path("/tmp/escaped-from-a-tree").exists()


def test_another_tree_than_the_one_asked_for_is_refused(sender: Sender, place: Path, tmp_path: Path) -> None:
    sender.stream, digest = tree()
    with pytest.raises(TreeError, match=digest):
        Staging(Reach(path=tmp_path / "s.sock"), "0" * 64, place).run(0o022)
    assert list(place.iterdir()) == []


def test_a_file_changed_on_disk_before_the_check_is_named(
    sender: Sender, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender.stream, digest = tree()

    def and_then_lose_the_bit(*args: object) -> str:
        found = read_tree(*args)  # type: ignore[arg-type]
        (place / ".tree.partial/a/run").chmod(0o644)
        return found

    monkeypatch.setattr(staging, "read_tree", and_then_lose_the_bit)
    with pytest.raises(TreeError, match="'a/run' lost its exec bit"):
        Staging(Reach(path=tmp_path / "s.sock"), digest, place).run(0o022)
    assert list(place.iterdir()) == []
