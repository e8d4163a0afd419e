"""The line of progress: on a terminal, when it takes long, and gone at the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tenure.cli import staging
from tenure.errors import TenureError
from tenure.sdk import staging as sdk_staging
from tenure.sdk.transport import Transport


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_shows_how_far_it_is_and_takes_the_line_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "isatty", lambda fd: fd == 2)
    clock = Clock()
    shown = staging.Progress(clock)
    shown.tell("packing", 1_000_000, 0)
    assert capsys.readouterr().err == ""  # what is quick is not shown
    clock.now += 1.5
    shown.tell("packing", 300_000_000, 0)
    assert capsys.readouterr().err == "\r\x1b[Krc: packing the tree: 300 MB"
    clock.now += 0.1
    shown.tell("sending", 1_000_000, 400_000_000)
    assert capsys.readouterr().err == ""  # not more often than an eye can follow
    clock.now += 0.2
    shown.tell("sending", 100_000_000, 400_000_000)
    assert capsys.readouterr().err == f"\r\x1b[Krc: sending the tree [{'#' * 6:<24}]  25 % of 400 MB"
    shown.close()
    assert capsys.readouterr().err == "\r\x1b[K"


def test_where_there_is_no_terminal_there_is_no_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "isatty", lambda fd: False)
    clock = Clock()
    shown = staging.Progress(clock)
    clock.now += 60
    shown.tell("sending", 1, 2)
    shown.close()
    assert capsys.readouterr().err == ""


def test_a_folder_that_may_not_be_read_is_named_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(folder: str) -> None:
        raise PermissionError(13, "Permission denied", b"inner/folder")

    monkeypatch.setattr(sdk_staging, "survey", refuse)
    with pytest.raises(TenureError, match=r"cannot be staged: 'inner/folder': Permission denied") as caught:
        sdk_staging.stage(str(tmp_path), Transport("/nobody/listens", 1.0))
    assert caught.value.code == "stage_failed"
    assert "make it readable" in caught.value.do


def test_a_name_of_any_length_is_refused_in_words() -> None:
    with pytest.raises(TenureError, match="a name or filter of 100013 characters") as caught:
        Transport("/nobody/listens", 1.0).call("GET", f"/v1/devices/{'z' * 100_001}")
    assert caught.value.code == "invalid_request"
