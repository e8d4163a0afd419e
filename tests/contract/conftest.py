"""What the contract tests share: the simulated NVML library, compiled once a run, and the stores of the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.ledger_world import STORES, Store

from tenure.testing.nvml import build


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of the library; tests give it a scenario of their own."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """One place for a ledger in each kind of store."""
    return STORES[request.param](tmp_path)
