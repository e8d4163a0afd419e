"""Who may talk to the controller: the kernel's word on the peer, asked for by every route and before every route."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.requests import HTTPConnection
from tests.contract.controller_world import World, connected, registration, running

from tenure.controller.app import build_app
from tenure.controller.auth import Allow, authenticated
from tenure.errors import TenureError

NOBODY = 65534


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tn") as folder:
        yield Path(folder)


@pytest.fixture
async def world(home: Path) -> AsyncIterator[World]:
    async with running(home) as world:
        yield world


def _roles(dependant: Dependant) -> list[frozenset[str]]:
    """The roles that a route answers, once for each time that it asks who calls."""
    own = [each.call.roles for each in dependant.dependencies if isinstance(each.call, Allow)]
    return own + [roles for each in dependant.dependencies for roles in _roles(each)]


async def test_every_route_asks_who_calls(world: World) -> None:
    app = build_app(world.service)
    seen: dict[tuple[str, str], frozenset[str]] = {}
    for route in app.routes:
        assert isinstance(route, APIRoute | APIWebSocketRoute), f"{route} cannot ask for its caller"
        asked = _roles(route.dependant)
        assert asked, f"{route.path} lets anybody in"
        for method in route.methods or () if isinstance(route, APIRoute) else ("websocket",):
            seen[(method.lower(), route.path)] = frozenset.intersection(*asked)
    assert {path for _, path in seen} >= {"/v1/agent", "/v1/jobs", "/v1/events", "/openapi.json"}
    # Whoever may act may; what is meant for others stands here, and nowhere is more allowed than here.
    assert {route: roles for route, roles in seen.items() if roles != {"user", "admin"}} == WHO_ELSE


READERS, AGENTS, ADMINS = (frozenset({*more, "admin"}) for more in (("viewer", "user"), ("agent",), ()))
_SEEN = (
    "leftovers/{agent}",
    "scratch",
    "status",
    "devices",
    "devices/{name}",
    "jobs",
    "jobs/{job_id}",
    "jobs/{job_id}/follow",
    "jobs/{job_id}/output",
    "events",
)
WHO_ELSE = {
    **{("get", f"/v1/{what}"): READERS for what in _SEEN},
    ("get", "/openapi.json"): READERS,
    ("post", "/v1/explain"): READERS,
    ("get", "/v1/stages/{tree}/stream"): frozenset({"user", "agent", "admin"}),  # an agent: of its own jobs
    ("post", "/v1/scratch/clean"): ADMINS,
    ("post", "/v1/shutdown"): ADMINS,
    ("post", "/v1/devices/{name}/operate"): ADMINS,
    ("get", "/v1/agent"): AGENTS,
    ("websocket", "/v1/agent"): AGENTS,
    ("post", "/v1/tokens"): ADMINS,
    ("get", "/v1/tokens"): ADMINS,
    ("post", "/v1/tokens/{token_id}/revoke"): ADMINS,
}


async def test_a_route_refuses_even_where_the_guard_is_missing(world: World) -> None:
    bare = httpx.AsyncClient(transport=httpx.ASGITransport(build_app(world.service), client=("uid:4242", 1)))
    async with bare:
        answer = await bare.get("http://tenure/v1/status")
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "authentication_refused"


@pytest.mark.parametrize("client", [None, ("127.0.0.1", 80), ("uid:4242", 1), ("uid:", 1), ("uid:-1", 1)])
def test_only_an_established_identity_is_let_in(client: tuple[str, int] | None) -> None:
    with pytest.raises(TenureError) as refused:
        authenticated(HTTPConnection({"type": "http", "client": client, "headers": []}))
    assert refused.value.code == "authentication_refused"


def test_the_owner_and_root_are_let_in() -> None:
    for uid in {os.geteuid(), 0}:
        found = authenticated(HTTPConnection({"type": "http", "client": (f"uid:{uid}", 7), "headers": []}))
        assert (found.uid, found.pid) == (uid, 7)


CLIENT = """
import json, os, socket, sys
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
out = []
for request in {requests!r}:
    s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect({path!r})
    s.sendall(request.encode())
    data = b""
    while piece := s.recv(65536): data += piece
    head, _, body = data.partition(b"\\r\\n\\r\\n")
    out.append([int(head.split()[1]), body.decode("utf-8", "replace")])
print(json.dumps(out))
"""


def _as_user(uid: int, path: str, requests: list[str]) -> list[tuple[int, str]]:
    code = CLIENT.format(uid=uid, requests=requests, path=path)
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [(status, body) for status, body in json.loads(done.stdout)]


def _open_up(path: Path, home: Path) -> None:
    """Makes the socket reachable for everybody, so that the second wall is the one tested."""
    assert path.stat().st_mode & 0o777 == 0o600, "nobody else can even connect"
    for folder in [path.parent, *path.parent.parents]:
        if folder.is_relative_to(home):
            folder.chmod(0o755)
    path.chmod(0o666)


@pytest.mark.root(reason="another user's process is refused by the kernel's word on it, and root is not")
async def test_another_user_is_refused_everywhere(world: World, home: Path) -> None:
    _open_up(Path(world.path), home)
    close = "Connection: close\r\nHost: x\r\n"
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nHost: x\r\n"
    requests = [
        f"GET /v1/status HTTP/1.1\r\n{close}\r\n",
        f"GET /openapi.json HTTP/1.1\r\n{close}\r\n",
        f"GET /nowhere HTTP/1.1\r\n{close}\r\n",
        f"POST /v1/jobs HTTP/1.1\r\n{close}Content-Length: 999999\r\n\r\n",  # refused before its body is waited for
        f"GET /v1/events?after=0 HTTP/1.1\r\n{close}\r\n",
        f"GET /v1/agent HTTP/1.1\r\n{upgrade}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    ]
    refused = await asyncio.to_thread(_as_user, NOBODY, world.path, requests)
    assert [status for status, _ in refused] == [401] * 6
    for _, body in refused:
        error = json.loads(body)["error"]
        assert error["code"] == "authentication_refused"
        assert "rc up" in error["do"]
    [(status, body)] = await asyncio.to_thread(_as_user, 0, world.path, requests[:1])
    assert status == 200
    assert json.loads(body)["user"] == world.service.user


async def test_names_given_in_a_request_are_not_believed(world: World) -> None:
    async with connected(world, registration(user="somebody-else")):
        [agent] = (await world.get("/v1/status"))["agents"]
    assert agent["user"] == getpass.getuser()
    job = (await world.http.post("/v1/jobs", json={"argv": ["x"]}, headers={"x-user": "eve"})).json()["job"]
    assert job["owner"] == getpass.getuser()


async def test_no_header_and_no_setting_replaces_the_kernels_word(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    async with running(home) as world:
        headers = {"x-forwarded-for": "uid:4242", "x-forwarded-proto": "https", "forwarded": "for=uid:4242"}
        await world.get("/v1/status", headers=headers)  # believed, it would be another user's and refused


async def test_the_peer_is_the_process_that_connected(world: World) -> None:
    async with connected(world):
        assert world.service.links.links["a-h"].pid == os.getpid()
    plain = socket.socket(socket.AF_UNIX)
    plain.connect(world.path)
    plain.close()  # one that connects and says nothing harms nobody
    await world.get("/v1/status")
