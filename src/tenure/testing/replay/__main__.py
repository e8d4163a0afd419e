"""``python -m tenure.testing.replay FILE...``: prints name, right and got of every case.

Exit status: 0 all right, 1 some wrong or unreadable, 2 some part is not built yet (it is named).
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tenure.testing.replay.cases import replay_file


def main(argv: list[str] | None = None) -> int:
    """Replays the files and prints one line a case."""
    parser = argparse.ArgumentParser(prog="python -m tenure.testing.replay", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("-q", "--quiet", action="store_true", help="only what is wrong, and the count")
    options = parser.parse_args(argv)
    right = wrong = missing = 0
    for path in options.files:
        try:
            cases = replay_file(path)
        except (OSError, ValueError) as error:
            print(f"{path}: cannot be replayed: {error}")
            wrong += 1
            continue
        for case in cases:
            if case.missing:
                print(f"{path}: {case.name}: not built yet: {case.missing}")
                missing += 1
                continue
            right, wrong = right + case.passed, wrong + (not case.passed)
            if not (options.quiet and case.passed):
                mark = "right" if case.passed else "WRONG"
                print(f"{mark}  {case.name}\n       right {_text(case.right)}\n       got   {_text(case.got)}")
    print(f"{right} right, {wrong} wrong, {missing} not built")
    return 1 if wrong else 2 if missing else 0


def _text(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


if __name__ == "__main__":
    sys.exit(main())
