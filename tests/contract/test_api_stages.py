"""Staged trees over the API: sent in pieces, taken in only as what they are, and jobs that need them."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.controller_world import World, connected, offered, registration, running

from tenure.controller import schema
from tenure.controller.app import Timing
from tenure.domain.tree import TreeWriter


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running(tmp_path, Timing(30.0, 30.0, 0.05)) as world:
        yield world


def tree_of(content: bytes = b"x") -> tuple[bytes, str]:
    out = io.BytesIO()
    tree = TreeWriter(out.write)
    tree.begin(b"file", executable=False)
    tree.data(content)
    tree.finish()
    digest = tree.close()
    return out.getvalue(), digest


async def put(world: World, upload: str, offset: int, data: bytes, status: int = 200) -> Any:
    answer = await world.http.put(f"/v1/uploads/{upload}", params={"offset": offset}, content=data)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_a_tree_is_sent_in_pieces_and_fetched_as_it_was(world: World) -> None:
    stream, digest = tree_of(b"y" * 3_000_000)
    asked = schema.StageView.model_validate(await world.get(f"/v1/stages/{digest}"))
    assert asked.bytes is None
    half = len(stream) // 2
    await put(world, "upload01", 0, stream[:half])
    told = schema.UploadView.model_validate(await world.get("/v1/uploads/upload01"))
    assert told.received == half
    assert (await put(world, "upload01", half - 5, b"overlapping"))["received"] == half
    assert (await put(world, "upload01", half + 5, b"a gap"))["received"] == half
    assert (await put(world, "upload01", half, stream[half:]))["received"] == len(stream)
    done = await world.post("/v1/uploads/upload01/finish", {"hash": digest})
    assert schema.StageView.model_validate(done).bytes == len(stream)
    assert await world.post("/v1/uploads/upload01/finish", {"hash": digest}) == done
    answer = await world.http.get(f"/v1/stages/{digest}/stream")
    assert answer.content == stream
    assert await world.get("/v1/uploads/upload01") == {"upload": "upload01", "received": 0}


async def test_what_is_no_tree_or_another_is_not_taken_in(world: World) -> None:
    stream, digest = tree_of()
    for number, (data, words) in enumerate(
        [
            (b"nonsense that is long enough", "does not begin as a tree does"),
            (stream[:-1], "ends in the middle"),
            (tree_of(b"z")[0], f"not {digest}"),
            (stream.replace(b"file", b"../f"), "has the part '..'"),
        ]
    ):
        await put(world, f"upload{number:02}", 0, data)
        error = (await world.post(f"/v1/uploads/upload{number:02}/finish", {"hash": digest}, 500))["error"]
        assert error["code"] == "stage_failed"
        assert words in error["message"]
    assert list(world.service.layout.stages.iterdir()) == []
    error = (await world.post("/v1/uploads/upload99/finish", {"hash": digest}, 500))["error"]
    assert "nothing of the upload" in error["message"]


@pytest.mark.parametrize("name", ["short", "UPPERCASE1", "..%2F..%2Fx", "a" * 65])
async def test_names_of_uploads_and_trees_lead_nowhere(world: World, name: str) -> None:
    answer = await world.http.put(f"/v1/uploads/{name}", content=b"x")
    assert answer.status_code in (404, 422)
    assert (await world.http.get(f"/v1/stages/{name}")).status_code in (404, 422)
    assert list(world.service.layout.stages.iterdir()) == []


async def test_one_that_would_be_too_large_is_refused_and_nothing_is_kept(world: World) -> None:
    world.service.stages.limit_bytes = 100
    digest = "0" * 64
    error = (await world.get(f"/v1/stages/{digest}", 422, params={"announce": 101}))["error"]
    assert error["facts"] == {"limit_bytes": 100}
    await put(world, "upload01", 0, b"x" * 60)
    await put(world, "upload01", 60, b"x" * 60, 422)
    assert list(world.service.layout.stages.iterdir()) == []


async def test_a_job_needs_its_tree_and_a_repeated_one_does_not(world: World) -> None:
    stream, digest = tree_of()
    body = {"argv": ["true"], "stage": {"hash": digest}, "key": "k"}
    async with connected(world, registration("a-h", offered())):
        error = (await world.post("/v1/jobs", body, 500))["error"]
        assert error["code"] == "stage_failed"
        await put(world, "upload01", 0, stream)
        await world.post("/v1/uploads/upload01/finish", {"hash": digest})
        job = (await world.post("/v1/jobs", body, 201))["job"]
        assert job["spec"]["stage"] == {"hash": digest}
        (world.service.layout.stages / f"{digest}.tree").unlink()
        assert (await world.post("/v1/jobs", body, 201))["job"]["id"] == job["id"]


@pytest.mark.parametrize(
    "stage",
    [
        {"hash": "x"},
        {"bytes": 1},
        {"hash": "0" * 64, "cwd": "../.."},
        {"hash": "0" * 64, "cwd": "/etc"},
        {"hash": "0" * 64, "other": 1},
        {"hash": "0" * 64, "dirty": "no"},
    ],
)
async def test_a_description_that_cannot_be_is_refused(world: World, stage: dict[str, Any]) -> None:
    error = (await world.post("/v1/jobs", {"argv": ["true"], "stage": stage}, 422))["error"]
    assert error["facts"]["field"] == "stage"


async def test_scratch_is_asked_of_agents_and_silence_is_told_as_such(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.controller.routes.scratch.LOOK_S", 0.2)
    async with connected(world, registration("a-h", offered())):  # a scripted agent, which answers no question
        told = schema.ScratchList.model_validate(await world.get("/v1/scratch"))
        assert [(host.answered, host.kept) for host in told.hosts] == [(False, [])]
        assert "an older version gives none" in told.hosts[0].why
    await asyncio.sleep(0.1)
    told = schema.ScratchList.model_validate(await world.post("/v1/scratch/clean", {"dry_run": True}))
    assert told.hosts[0].why == "it is not in contact"
