"""Every refusal has one shape, whatever was wrong with the request and whoever noticed it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from tests.contract.controller_world import World, connected, running

from tenure.controller.app import build_app, server_for
from tenure.controller.guard import MAX_BODY, Guard
from tenure.errors import CODES
from tenure.paths import bind_unix

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with running(tmp_path_factory.mktemp("home")) as world:
        yield world


def _error(body: Any) -> dict[str, Any]:
    assert set(body) == {"error"}, body
    error: dict[str, Any] = body["error"]
    assert set(error) == {"code", "message", "do", "facts"}
    assert error["code"] in CODES
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "names"),
    [
        ("GET", "/nowhere", None, 404, "/nowhere"),
        ("GET", "/v1/jobs/j0nothere", None, 404, "j0nothere"),
        ("GET", "/v1/devices/h:gpu9", None, 404, "h:gpu9"),
        ("DELETE", "/v1/jobs", None, 405, "DELETE"),
        ("PUT", "/v1/status", None, 405, "PUT"),
        ("POST", "/v1/jobs", b"", 422, "application/json"),
        ("POST", "/v1/jobs", b"{", 422, "no JSON"),
        ("POST", "/v1/jobs", b"[" * 100_000, 400, ""),
        ("POST", "/v1/jobs", b'{"argv": ["\xff"]}', 400, ""),
        ("POST", "/v1/jobs", b"[1]", 422, ""),
        ("POST", "/v1/jobs", {"argv": ["x"], "prioritty": 1}, 422, "prioritty"),
        ("POST", "/v1/jobs", {}, 422, "argv"),
        ("POST", "/v1/jobs", {"argv": []}, 422, "argv"),
        ("POST", "/v1/jobs", {"argv": [""]}, 422, "argv"),
        ("POST", "/v1/jobs", {"argv": ["a\0b"]}, 422, "argv"),
        ("POST", "/v1/jobs", {"argv": ["x"], "cwd": "here"}, 422, "cwd"),
        ("POST", "/v1/jobs", {"argv": ["x"], "env": {"A=B": "1"}}, 422, "A=B"),
        ("POST", "/v1/jobs", {"argv": ["x"], "priority": 11}, 422, "priority"),
        ("POST", "/v1/jobs", {"argv": ["x"], "window": {"spam": 1}}, 422, "spam"),
        ("POST", "/v1/jobs", b'{"argv": ["x"], "grace_s": NaN}', 422, "grace_s"),
        ("POST", "/v1/jobs", b'{"argv": ["x"], "key": "\\ud800"}', 422, "key"),
        ("POST", "/v1/jobs", {"argv": ["x"], "select": "vram>>1"}, 422, "vram"),
        ("POST", "/v1/jobs/j0/stop", {"why": "x"}, 422, "why"),
        ("POST", "/v1/explain", {"selekt": ""}, 422, "selekt"),
        ("POST", "/v1/shutdown", {"force": True}, 422, "force"),
        ("GET", "/v1/jobs?limit=0", None, 422, "limit"),
        ("GET", "/v1/jobs?state=gone", None, 422, "state"),
        ("GET", "/v1/jobs?before=nan", None, 422, "before"),
        ("GET", "/v1/jobs/j0/output?offset=-1", None, 422, "offset"),
        ("GET", "/v1/jobs/j0/output?stream=stdin", None, 422, "stream"),
        ("GET", f"/v1/events?after={1 << 64}", None, 422, "after"),
        ("GET", "/v1/events?after=99999", None, 409, "99999"),
    ],
)
async def test_what_is_wrong_is_named(
    world: World, method: str, target: str, body: Any, status: int, names: str
) -> None:
    content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} if content else {}
    answer = await world.http.request(method, target, content=content, headers=headers)
    assert answer.status_code == status, answer.text
    error = _error(answer.json())
    assert names in error["message"] + json.dumps(error["facts"])


async def test_what_may_be_asked_instead_is_told(world: World) -> None:
    answer = await world.http.delete("/v1/jobs")
    assert "GET" in answer.headers["allow"] or "POST" in answer.headers["allow"]


async def test_a_defect_is_told_without_its_insides(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("the secret inside")

    async with connected(world):
        monkeypatch.setattr(world.service.shown, "text", broken)
        answer = await world.http.get("/v1/devices")
    assert answer.status_code == 500
    error = _error(answer.json())
    assert error["code"] == "internal"
    assert "secret" not in answer.text
    monkeypatch.undo()
    assert (await world.get("/v1/devices"))["devices"]


async def _raw(world: World, *pieces: bytes, pause: float = 0.0) -> bytes:
    reader, writer = await asyncio.open_unix_connection(world.path)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        async with asyncio.timeout(20):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            return head + await reader.readexactly(length)
    finally:
        writer.close()


async def test_what_is_no_http_is_answered_in_the_same_shape(world: World) -> None:
    answer = await _raw(world, b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    _error(json.loads(answer.partition(b"\r\n\r\n")[2]))


async def test_a_body_beyond_the_limit_is_refused_before_it_is_read(world: World) -> None:
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY + 1}\r\n\r\n"
    answer = await _raw(world, head.encode())
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert str(MAX_BODY) in _error(json.loads(answer.partition(b"\r\n\r\n")[2]))["message"]


async def test_a_body_of_unsaid_length_is_held_to_the_limit_too(world: World) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    piece = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    answer = await _raw(world, head, *[piece] * (MAX_BODY // (1 << 20) + 1))
    assert answer.startswith(b"HTTP/1.1 413 ")


@asynccontextmanager
async def _behind_a_guard(world: World, body_s: float) -> AsyncIterator[str]:
    """The same application on a second socket, behind a guard that waits less."""
    path = world.service.layout.run / "slow.sock"
    listening = bind_unix(path)
    listening.listen(8)
    server = server_for(Guard(build_app(world.service), body_s=body_s))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield str(path)
    finally:
        server.leave()
        await task
        listening.close()


async def test_a_slow_body_is_given_up(world: World) -> None:
    async with _behind_a_guard(world, 0.2) as path:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b'POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"argv"')
        async with asyncio.timeout(10):
            answer = await reader.read()  # up to the end: the connection is closed, its rest is no request
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert _error(json.loads(answer.partition(b"\r\n\r\n")[2]))["facts"]["received_bytes"] == 7
