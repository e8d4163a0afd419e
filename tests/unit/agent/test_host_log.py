"""The log of the host beside a job: it stays bounded, and a peak of the first hour is there after a week."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenure.agent import host_log
from tenure.agent.host_watch import Watch


def sample(second: int, free: int = 500) -> dict[str, Any]:
    return {"utc": 1e9 + second, "at": float(second), "v": {"memory_available": free, "load1": 1.0}, "un": {}}


def test_a_long_job_keeps_its_excursions_in_a_bounded_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_log, "RAW_MOST", 600)
    monkeypatch.setattr(host_log, "BLOCKS_MOST", 20)
    log = host_log.HostLog(tmp_path / "host.log")
    log.begin("boot", 1 << 30)
    largest = 0
    for second in range(6000):
        log.append(sample(second, free=7 if second == 42 else 500))
        largest = max(largest, (tmp_path / "host.log").stat().st_size)
    log.sync()
    log.close()
    found = host_log.read(tmp_path / "host.log")
    assert found is not None
    assert found.whole is not None
    assert found.whole.samples == 6000
    assert found.whole.lowest("memory_available") == 7
    assert found.whole.gap == 1.0
    assert found.boot == "boot"
    assert found.memory_total == 1 << 30
    assert 300 <= found.raw < 600
    assert largest < 600 * 120 + 20 * 400, "the bound of the log"
    again = host_log.HostLog(tmp_path / "host.log")
    assert again.account.whole == found.whole
    assert [s["at"] for s in again.account.recent] == [float(n) for n in range(6000 - host_log.RECENT, 6000)]
    again.close()


def test_there_is_no_log_and_that_is_said(tmp_path: Path) -> None:
    assert host_log.read(tmp_path / "host.log") is None


def test_a_scratch_that_lies_elsewhere_is_measured_there(tmp_path: Path) -> None:
    folder, place = tmp_path / "j1.1", tmp_path / "elsewhere"
    folder.mkdir()
    place.mkdir()
    (place / "file").write_bytes(b"x" * (3 << 20))
    (folder / "scratch.json").write_text(json.dumps({"v": 1, "path": str(place), "kept": False, "why": ""}))
    handle = SimpleNamespace(pid=1, start_ticks=1)
    watch = Watch(SimpleNamespace(), SimpleNamespace(key=("j1", 1), folder=folder, handle=handle))  # type: ignore[arg-type]
    values: dict[str, float] = {}
    missing: dict[str, str] = {}
    watch._of_scratch(values, missing)
    assert 3 << 20 <= values["scratch_used"] < 4 << 20
    assert values["scratch_free"] > 0
    assert missing == {}
