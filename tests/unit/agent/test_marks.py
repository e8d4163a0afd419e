"""The mark by which survivors are known: handed down, told apart, and found again through supervisors inside jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tenure.agent import supervisor, survivors


def chain(depth: int, tmp_path: Path) -> tuple[subprocess.Popen[str], list[tuple[int | None, int]]]:
    """A supervisor, one inside its job, and so on; (mark, pid) of each, the outermost first."""
    script = tmp_path / "nested.py"
    script.write_text(
        "import os, subprocess, sys\n"
        f"sys.path.insert(0, {str(Path(supervisor.__file__).parent)!r})\n"
        "import supervisor\n"
        "print(supervisor.leave_mark(), os.getpid(), flush=True)\n"
        "if int(sys.argv[1]):\n"
        "    subprocess.run(['env', '-i', sys.executable, sys.argv[0], str(int(sys.argv[1]) - 1)])\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script), str(depth)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    told = []
    for _ in range(depth + 1):
        mark, pid = process.stdout.readline().split()
        told.append((None if mark == "None" else int(mark), int(pid)))
    return process, told


def test_a_mark_is_known_in_all_that_came_of_it_and_in_nothing_else(tmp_path: Path) -> None:
    one, first = chain(3, tmp_path)
    other, second = chain(1, tmp_path)
    try:
        (outer, outer_pid), (inner, inner_pid), (inmost, inmost_pid), (beyond, beyond_pid) = first
        assert outer is not None
        assert inner is not None
        assert inmost is not None
        assert beyond is None, "no range is left: the search says that it cannot be complete"
        for pid in (outer_pid, inner_pid, inmost_pid, beyond_pid):
            assert survivors._bears(outer, pid)
        assert not survivors._bears(inner, outer_pid)
        assert survivors._bears(inner, inmost_pid)
        assert not any(survivors._bears(outer, pid) for _, pid in second)
        assert not survivors._bears(outer, os.getpid())
    finally:
        for process in (one, other):
            assert process.stdin is not None
            process.stdin.close()
            process.wait(10)
            assert process.stdout is not None
            process.stdout.close()
