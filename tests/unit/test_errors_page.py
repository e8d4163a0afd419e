"""The page of errors says what the table of codes says."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "tools/errors_page.py"


def test_the_page_of_errors_is_current() -> None:
    made = runpy.run_path(str(SCRIPT))
    assert made["PAGE"].read_text() == made["page"](), "run: python tools/errors_page.py"
