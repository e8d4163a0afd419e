"""The way from the command line to a controller that breaks off, repeats itself, skips, or is none.

The controller here is a script: what it answers to each connection, byte by byte, over a real Unix socket.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import TenureError
from tenure.paths import bind_unix, layout
from tenure.sdk import Client
from tenure.sdk.following import Following
from tenure.sdk.transport import Transport, Unanswered

Answer = Callable[[socket.socket, bytes], None]
RC = str(Path(sys.executable).with_name("rc"))
DATA = bytes(range(256)) * 3


class Script:
    """Answers one request per connection, in order; the last answer serves all further ones."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.requests: list[bytes] = []
        self.answers: list[Answer] = []
        paths = layout(home)
        paths.create()
        self.path = str(paths.ctl_sock)
        self._listening = bind_unix(self.path)
        self._listening.listen(16)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(10)
                try:
                    request = _request(connection)
                    if not request:
                        continue
                    self.requests.append(request)
                    answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                    answer(connection, request)
                except OSError:
                    continue  # the client went first, as some of these tests want

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)

    def targets(self) -> list[str]:
        return [request.split(b" ", 2)[1].decode() for request in self.requests]


def _request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(
        next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")).split(b":")[1]
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def job(state: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "jabc",
        "label": "",
        "owner": "ann",
        "state": state,
        "words": state,
        "argv": ["x"],
        "devices": ["h:gpu0"],
        "simulated": ["h:gpu0"],
        "reason": None,
        "position": None,
        "started_at": 1.0,
        "ended_at": 2.0 if state == "ended" else None,
        "outcome": {"stats": {}},
        "exit_status": 7 if state == "ended" else None,
        "use": None,
        "key": "k",
        **more,
    }


RUNNING = {"type": "job", "job": job("running")}
ENDED = {"type": "ended", "job": job("ended")}


def output(offset: int, data: bytes, stream: str = "stdout") -> dict[str, Any]:
    return {"type": "output", "offset": offset, "stream": stream, "data": base64.b64encode(data).decode()}


def chunked(events: list[dict[str, Any]], *, chunk: int = 0, whole: bool = True, status: int = 200) -> bytes:
    body = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    step = chunk or max(len(body), 1)
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    head = b"HTTP/1.1 %d OK\r\ncontent-type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n" % status
    return head + framed + (b"0\r\n\r\n" if whole else b"")


def plain(body: object, status: int = 200) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%b" % (status, len(data), data)


def say(data: bytes, step: int = 0) -> Answer:
    def answer(connection: socket.socket, request: bytes) -> None:
        for at in range(0, len(data), step or len(data) or 1):
            connection.sendall(data[at : at + (step or len(data))])

    return answer


def rc(script: Script, *words: str) -> subprocess.CompletedProcess[bytes]:
    environ = {**os.environ, "TENURE_HOME": str(script.home)}
    return subprocess.run([RC, *words], env=environ, capture_output=True, timeout=20, check=False)


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    made = Script(tmp_path)
    yield made
    made.close()


def received(following: Following) -> bytes:
    return b"".join(event["data"] for event in following if event["type"] == "output")


@pytest.mark.parametrize("chunk", [1, 2, 7, 0])
@pytest.mark.parametrize("step", [1, 3, 0])
def test_a_stream_is_read_however_it_is_cut(script: Script, chunk: int, step: int) -> None:
    events = [RUNNING, output(0, DATA), {"type": "beat"}, ENDED]
    script.answers = [say(chunked(events, chunk=chunk), step)]
    following = Following(Transport(script.path), job="jabc")
    assert received(following) == DATA
    assert following.record == ENDED["job"]
    assert len(script.requests) == 1


def test_after_a_break_it_goes_on_at_the_byte_it_has(script: Script) -> None:
    whole = chunked([RUNNING, output(0, DATA[:100]), output(100, DATA[100:200])], whole=False)
    troubles: list[tuple[bool, str | None]] = []
    script.answers = [
        say(whole[:-40]),  # cut inside a line: its bytes are not there yet
        say(chunked([RUNNING, output(100, DATA[100:300])], whole=False)),
        say(b""),
        say(chunked([RUNNING, output(250, DATA[250:])])),  # begins before what is there, ends without an end
        say(chunked([output(len(DATA), b""), ENDED])),
    ]
    following = Following(
        Transport(script.path), job="jabc", trouble=lambda words, job: troubles.append((words is None, job))
    )
    assert received(following) == DATA
    offsets = [target.rpartition("=")[2] for target in script.targets()]
    assert offsets == ["0", "100", "300", "300", str(len(DATA))]
    assert troubles == [(False, "jabc"), (True, "jabc")] * 3


def test_a_skip_is_no_output(script: Script) -> None:
    script.answers = [
        say(chunked([RUNNING, output(0, DATA[:10]), output(20, DATA[20:])])),
        say(chunked([output(10, DATA[10:]), ENDED])),
    ]
    assert received(Following(Transport(script.path), job="jabc")) == DATA
    assert script.targets()[1].endswith("offset=10")


def test_a_submission_that_broke_is_sent_again_as_it_was(script: Script) -> None:
    script.answers = [say(b""), say(b"HTTP/1.1 201 Cre"), say(chunked([RUNNING, output(0, DATA), ENDED], status=201))]
    revived: list[int] = []
    body = {"argv": ["x"], "key": "the-key"}
    following = Following(Transport(script.path), body=body, revive=lambda: revived.append(1))
    assert received(following) == DATA
    assert len(set(script.requests)) == 1
    assert len(script.requests) == 3
    assert json.loads(script.requests[0].partition(b"\r\n\r\n")[2]) == body
    assert len(revived) == 2


def test_patience_is_bounded(script: Script) -> None:
    script.answers = [say(chunked([RUNNING], whole=False)), say(b"")]
    with pytest.raises(TenureError) as raised:
        received(Following(Transport(script.path), job="jabc", patience_s=0.5))
    assert raised.value.code == "controller_unreachable"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-nothing\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"x" * 100_000,
    ],
)
def test_what_is_no_answer_is_nobody(script: Script, answer: bytes) -> None:
    script.answers = [say(answer or b"\x00")] if answer else [lambda connection, request: None]
    done = rc(script, "devices")
    assert done.returncode == 69, done
    assert b"Traceback" not in done.stderr
    assert b"rc up" in done.stderr
    with pytest.raises(Unanswered):
        list(Transport(script.path).lines("GET", "/v1/jobs/jabc/follow"))


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (401, {"code": "authentication_refused", "message": "you are bob", "do": "run your own"}, 77),
        (409, {"code": "busy", "message": "taken\nby ann\x1b[0m", "do": "wait"}, 75),
        (500, {"code": "made up", "message": "m"}, 70),
        (502, None, 70),
    ],
)
def test_errors_keep_their_code_to_the_shell(script: Script, status: int, error: object, code: int) -> None:
    script.answers = [say(plain({"error": error} if error else ["no", "error"], status))]
    for words in (["devices"], ["run", "--", "true"]):
        done = rc(script, *words)
        assert done.returncode == code, done
        assert b"\x1b" not in done.stderr


