"""A copy of the source tree with one promise taken out of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import tenure


def mutant(tmp_path: Path, file: str, good: str, bad: str) -> Path:
    """A copy of the source tree with one passage replaced; fails where the passage is not there exactly once."""
    source = tmp_path / "mutant"
    shutil.copytree(Path(tenure.__file__).parent, source / "tenure", ignore=shutil.ignore_patterns("__pycache__"))
    path = source / "tenure" / file
    text = path.read_text()
    assert text.count(good) == 1, f"{file} does not have {good!r} once: the mutant has to follow the code"
    path.write_text(text.replace(good, bad))
    return source
