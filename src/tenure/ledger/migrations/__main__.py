"""``python -m tenure.ledger.migrations REVISION``: takes this home's ledger back to an earlier version's schema.

An earlier version refuses a ledger of a newer schema, because it cannot know what the change means. The newer one knows
how to undo it, so it does, last thing before the earlier one is started: docs/how-to/change-versions.md.
"""

from __future__ import annotations

import argparse
import os
import sys

from tenure.durable.locks import hold
from tenure.errors import TenureError
from tenure.ledger import tables
from tenure.ledger.sqlite import SqliteLedger
from tenure.ledger.sqlite_files import check
from tenure.paths import layout


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 where it is done, 73 where a controller of this home runs; nothing is changed where it fails."""
    parser = argparse.ArgumentParser(prog="python -m tenure.ledger.migrations", description=__doc__)
    known = [f"{number:04}" for number in range(1, int(tables.REVISION) + 1)]
    parser.add_argument("revision", choices=known, help="the schema that the earlier version names when it refuses")
    revision = parser.parse_args(argv).revision
    try:
        paths = layout()
        running = f"a controller for {paths.home} is running (pid {{pid}})"
        lock = hold(paths.controller_lock, running, "stop it first; its jobs go on: rc down --leave")
        try:
            check(paths.ledger_db)
            ledger = SqliteLedger(paths.ledger_db)
            try:
                ledger.take_back(revision)
            finally:
                ledger.close()
        finally:
            os.close(lock)
    except TenureError as error:
        print(f"{error.code}: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{paths.ledger_db} is of schema {revision} now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
