"""An attempt's number that comes again never inherits the old run's exit record."""

from __future__ import annotations

import json
from pathlib import Path

from tenure.agent import folders


def test_a_discarded_run_is_set_aside_for_one_of_the_same_number(tmp_path: Path) -> None:
    folder = tmp_path / "j1.1"
    folders.prepare(folder, {"v": 1, "run": "first"})
    for name in ("supervisor.json", "exit.json", "samples.log"):
        (folder / name).write_text(json.dumps({"kind": "exited", "output_bytes": 0}))
    folders.discard(folder)
    folders.prepare(folder, {"v": 1, "run": "second"})
    assert folders.read_exit(folder) is None
    assert (tmp_path / "j1.1.before-1" / "samples.log").exists()
    assert folders.key_of(tmp_path / "j1.1.before-1") is None


def test_preparing_again_for_the_same_run_keeps_its_record(tmp_path: Path) -> None:
    folder = tmp_path / "j1.1"
    folders.prepare(folder, {"v": 1})
    (folder / "supervisor.json").write_text("{}")
    folders.prepare(folder, {"v": 1})
    assert (folder / "supervisor.json").exists()
