"""A tree found by the kernel's lists of children is the tree that a scan of all processes finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.probes import descent, proc

FAMILY = """
import subprocess, sys, threading, time
kids = [subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"], stdout=subprocess.DEVNULL) for _ in range(3)]
def of_a_thread():
    kids.append(subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL))
    print("ready", flush=True)
    time.sleep(60)
threading.Thread(target=of_a_thread, daemon=True).start()
sys.stdin.read()
for kid in kids: kid.kill()
"""


def test_it_is_the_tree_that_a_scan_finds() -> None:
    family = subprocess.Popen([sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert family.stdout is not None
        assert family.stdout.readline() == b"ready\n"
        for _ in range(200):  # the shells fork in their own time
            scanned = {entry.pid: entry.ppid for entry in proc.tree(family.pid, proc.snapshot())}
            if len(scanned) == 11:
                break
        found = descent.below(family.pid)
        assert len(scanned) == 11
        if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
            assert found is None, "this kernel has no lists of children"
            return
        assert found is not None
        assert {entry.pid: entry.ppid for entry in found} == scanned
        assert found[0].pid == family.pid
        assert descent.below(family.pid, start_ticks=1) == (), "another process of that number"
    finally:
        for entry in proc.tree(family.pid, proc.snapshot())[1:]:
            os.kill(entry.pid, 9)
        family.kill()
        family.communicate()
    assert descent.below(family.pid) == ()


def test_where_it_is_not_told_a_scan_has_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = tmp_path / "7/task/7"
    task.mkdir(parents=True)
    stat = f"7 (x) S 1 7 {' '.join(['0'] * 20)}"
    (tmp_path / "7/stat").write_text(stat)
    (task / "stat").write_text(stat)
    assert descent.below(7, proc=tmp_path) is None, "no list of children"
    (task / "children").write_text("")
    found = descent.below(7, proc=tmp_path)
    assert found is not None
    assert [entry.pid for entry in found] == [7]
    monkeypatch.setattr(descent, "MOST_THREADS", 0)
    assert descent.below(7, proc=tmp_path) is None, "too many threads"
