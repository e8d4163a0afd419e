"""Every command line that a page shows to be typed is typed here, in order, in one shell, against a real home."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.e2e.conftest import RC, House
from tests.e2e.far import Far

ROOT = Path(__file__).parents[2]
#: Pages whose lines are typed by tests of their own, beside the files they need.
ELSEWHERE = {"decide-from-files", "measure"}
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs/how-to").glob("*.md") if page.stem not in ELSEWHERE),
]
_EXPECTED = re.compile(r"\s+# exit status (\d+)$")


def lines_of(page: Path) -> list[tuple[str, int]]:
    """(command line, exit status) of a page's ``sh`` blocks; what is not said to end otherwise ends with 0. The
    commands of the Makefile are other lanes' business."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    found = []
    for line in "".join(blocks).splitlines():
        expected = _EXPECTED.search(line)
        typed = re.sub(r"\s+# .*$", "", line)
        if typed.strip() and not re.match(r"(\w+=\S+ )?make\b", typed):
            found.append((typed, int(expected[1]) if expected else 0))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_line_ends_as_the_page_says(empty_house: House, library: Path, tmp_path: Path, page: Path) -> None:
    lines = lines_of(page)
    assert lines
    other = Far("box1", tmp_path / "box1", library) if "TENURE_HOME=$PWD/box1" in page.read_text() else None
    script = "".join(f"{typed}\necho {shlex.quote(typed)} $? >> statuses\n" for typed, _ in lines)
    env = {**empty_house.env, "PATH": f"{Path(RC).parent}:{empty_house.env['PATH']}"}
    try:
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, timeout=110, stdin=subprocess.DEVNULL
        )
    finally:
        if other is not None:
            other.close()
    told = (tmp_path / "statuses").read_text().splitlines()
    assert told == [f"{typed} {status}" for typed, status in lines], done
    assert b"Traceback" not in done.stderr
