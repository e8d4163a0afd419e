"""The account of skips, held on small suites run by a pytest of their own under the real tests/conftest.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

SUITE = """
import pytest

@pytest.mark.skip(reason="no tape drive")
def test_tape(): ...

@pytest.mark.parametrize("n", [1, 2])
def test_far(n): pytest.skip("no second host")

@pytest.mark.xfail(reason="known")
def test_known(): assert False

def test_fine(): ...
"""


def run_suite(folder: Path, suite: str = SUITE, limit: int = 0, **environment: str) -> tuple[int, str]:
    """Exit code and output of one run of ``suite`` as ``tests/unit/test_small.py`` with that limit for the lane."""
    (folder / "tests/unit").mkdir(parents=True)
    shutil.copy(TESTS / "conftest.py", folder / "tests")
    (folder / "tests/skips.toml").write_text(f"[unit]\nmax = {limit}\n")
    (folder / "tests/unit/test_small.py").write_text(suite)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: x\n    root: x\n")
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "TENURE_MAX_SKIPS")}
    kept["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # none of them has a part in this, and each costs start-up time
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/unit"],
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_skips_are_counted_by_reason_and_pass_outside_ci(tmp_path: Path) -> None:
    code, output = run_suite(tmp_path)
    assert code == 0
    rows = [line.split(maxsplit=2) for line in output.splitlines() if " unit " in line]
    assert ["2", "unit", "no second host"] in rows
    assert ["1", "unit", "no tape drive"] in rows
    assert not any("known" in row[-1] for row in rows), "an expected failure ran; it is no skip"


def test_more_skips_than_the_file_allows_fail_in_ci(tmp_path: Path) -> None:
    code, output = run_suite(tmp_path, limit=2, CI="true")
    assert code == 1
    assert "TOO MANY SKIPS: lane unit: 3 skipped, tests/skips.toml allows 2" in output


def test_as_many_skips_as_allowed_pass_in_ci(tmp_path: Path) -> None:
    code, output = run_suite(tmp_path, limit=3, CI="true")
    assert code == 0
    assert "TOO MANY SKIPS" not in output


def test_the_variable_bounds_the_whole_run_instead(tmp_path: Path) -> None:
    code, output = run_suite(tmp_path, limit=3, CI="true", TENURE_MAX_SKIPS="2")
    assert code == 1
    assert "TOO MANY SKIPS: 3 skipped, TENURE_MAX_SKIPS allows 2" in output


def test_a_module_that_skips_itself_counts(tmp_path: Path) -> None:
    suite = "import pytest\npytest.skip('no kernel module', allow_module_level=True)\n"
    code, output = run_suite(tmp_path, suite, CI="true")
    assert code != 0
    assert "no kernel module" in output


def test_a_lane_without_tests_fails(tmp_path: Path) -> None:
    code, _ = run_suite(tmp_path, "x = 1\n")
    assert code == 5


def test_a_marker_has_to_say_what_the_test_would_prove(tmp_path: Path) -> None:
    suite = "".join(f"@pytest.mark.{marker}\ndef test_{marker}(): ...\n" for marker in ("gpu", "root"))
    code, output = run_suite(tmp_path, f"import pytest\n{suite}")
    assert code == 1
    for marker in ("gpu", "root"):
        assert f"the marker `{marker}` needs reason=..." in output
