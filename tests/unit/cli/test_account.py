"""Written, stored, held and shown: compared where all of them are known, and never called equal where not."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.cli.streaming import Screen
from tenure.sdk.account import account


def job(out: int | None, err: int | None, *gaps: dict[str, Any], stored: int | None = None) -> dict[str, Any]:
    stats = {"stdout_bytes": out, "stderr_bytes": err, "output_gaps": list(gaps)} if out is not None else {}
    if stored is None and out is not None and err is not None:
        stored = out + err - sum(gap["bytes"] for gap in gaps)
    return {"started_at": 1.0, "ended_at": 2.0, "output_bytes": stored, "outcome": {"stats": stats}}


def gap(stream: str, count: int, cause: str = "quota") -> dict[str, Any]:
    return {"stream": stream, "cause": cause, "bytes": count, "at_end": count}


def test_equal_counts_agree() -> None:
    told = account(job(5, 3), {"stdout": 5, "stderr": 3}, 8)
    assert (told["agree"], told["words"], told["stored"], told["held"]) == (True, [], 8, 8)


@pytest.mark.parametrize(
    ("record", "shown", "held", "words"),
    [
        (job(9, 0, gap("stdout", 4)), (5, 0), 5, ["stdout: 9 bytes", "5 shown", "4 were not stored (the output quota"]),
        (job(9, 2, gap("stderr", 2, "disk")), (9, 0), 9, ["stderr: 2 bytes", "0 shown", "2 were not stored (the disk"]),
        (job(9, 0), (5, 0), 5, ["stdout: 9 bytes", "4 have not arrived from its host"]),
        (job(9, 0), (5, 0), 9, ["4 are missing, and nothing says why"]),
        (job(9, 0), (5, 0), None, ["4 are missing, and nothing says why"]),
        (job(5, 0), (9, 0), 5, ["9 bytes were shown and only 5 written"]),
        (job(9, 0, stored=7), (9, 0), 7, ["its host counted 9 bytes written, 0 not stored and 7 stored"]),
    ],
)
def test_a_difference_says_which_and_by_how_much(
    record: dict[str, Any], shown: tuple[int, int], held: int | None, words: list[str]
) -> None:
    told = account(record, dict(zip(("stdout", "stderr"), shown, strict=True)), held)
    assert told["agree"] is False
    (line,) = told["words"]
    assert all(word in line for word in words), line


def test_what_was_not_counted_is_not_called_equal() -> None:
    lost = account(job(None, None, stored=8), {"stdout": 8, "stderr": 0}, 8)
    assert (lost["agree"], lost["produced"]) == (None, None)
    assert "is not known" in lost["words"][0]
    part = account(job(5, 3), {}, 8)
    assert (part["agree"], part["words"]) == (None, [])
    never_ran: dict[str, Any] = {"started_at": None, "ended_at": 2.0, "output_bytes": None, "outcome": {"stats": {}}}
    assert account(never_ran, {"stdout": 0, "stderr": 0}, 0)["words"] == []
    one = account(job(5, 3), {"stderr": 3}, 8)
    assert (one["agree"], one["shown"]) == (True, {"stderr": 3})


@pytest.mark.parametrize(
    ("record", "agrees"),
    [(job(4, 0), True), (job(5, 0), False), (job(None, None), False), (job(4, 0, stored=3), False)],
)
def test_the_short_way_agrees_with_the_long_one(record: dict[str, Any], agrees: bool) -> None:
    screen = Screen()
    screen.shown["stdout"] = 4
    assert screen.agrees(record) is agrees
    assert (screen.account(record)["agree"] is True) is agrees
    assert not Screen(whole=False).agrees(record)
