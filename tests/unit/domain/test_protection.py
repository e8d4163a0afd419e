"""A host's declaration: read with clear refusals, judged before it is used, and turned into a ceiling."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain import protection

GIB = 1 << 30


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"oom": "reboots"}, "oom is no key of it"),
        ({"ooms": "explodes"}, "ooms is 'explodes'"),
        ({"ooms": "reboots"}, "needs a reserve"),
        ({"reserve": "8G"}, '"ooms": "reboots" as well'),
        ({"ooms": "reboots", "reserve": "lots"}, "reserve is 'lots'"),
        ({"ooms": "reboots", "reserve": True}, "reserve is True"),
        ({"ooms": "reboots", "reserve": "-1G"}, "reserve is '-1G'"),
        ({"ooms": "reboots", "reserve": 0}, "needs a reserve"),
    ],
)
def test_a_declaration_that_cannot_be_used_is_refused_by_its_key(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("(", r"\(")):
        protection.read(settings)


def test_nothing_declared_needs_no_ceiling() -> None:
    found = protection.read({})
    assert not found.reboots
    assert found.judged is None
    assert found.refused == ""


def test_a_reserve_inside_the_operating_point_is_refused_with_the_numbers() -> None:
    found = protection.read({"ooms": "reboots", "reserve": "12000M", "predicted_free": "12223M", "uncertainty": "306M"})
    assert found.judged is not None
    assert found.judged.verdict == "unsound"
    assert "predicted 12223 less uncertainty 306 is 11917, at or below the floor of 12000" in found.refused
    sound = protection.read({"ooms": "reboots", "reserve": "8G", "predicted_free": "20G"})
    assert sound.judged is not None
    assert sound.judged.verdict == "sound"
    assert sound.refused == ""
    unknown = protection.read({"ooms": "reboots", "reserve": "8G"})
    assert unknown.judged is not None
    assert unknown.judged.verdict == "not_established"
    assert unknown.refused == ""


def test_the_ceiling_is_what_reserve_and_others_leave() -> None:
    found = protection.read({"ooms": "reboots", "reserve": "8G"})
    room = protection.room(64 * GIB, 50 * GIB, 10 * GIB, found)
    assert room.others == 4 * GIB
    assert room.limit == 52 * GIB
    assert room.words == "64.0 GiB of memory less 8.0 GiB reserve less 4.0 GiB held by others is 52.0 GiB"


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_jobs_at_their_ceiling_leave_the_reserve(total: int, available: int, held: int) -> None:
    found = protection.Protection(True, reserve=8 * GIB)
    room = protection.room(total, available, held, found)
    assert room.limit >= 0
    if room.limit:
        assert room.limit + room.others + found.reserve == total


def test_a_trip_of_a_guard_that_nothing_established_is_evidence_about_the_guard() -> None:
    words = protection.breach(GIB, GIB, 1, common=False, reserve_is="not_established")
    assert words.startswith(
        "memory ceiling: limit 1.0 GiB, peak 1.0 GiB, 1 process killed by the kernel; the reserve is"
    )
    assert "evidence about the guard" in words
    assert "guard" not in protection.breach(GIB, None, 2, common=True, reserve_is="sound")
