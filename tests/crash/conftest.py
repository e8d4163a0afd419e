"""The shim is compiled once for all crash tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.record import build_shim


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def cut() -> Iterator[Path]:
    """Where cuts are built: in memory where that is possible, for recovery syncs and there are thousands of cuts."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="tenure-cut-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder) / "cut"
