"""``make mutants``: takes one guard away at a time and shows which test notices.

Each mutant is a small edit of a copy of the source; the tests that should notice run against the copy. A mutant that
nobody notices, an edit that no longer applies, and a test that fails without any edit all fail the run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 600


def run_tests(source: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """Runs tests against a copy of the source; the exit code and what was printed."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"TENURE_MODEL_SEEDS": "40", "TENURE_KILLS": "36"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, f"no answer within {DEADLINE_S} s"
    return done.returncode, done.stdout + done.stderr


def apply(mutant: Mutant, source: Path) -> str:
    """Applies a mutant's edits to a copy; a text says what does not fit any more."""
    for edit in mutant.edits:
        path = source / "tenure" / edit.file
        text = path.read_text("utf-8")
        if text.count(edit.old) != 1:
            return f"the text to change stands {text.count(edit.old)} times in {edit.file}: {edit.old.strip()[:60]!r}"
        path.write_text(text.replace(edit.old, edit.new), "utf-8")
    return ""


def noticed_by(output: str) -> str:
    """The test that failed, and its first line of reason."""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    reason = re.search(r"^E\s+(.*)$", output, re.MULTILINE)
    return f"{failed.group(1) if failed else 'the run'}: {reason.group(1)[:110] if reason else 'see its output'}"


def main() -> int:
    """Runs every mutant, or those named; exit status 1 where one was not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only mutants whose name contains one of these words")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or any(word in m.name for word in options.names)]
    missed = 0
    for number, mutant in enumerate(chosen, 1):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="tenure-mutant-") as folder:
            source = Path(folder) / "src"
            shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
            problem = apply(mutant, source)
            code, output = (-2, problem) if problem else run_tests(source, mutant.tests)
        took = f"{time.monotonic() - began:5.1f} s"
        if problem:
            missed += 1
            print(f"[{number}/{len(chosen)}] {mutant.name}: NOT APPLIED, {problem}", flush=True)
        elif code == 1:
            print(f"[{number}/{len(chosen)}] {mutant.name}: caught in {took} by {noticed_by(output)}", flush=True)
        else:
            missed += 1
            tail = " ".join(output.split()[-12:])
            print(f"[{number}/{len(chosen)}] {mutant.name}: NOT CAUGHT (exit {code}) in {took}: {tail}", flush=True)
    print(f"{len(chosen) - missed} passed, {missed} failed")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