def test_a_kept_connection_that_was_closed_is_made_anew(script: Script) -> None:
    script.answers = [say(plain({"devices": []}))]
    with Client(script.path) as client:
        assert client.devices() == []
        assert client.devices() == []
    assert len(script.requests) == 2


def test_a_controller_that_goes_again_while_it_comes_up_is_one_more_break(script: Script) -> None:
    script.answers = [
        say(chunked([RUNNING, output(0, DATA[:10])], whole=False)),
        say(chunked([output(10, DATA[10:]), ENDED])),
    ]
    revived: list[int] = []

    def revive() -> None:
        revived.append(len(script.requests))
        raise TenureError("controller_unreachable", "it is gone again")

    events = list(Following(Transport(script.path), job="jabc", revive=revive))
    assert b"".join(event["data"] for event in events if event["type"] == "output") == DATA
    assert revived == [1]


def test_a_gap_is_handed_out_once_however_often_the_stream_begins_again(script: Script) -> None:
    gap = {"type": "gap", "offset": 10, "stream": "stdout", "bytes": 9, "cause": "disk", "why": "full"}
    script.answers = [
        say(chunked([RUNNING, output(0, DATA[:10]), gap], whole=False)),
        say(chunked([gap, output(10, DATA[10:20])], whole=False)),
        say(chunked([output(20, DATA[20:]), {**gap, "offset": len(DATA)}, ENDED])),
    ]
    events = list(Following(Transport(script.path), job="jabc"))
    assert [event["offset"] for event in events if event["type"] == "gap"] == [10, len(DATA)]


