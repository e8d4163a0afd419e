"""tools/setup.sh against a stand-in Python: what it decides, without a network or a real environment.

That the lock installs for real is shown by every lane: each of them starts with `make setup`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools/setup.sh"

# Answers the questions the script asks of a Python, keeps a diary, and "makes" an environment by copying itself. It
# calls itself 3.11 and has a venv module unless told otherwise by the two variables.
STAND_IN = """#!/usr/bin/env bash
echo "$*" >>"$DIARY"
case "$*" in
    --version) echo "Python $FAKE_VERSION" ;;
    *"sys.version_info"*) [ "$FAKE_VERSION" != 3.9.2 ] ;;
    *"import ensurepip, venv"*) [ -z "${FAKE_NO_VENV:-}" ] ;;
    *"-m venv .venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *"install"*) [ -z "${FAKE_NO_INSTALL:-}" ] ;;
esac
"""


class Checkout:
    """A folder with the script, a lock and a stand-in Python called ``fakepython``."""

    def __init__(self, root: Path) -> None:
        self.root, self.diary = root / "checkout", root / "diary"
        (self.root / "tools").mkdir(parents=True)
        shutil.copy(SCRIPT, self.root / "tools")
        (self.root / "pyproject.toml").write_text("[project]\n")
        (self.root / "requirements.lock").write_text("uv==1 \\\n    --hash=sha256:00\nx==1 \\\n    --hash=sha256:00\n")
        python = self.root / "fakepython"
        python.write_text(STAND_IN)
        python.chmod(0o755)

    def setup(self, **environment: str) -> tuple[int, str, list[str]]:
        """Exit code, messages, and what was asked of the Pythons in this one call."""
        self.diary.write_text("")
        done = subprocess.run(
            ["bash", "tools/setup.sh"],
            cwd=self.root,
            env={
                "PATH": os.environ["PATH"],
                "PYTHON": "./fakepython",
                "DIARY": str(self.diary),
                "FAKE_VERSION": "3.11.9",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done.returncode, done.stderr, self.diary.read_text().splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_second_call_does_nothing(checkout: Checkout) -> None:
    code, said, asked = checkout.setup()
    assert code == 0, said
    installs = [line for line in asked if " install " in line]
    assert all("--require-hashes --only-binary :all:" in line for line in installs if "--editable" not in line)
    assert installs[-1].endswith("--no-deps --no-index --no-build-isolation --editable .")
    assert checkout.setup() == (0, "", [])


@pytest.mark.parametrize("changed", ["pyproject.toml", "requirements.lock", "tools/setup.sh"])
def test_a_changed_input_is_noticed(checkout: Checkout, changed: str) -> None:
    checkout.setup()
    with (checkout.root / changed).open("a") as file:
        file.write("# changed\n")
    code, _, asked = checkout.setup()
    assert code == 0
    assert any("--editable ." in line for line in asked)
    assert not any("-m venv" in line for line in asked), "the environment itself was sound"


def test_a_moved_folder_is_noticed(checkout: Checkout) -> None:
    checkout.setup()
    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))
    _, _, asked = checkout.setup()
    assert any("--editable ." in line for line in asked)


def test_a_setup_cut_short_starts_over(checkout: Checkout) -> None:
    code, said, _ = checkout.setup(FAKE_NO_INSTALL="1")
    assert code == 1
    assert "requirements.lock could not be installed" in said
    half_there = checkout.root / ".venv/half-there"
    half_there.touch()
    code, said, asked = checkout.setup()
    assert code == 0
    assert "cut short; starting over" in said
    assert any("-m venv" in line for line in asked)
    assert not half_there.exists()


def test_an_environment_that_does_not_start_is_replaced(checkout: Checkout) -> None:
    (checkout.root / ".venv/bin").mkdir(parents=True)
    (checkout.root / ".venv/bin/python").symlink_to("/nonexistent/python3.11")
    code, said, _ = checkout.setup()
    assert code == 0
    assert "holds no Python 3.11 or newer that starts; starting over" in said


def test_a_python_too_old_is_named_and_nothing_is_made(checkout: Checkout) -> None:
    code, said, _ = checkout.setup(FAKE_VERSION="3.9.2")
    assert code == 1
    assert "Python 3.11 or newer is needed; found: ./fakepython (Python 3.9.2)" in said
    assert not (checkout.root / ".venv").exists()


def test_no_python_at_all_is_said(checkout: Checkout) -> None:
    code, said, _ = checkout.setup(PYTHON="no-such-python")
    assert code == 1
    assert "found: none" in said


def test_a_missing_venv_module_names_the_package_to_install(checkout: Checkout) -> None:
    code, said, _ = checkout.setup(FAKE_NO_VENV="1")
    assert code == 1
    assert "apt-get install python3-venv" in said
    assert not (checkout.root / ".venv").exists()
