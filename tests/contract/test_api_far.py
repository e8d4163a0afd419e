"""Callers from other hosts: over TLS and with a token that is theirs, or not at all; and what a token does not open."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.controller_world import connected, offered, registration, until
from tests.contract.served_world import (
    ServedWorld,
    far_agent,
    far_link,
    far_registration,
    over_tls,
    refusal_of,
    served,
)
from websockets.exceptions import InvalidStatus

from tenure.agent.reach import Reach
from tenure.controller import peer, schema
from tenure.controller.tokens import Tokens
from tenure.errors import TenureError


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServedWorld]:
    async with served(tmp_path) as world:
        yield world


async def asked(reach: Reach, target: str = "/v1/agent") -> dict[str, object]:
    return await asyncio.to_thread(reach.ask, target)


async def code_of(reach: Reach, target: str = "/v1/agent") -> str:
    with pytest.raises(TenureError) as refused:
        await asked(reach, target)
    assert reach.secret not in str(refused.value), "the secret stands in an error"
    assert reach.secret not in json.dumps(refused.value.to_dict())
    return refused.value.code


# -- who is let in -----------------------------------------------------------------------------------------------------


async def test_a_token_opens_what_an_agent_needs_and_nothing_else(world: ServedWorld) -> None:
    reach = await world.token()
    told = schema.AgentSelf.model_validate(await asked(reach))
    assert (told.host, told.token, told.controller) == ("far", reach.token, "c1")
    for target in ("/v1/status", "/v1/jobs", "/v1/devices", "/v1/tokens", "/v1/events", "/openapi.json"):
        assert await code_of(reach, target) == "not_permitted", target
    for target in ("/v1/jobs", "/v1/shutdown", "/v1/tokens", f"/v1/tokens/{reach.token}/revoke"):
        with pytest.raises(TenureError) as refused:
            await asyncio.to_thread(reach.request, "POST", target, b"{}")
        assert refused.value.code == "not_permitted", target
    assert not world.service.stop.is_set()


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer .", "Basic dDp0", "Bearer {token}", "Bearer {token}.wrong"])
async def test_without_a_whole_token_nobody_is_answered(world: ServedWorld, header: str) -> None:
    reach = await world.token()
    given = f"Authorization: {header.format(token=reach.token)}\r\n" if header else ""
    for target in ("/v1/status", "/v1/agent", "/openapi.json", "/nowhere"):
        request = f"GET {target} HTTP/1.1\r\nHost: {world.address}\r\n{given}\r\n"
        answer = await over_tls(world.address, request.encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 401 "), answer
        assert b"connection: close" in head.lower()
        error = json.loads(body)["error"]
        assert error["code"] == "authentication_refused"
        assert "rc admin token create" in error["do"]


async def test_a_wrong_secret_and_an_unknown_token_are_not_told_apart(world: ServedWorld) -> None:
    reach = await world.token()
    words = set()
    for wrong in (replace(reach, secret="A" * 43), replace(reach, token="t000000000000")):
        with pytest.raises(TenureError) as refused:
            await asked(wrong)
        words.add((refused.value.code, refused.value.message))
    assert words == {("authentication_refused", "this controller does not know that token")}


async def test_a_refused_link_is_told_why_before_there_is_one(world: ServedWorld) -> None:
    reach = await world.token()
    await world.post(f"/v1/tokens/{reach.token}/revoke", {})
    with pytest.raises(InvalidStatus) as refused:
        async with far_link(reach):
            pass
    assert refused.value.response.status_code == 401
    error = json.loads(bytes(refused.value.response.body or b""))["error"]
    assert (error["code"], "was revoked" in error["message"]) == ("authentication_refused", True)


async def test_an_expired_token_is_refused_and_ends_the_link_it_came_with(world: ServedWorld) -> None:
    reach = await world.token(expires_s=4)
    async with far_agent(reach) as agent:
        told = await agent.hears("refused", seconds=10)
        assert "has expired" in told["error"]["message"]
        await until(lambda: agent.closed)
    assert await code_of(reach) == "authentication_refused"


async def test_no_connection_without_tls_is_answered(world: ServedWorld) -> None:
    host, _, port = world.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert b"HTTP" not in answer


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Host: evil.example\r\n", b"403"),
        ("Host: evil.example:7420\r\n", b"403"),
        ("", b"403"),
        ("Host: {at}\r\nOrigin: https://evil.example\r\n", b"403"),
        ("Host: {at}\r\nOrigin: https://{at}\r\n", b"403"),
        ("Host: {at}\r\nOrigin: null\r\n", b"403"),
        ("Host: LOCALHOST\r\n", b"200"),
        ("Host: {at}\r\n", b"200"),
    ],
)
async def test_a_browser_gets_nothing_under_another_name_or_from_a_page(
    world: ServedWorld, headers: str, status: bytes
) -> None:
    reach = await world.token()
    token = f"Authorization: Bearer {reach.token}.{reach.secret}\r\nConnection: close\r\n"
    request = f"GET /v1/agent HTTP/1.1\r\n{headers.format(at=world.address)}{token}\r\n"
    answer = await over_tls(world.address, request.encode())
    assert answer.split()[1] == status, answer


async def test_the_names_of_token_files_are_names_of_the_controller(world: ServedWorld) -> None:
    reach = await world.token(addresses=["gate.example:443"])
    assert reach.addresses == ("gate.example:443",)
    token = f"Authorization: Bearer {reach.token}.{reach.secret}\r\nConnection: close\r\n"
    answer = await over_tls(world.address, f"GET /v1/agent HTTP/1.1\r\nHost: Gate.example:443\r\n{token}\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 200 "), answer


async def test_who_sends_no_end_of_a_head_is_cut_off(world: ServedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "HEAD_S", 0.3)
    began = time.monotonic()
    assert await over_tls(world.address, b"") == b""
    assert await over_tls(world.address, b"GET /v1/status HTTP/1.1\r\nX: ") == b""
    assert time.monotonic() - began < 5
    long = b"GET /v1/status HTTP/1.1\r\n" + b"X-Long: " + b"x" * (peer.HEAD_BYTES + 1)
    assert (await over_tls(world.address, long)).startswith(b"HTTP/1.1 400 ")
    await world.get("/v1/status")


# -- what an agent may say of itself -----------------------------------------------------------------------------------


async def test_a_token_is_one_hosts_and_the_first_agents(world: ServedWorld) -> None:
    reach, other = await world.token(), await world.token("other")
    async with far_agent(reach):
        [agent] = (await world.get("/v1/status"))["agents"]
        assert (agent["host"], agent["user"]) == ("far", f"token:{reach.token}")
    for says, words in (
        (far_registration("a-2"), "is for agent a-far"),
        (far_registration(host="other"), "this agent says it is 'other'"),
        (registration("a-far", offered("other:gpu0"), host="far"), "offers a device 'other:gpu0'"),
    ):
        error = await refusal_of(reach, says)
        assert error["code"] == "authentication_refused"
        assert words in error["message"]
    error = await refusal_of(other, far_registration("a-far", host="other"))
    assert "a-far" in error["message"]
    async with far_agent(reach):  # its own is still let in
        pass


async def test_no_token_speaks_for_the_agent_of_this_machine(world: ServedWorld) -> None:
    reach = await world.token("far")
    async with connected(world, registration("a-h")) as home:
        error = await refusal_of(reach, far_registration("a-h"))
        assert error["code"] == "authentication_refused"
        assert not home.closed, "the link of another agent was taken over"


async def test_a_fresh_token_of_the_same_host_lets_the_same_agent_in(world: ServedWorld) -> None:
    first = await world.token()
    async with far_agent(first):
        pass
    await world.post(f"/v1/tokens/{first.token}/revoke", {})
    async with far_agent(await world.token()):
        assert (await world.device("far:gpu0"))["contact"]


async def test_revoking_cuts_the_link_at_once_and_leaves_the_job(world: ServedWorld) -> None:
    reach = await world.token()
    async with far_agent(reach) as agent:
        job = await world.submit(device="far:gpu0")
        await agent.started(await agent.start_of(job["id"]))
        done = schema.RevokedToken.model_validate(await world.post(f"/v1/tokens/{reach.token}/revoke", {}))
        assert (done.links_ended, done.token.state) == (1, "revoked")
        assert all(link.closed for link in world.service.links.links.values()), "it was cut before the answer came"
        told = await agent.hears("refused")
        assert "was revoked" in told["error"]["message"]
        await until(lambda: agent.closed)
    found = await world.shows("far:gpu0", "unknown")
    assert found["job"] == job["id"]
    assert (await world.job(job["id"]))["state"] == "running"
    async with far_agent(await world.token()) as agent:
        assert (await world.shows("far:gpu0", "busy"))["job"] == job["id"]


async def test_an_agent_fetches_the_trees_of_its_own_jobs_alone(world: ServedWorld) -> None:
    reach, other = await world.token(), await world.token("other")
    tree = "ab" * 32
    world.service.stages.path(tree).write_bytes(b"tree")
    target = f"/v1/stages/{tree}/stream"

    def fetched(way: Reach) -> bytes:
        with way.request("GET", target) as answer:
            return answer.read()

    async with far_agent(reach) as agent, far_agent(other, far_registration("a-other", "other")):
        assert await code_of(reach, target) == "not_permitted"
        job = await world.submit(device="far:gpu0", stage={"hash": tree, "bytes": 4})
        start = await agent.start_of(job["id"])
        assert await asyncio.to_thread(fetched, reach) == b"tree"
        assert await code_of(other, target) == "not_permitted"
        assert await code_of(reach, f"/v1/stages/{tree}") == "not_permitted"
        await agent.ended(start)
        assert await code_of(reach, target) == "not_permitted", "the job is over"


# -- tokens at rest ----------------------------------------------------------------------------------------------------


async def test_a_secret_is_told_once_and_kept_nowhere(world: ServedWorld, capfd: pytest.CaptureFixture[str]) -> None:
    reach = await world.token()
    async with far_agent(reach):
        pass
    listed = await world.get("/v1/tokens")
    assert reach.secret not in json.dumps(listed)
    schema.TokenList.model_validate(listed)
    [token] = listed["tokens"]
    assert (token["host"], token["agent"], token["state"], token["connected"]) == ("far", "a-far", "valid", False)
    await world.service.writer.settled()
    root = world.service.layout.root
    assert world.service.layout.tokens.stat().st_mode & 0o777 == 0o600
    for file in (path for path in root.rglob("*") if path.is_file()):
        assert reach.secret.encode() not in file.read_bytes(), file
    assert reach.secret not in "".join(capfd.readouterr())


def test_tokens_outlive_their_controller_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    tokens = Tokens(path)
    first, secret = tokens.create("far", by="ann", now=100.0, expires_s=50.0, addresses=("h:1",))
    tokens.bind(first.id, "a1")
    second, other = tokens.create("near", by="ann", now=101.0, expires_s=None)
    tokens.revoke(second.id, by="bob", now=102.0)
    again = Tokens(path)
    again.load()
    assert again.all() == tokens.all()
    assert again.authenticate(f"{first.id}.{secret}", 149.9).agent == "a1"
    for bearer, now in ((f"{first.id}.{secret}", 150.0), (f"{second.id}.{other}", 103.0), (f"{first.id}.{other}", 1.0)):
        with pytest.raises(TenureError, match=r"expired|revoked|does not know") as refused:
            again.authenticate(bearer, now)
        assert refused.value.code == "authentication_refused"
    assert again.revoke(second.id, by="eve", now=200.0).revoked_by == "bob", "who ended it first stays on record"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(TenureError) as damaged:
        Tokens(path).load()
    assert damaged.value.code == "damaged_state"


@pytest.mark.parametrize(
    "body",
    [
        {"host": "a b"},
        {"host": ""},
        {"host": "x:y"},
        {"host": "h", "expires_s": 0},
        {"host": "h", "addresses": ["::1:2:x"]},
    ],
)
async def test_a_token_for_nothing_is_refused(world: ServedWorld, body: dict[str, object]) -> None:
    answer = await world.http.post("/v1/tokens", json=body)
    assert answer.status_code == 422, answer.text


# -- the certificate ---------------------------------------------------------------------------------------------------


@pytest.fixture
def impostor(tmp_path: Path) -> Iterator[tuple[str, list[bytes]]]:
    """A server with another certificate: where it is, and every byte that it was told in clear."""
    import ssl
    import threading

    from tenure.controller import certificate, listening

    shown = certificate.load(tmp_path / "other.pem", cert=None, key=None, ca=None, names=["127.0.0.1"])
    shown.context.minimum_version = ssl.TLSVersion.TLSv1_2
    bound = listening.bind("127.0.0.1:0")
    heard: list[bytes] = []

    def answer() -> None:
        while True:
            try:
                raw, _ = bound.accept()
            except OSError:
                return
            raw.settimeout(2)
            try:
                with shown.context.wrap_socket(raw, server_side=True) as link:
                    while data := link.recv(65536):
                        heard.append(data)
            except OSError:
                pass

    threading.Thread(target=answer, daemon=True).start()
    yield listening.shown(bound), heard
    bound.shutdown(socket.SHUT_RDWR)
    bound.close()


async def test_nothing_is_told_to_who_shows_another_certificate(
    world: ServedWorld, impostor: tuple[str, list[bytes]]
) -> None:
    where, heard = impostor
    reach = replace(await world.token(), addresses=(where,))
    with pytest.raises(TenureError) as refused:
        await asked(reach)
    assert refused.value.code == "authentication_refused"
    assert "another one" in refused.value.message
    assert "rc agent --join" in refused.value.do
    with pytest.raises(OSError, match="pinned"):
        async with far_link(reach):
            pass
    own = world.service.served
    assert own is not None
    signed = replace(reach, pin="", ca=own.certificate.path.read_text().partition("-----BEGIN PRIVATE")[0])
    with pytest.raises(TenureError) as unsigned:  # by the authority's word it is no better
        await asked(signed)
    assert unsigned.value.code == "authentication_refused"
    await asyncio.sleep(0.3)
    assert heard == [], "it was told something"
    assert (await asked(replace(signed, addresses=(world.address,))))["host"] == "far", "the right one is let in so too"
