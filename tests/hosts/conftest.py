"""Fixtures of this lane. The simulated NVML is compiled once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts.fleet import Fleet, fleet

from tenure.testing.nvml import build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def hosts(library: Path) -> Iterator[Fleet]:
    """One controller for the tests of a file, each of which makes hosts of its own."""
    with fleet(library) as made:
        yield made
