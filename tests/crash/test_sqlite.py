"""What SQLite promises in the mode that the ledger uses, held against the same model; weaker modes must be caught."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from tests.crash.record import record
from tests.crash.replay import losses

CODE = """
    import os, sqlite3, sys
    from record import mark
    os.chdir(sys.argv[1])
    db = sqlite3.connect("ledger.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, body TEXT)")
    mark("-1")
    for n in range(25):
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO t VALUES (?, ?)", (n, "x" * 3000))
        db.execute("UPDATE t SET body = body || 'y' WHERE n = ?", (n // 2,))
        db.execute("COMMIT")
        mark(str(n))
        if n % 10 == 9:
            db.execute("PRAGMA wal_checkpoint(RESTART)")
"""


def intact(folder: Path, marks: list[str]) -> str | None:
    if not marks:
        return None
    db = sqlite3.connect(folder / "ledger.db")
    try:
        if db.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            return "the database is corrupt"
        numbers = [n for (n,) in db.execute("SELECT n FROM t ORDER BY n")]
        if numbers != list(range(len(numbers))):
            return f"a hole: {numbers}"
        return None if len(numbers) > int(marks[-1]) else f"{marks[-1]} was committed, {len(numbers)} rows are there"
    finally:
        db.close()


@pytest.mark.parametrize(("mode", "safe"), [("FULL", True), ("NORMAL", False), ("OFF", False)])
def test_committed_rows_survive_in_full_mode_only(tmp_path: Path, cut: Path, shim: Path, mode: str, safe: bool) -> None:
    root = tmp_path / "state"
    root.mkdir()
    code = dedent(CODE).replace("=FULL", f"={mode}")
    recording = record([sys.executable, "-c", code, root], root, shim)
    found = losses(recording, intact, cut, points=60)
    assert (found == []) is safe, found[:3]
    if mode == "NORMAL":
        assert not any("corrupt" in each for each in found), "it loses the newest commits, and no more than that"
