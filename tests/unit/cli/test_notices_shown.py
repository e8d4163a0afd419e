"""Which notices of a job's host are shown beside its output, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.cli import streaming


def test_each_is_shown_once_and_leftovers_are_left_to_describe(capsys: pytest.CaptureFixture[str]) -> None:
    idle = {"kind": "idle_soon", "words": "idle for 8 s of 10 s", "utc": 1.0}
    left = {"kind": "leftovers", "words": "1 leftover: nvcc", "utc": 1.0}
    told: list[Any] = []
    screen = streaming.Screen()
    streaming.notices({"notices": [left, idle]}, told, screen)
    streaming.notices({"notices": [left, idle]}, told, screen)
    shown = capsys.readouterr().err
    assert shown.count("idle for 8 s of 10 s") == 1
    assert "nvcc" not in shown
    assert told == [left, idle]
