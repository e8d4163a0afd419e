"""What a host lets go of, and when: by a clock that the test moves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.agent.test_scratch import attempt, on_record

from tenure.agent.sweeping import one_round
from tenure.domain.retention import Retention, span, words

DAY = 86_400.0
ENDED = 1_750_000_000.0


def made(root: Path, name: str, *, keep: bool = False, samples: bool = True) -> Path:
    folder = attempt(root, f"{name}.1", keep=keep)
    (folder / "exit.json").write_text(json.dumps({"kind": "exited", "output_bytes": 0, "ended_at": ENDED}))
    if samples:
        (folder / "samples.log").write_text("evidence")
    return folder


def test_samples_and_kept_scratches_go_each_at_its_time(tmp_path: Path) -> None:
    folder = made(tmp_path, "j1", keep=True)
    kept = Retention(samples_s=10 * DAY, kept_scratch_s=5 * DAY)
    assert one_round(tmp_path, dict, kept, lambda: ENDED + 4.9 * DAY) == (0, 0)
    assert (folder / "scratch/data").exists()
    assert one_round(tmp_path, dict, kept, lambda: ENDED + 5.1 * DAY) == (0, 1)
    assert not (folder / "scratch").exists()
    assert (folder / "samples.log").exists()
    assert one_round(tmp_path, dict, kept, lambda: ENDED + 9.9 * DAY) == (0, 0)
    assert one_round(tmp_path, dict, kept, lambda: ENDED + 10.1 * DAY) == (1, 0)
    assert not folder.exists()


def test_what_is_on_record_is_left_alone_however_old(tmp_path: Path) -> None:
    folder = made(tmp_path, "j1", keep=True)
    ships = on_record(("j1", "ended"))  # over, and its output is not all with the controller
    now = Retention(samples_s=0, kept_scratch_s=None)
    assert one_round(tmp_path, lambda: ships, now, lambda: ENDED + 999 * DAY) == (0, 0)
    runs = on_record(("j1", "started"))
    at_once = Retention(samples_s=0, kept_scratch_s=0)
    assert one_round(tmp_path, lambda: runs, at_once, lambda: ENDED + 999 * DAY) == (0, 0)
    assert (folder / "scratch/data").exists()
    assert (folder / "samples.log").exists()


def test_for_ever_is_for_ever(tmp_path: Path) -> None:
    made(tmp_path, "j1", keep=True)
    kept = Retention(samples_s=None, kept_scratch_s=None)
    assert one_round(tmp_path, dict, kept, lambda: ENDED + 99_999 * DAY) == (0, 0)


def test_a_round_is_bounded_and_the_next_goes_on(tmp_path: Path) -> None:
    for number in range(7):
        made(tmp_path, f"j{number}", keep=True)
    kept = Retention(samples_s=DAY, kept_scratch_s=None)
    counts = [one_round(tmp_path, dict, kept, lambda: ENDED + 2 * DAY, most=3)[0] for _ in range(4)]
    assert counts == [3, 3, 1, 0]


def test_a_samples_log_without_an_end_is_never_cut(tmp_path: Path) -> None:
    folder = made(tmp_path, "j1")
    (folder / "exit.json").unlink()
    assert one_round(tmp_path, dict, Retention(samples_s=0), lambda: ENDED + 999 * DAY) == (0, 0)
    assert (folder / "samples.log").exists()


def test_settings_are_read_by_kind_and_said_in_words() -> None:
    kept = Retention.of({"output_s": 3600, "history_s": None})
    assert (kept.output_s, kept.history_s, kept.staged_s) == (3600.0, None, 14 * DAY)
    assert words(kept.to_dict()) == (
        "history for ever, output 60 min, samples 365 d, kept scratch 30 d, staged trees 14 d"
    )
    assert span(0.0) == "0 s"
    for wrong in ({"outputs_s": 1}, {"output_s": -1}, {"output_s": True}, {"output_s": "1d"}):
        with pytest.raises(ValueError, match="output"):
            Retention.of(wrong)
