"""Simulated NVIDIA devices: a library with NVML's ABI, and the scenario file it answers from.

``build(dest_dir)`` compiles ``libnvidia-ml.so.1``; ``Scenario.create(dest_dir / "scenario", "4xH100")`` writes what it
says; ``install(dest_dir, spec)`` does both. Devices of this library are always of the kind "simulated".
"""

from __future__ import annotations

from pathlib import Path

from tenure.testing.nvml.scenario import Scenario, random_uuid

__all__ = ["Scenario", "build", "install", "random_uuid"]


def build(dest_dir: Path | str) -> Path:
    """Makes ``libnvidia-ml.so.1`` in ``dest_dir`` unless it is there already. See ``compiling``."""
    from tenure.testing.nvml.compiling import build as compile_library

    return compile_library(dest_dir)


def install(dest_dir: Path | str, spec: str) -> Scenario:
    """The library and, beside it, a scenario of ``spec``; a scenario that is there already is kept as it is."""
    build(dest_dir)
    path = Path(dest_dir) / "scenario"
    return Scenario(path) if path.exists() else Scenario.create(path, spec)
