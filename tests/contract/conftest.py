"""What the contract tests share: the simulated NVML library, compiled once a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.testing.nvml import build


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of the library; tests give it a scenario of their own."""
    return build(tmp_path_factory.mktemp("nvml"))