def test_a_time_is_asked_for_until_its_place_is_known(script: Script) -> None:
    script.answers = [
        say(chunked([RUNNING], whole=False)),
        say(chunked([output(100, DATA[100:110])], whole=False)),
        say(chunked([output(110, DATA[110:]), ENDED])),
    ]
    following = Following(Transport(script.path), job="jabc", since=5.5)
    assert b"".join(event["data"] for event in following if event["type"] == "output") == DATA[100:]
    asked = [target.partition("?")[2] for target in script.targets()]
    assert asked == ["offset=0&since=5.5", "offset=0&since=5.5", "offset=110"]


def test_the_typed_client_takes_more_and_less_than_it_knows(script: Script) -> None:
    script.answers = [say(plain({**job("ended"), "newer": 1, "outcome": {"ending": "exited", "code": 7, "newer": 2}}))]
    found = Client(script.path).job("jabc")
    assert found.ended
    assert found.outcome is not None
    assert (found.outcome.code, found.exit_status, found.verdict) == (7, 7, None)
    assert found.raw["newer"] == 1


def test_a_whole_run_stays_light(script: Script) -> None:
    counted = {"stats": {"stdout_bytes": 4, "stderr_bytes": 4}}
    over = {"type": "ended", "job": job("ended", outcome=counted, output_bytes=8), "held": 8}
    script.answers = [say(chunked([RUNNING, output(0, b"out\n"), output(4, b"err\n", "stderr"), over]))]
    code = (
        "import sys; from tenure.cli.main import main; code = main(['run', '-q', '--', 'x']); "
        "heavy = {'tenure.sdk.account', 'typing', "
        " 'dataclasses', 'pathlib', 'argparse', 'subprocess', 'asyncio', 'tenure.paths', 'typer'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TENURE_HOME": str(script.home)},
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")


def test_a_reader_that_goes_ends_the_command_and_not_the_job(script: Script) -> None:
    big = [output(at * 1000, b"y" * 1000) for at in range(500)]
    script.answers = [say(chunked([RUNNING, *big, ENDED]))]
    run = subprocess.Popen(
        [RC, "run", "--", "x"],
        env={**os.environ, "TENURE_HOME": str(script.home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert run.stdout is not None
    assert run.stderr is not None
    assert run.stdout.read(10) == b"y" * 10
    run.stdout.close()
    said = run.stderr.read()
    assert run.wait(20) == 141
    assert b"rc attach jabc --offset" in said
    assert not [target for target in script.targets() if "stop" in target]


def test_a_gap_is_told(script: Script) -> None:
    gap = {"type": "gap", "offset": 5, "bytes": 9, "why": "lost"}
    script.answers = [say(chunked([RUNNING, output(0, b"12345"), gap, ENDED]))]
    done = rc(script, "attach", "jabc")
    assert (done.returncode, done.stdout) == (7, b"12345")
    assert b"9 bytes of output are missing here, at byte 5: lost" in done.stderr
