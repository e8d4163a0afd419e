"""Every statement of a commit, built once for each kind of store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from tenure.ledger import rows, tables
from tenure.ledger.rows import Row

_HEAD = ("version", "sequence", "last_arrival", "token_floor")
_built: dict[str, Statements] = {}


def statements_for(dialect: sa.engine.Dialect) -> Statements:
    """The statements for a dialect; compiling them costs some 30 ms, so the second ledger of a process shares them."""
    key = f"{dialect.name}+{dialect.driver}"
    if key not in _built:
        _built[key] = Statements(dialect)
    return _built[key]


class Prepared:
    """One statement, compiled once for a store, run with many rows: tuples of plain values in the order of ``names``.

    Its parameters are the names with ``to_`` before them.

    The rows go straight to the driver: SQLAlchemy's own ``execute`` looks at every value of every row again, and its
    bookkeeping for a statement costs as much as SQLite needs for three rows.
    """

    def __init__(self, statement: sa.sql.ClauseElement, names: Sequence[str], dialect: sa.engine.Dialect) -> None:
        compiled: Any = statement.compile(dialect=dialect)
        self.sql = str(compiled)
        parameters = [f"to_{name}" for name in names]
        wanted: list[str] | None = compiled.positiontup
        self._arrange: Callable[[Row], Any] | None
        if wanted is None:
            self._arrange = lambda row: dict(zip(parameters, row, strict=True))
        elif wanted == parameters:
            self._arrange = None
        else:
            self._arrange = itemgetter(*(parameters.index(name) for name in wanted))

    def run(self, cursor: Any, many: Sequence[Row]) -> int:
        """Runs the statement for every row on a cursor of the driver; gives the number of rows that it changed."""
        if not many:
            return 0
        cursor.executemany(self.sql, many if self._arrange is None else [self._arrange(row) for row in many])
        return int(cursor.rowcount)


class Statements:
    """One attribute for each thing that a commit does; ``*_moved`` update what changes of a row that is there."""

    def __init__(self, dialect: sa.engine.Dialect) -> None:
        def bound(names: Sequence[str]) -> dict[str, Any]:
            return {name: sa.bindparam(f"to_{name}") for name in names}  # a bare column's name is reserved

        def insert(table: sa.Table, names: Sequence[str]) -> Prepared:
            return Prepared(sa.insert(table).values(bound(names)), names, dialect)

        def update(table: sa.Table, names: Sequence[str]) -> Prepared:
            *moving, key = names
            it = table.c[key] == sa.bindparam(f"to_{key}")
            return Prepared(sa.update(table).where(it).values(bound(moving)), names, dialect)

        def upsert(table: sa.Table, names: Sequence[str], key: str) -> Prepared:
            make = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
            new: Any = make(table).values(bound(names))
            changed = {name: new.excluded[name] for name in names if name != key}
            return Prepared(new.on_conflict_do_update(index_elements=[key], set_=changed), names, dialect)

        self.events = insert(tables.events, rows.EVENT)
        self.agents = upsert(tables.agents, rows.AGENT, "id")
        self.tokens = upsert(tables.tokens, rows.TOKEN, "uuid")
        self.devices = upsert(tables.devices, rows.DEVICE, "name")
        self.devices_moved = update(tables.devices, rows.DEVICE_MOVING)
        gone = sa.delete(tables.devices).where(tables.devices.c.name == sa.bindparam("to_name"))
        self.devices_gone = Prepared(gone, ("name",), dialect)
        self.jobs = insert(tables.jobs, rows.JOB)
        self.jobs_moved = update(tables.jobs, rows.JOB_MOVING)
        self.leases = insert(tables.leases, rows.LEASE)
        self.leases_moved = update(tables.leases, rows.LEASE_MOVING)
        here = tables.head.c.version == sa.bindparam("to_before")
        self.head = Prepared(sa.update(tables.head).where(here).values(bound(_HEAD)), (*_HEAD, "before"), dialect)
