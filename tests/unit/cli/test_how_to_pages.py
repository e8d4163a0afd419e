"""Every command line that a how-to page shows is run here, over the page's files, and says what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tenure.cli.main import main

#: Those that show a console. The others need a running home, and are typed in tests/e2e/test_docs.py; or, as the bench,
#: minutes of a quiet machine, and have tests of their own in tests/unit/bench.
PAGES = [
    page
    for page in sorted((Path(__file__).parents[3] / "docs/how-to").glob("*.md"))
    if "```console\n" in page.read_text()
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_says_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page.read_text()
    monkeypatch.chdir(tmp_path)
    for name, body in re.findall(r"^`([\w.-]+)`:\n\n```\w+\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        Path(name).write_text(body)
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        status: int | None = None
        for shown in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = shown.partition("\n")
            if command == "echo $?":
                assert f"{status}\n" == expected
                continue
            words = shlex.split(command)
            assert words[0] == "rc"
            status = main(words[1:])
            said = capsys.readouterr()
            assert said.err == ""
            # How long ago a file was written is the one thing that differs from run to run.
            assert re.sub(r"last written [^)]* ago", "last written 2.0 s ago", said.out) == expected
