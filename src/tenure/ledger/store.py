"""The ledger's port: events and current rows in one transaction, and reads of what is committed.

Everything here is the same SQL on every store; what opens a store, words its errors and keeps its files in order is
the store's own module (``sqlite``). One writer: ``commit`` moves the ``head`` row from the version it knows to the
next, and a head found elsewhere means that somebody else wrote.

Reads go through connections of their own, see committed data only, hold nothing open once they have returned, and may
be called from any thread. They block: an event loop calls them in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tenure.domain import events as ev
from tenure.domain.device import Device
from tenure.domain.job import Job, Lease
from tenure.domain.state import FleetState
from tenure.errors import TenureError
from tenure.ledger import rows, tables
from tenure.ledger.changes import Changes
from tenure.ledger.loading import loaded
from tenure.ledger.rows import Row, Stored
from tenure.ledger.statements import statements_for

_CHUNK = 500


class LedgerError(TenureError):
    """A read or a transaction of the ledger failed; of a failed transaction nothing was kept, unless ``unsure``.

    ``unsure`` says that the store could not tell whether the transaction is on disk: read it anew before going on.
    """

    unsure = False


class Ledger:
    """The durable history and the rows that follow from it. ``Ledger.open(path)`` opens the store of a path.

    ``local``: a row is found by its key in microseconds, without another process, so that an event loop may look it up
    itself; the way to a thread and back costs ten times that.
    """

    local = False

    def __init__(self, writing: sa.Engine, reading: sa.Engine) -> None:
        self._writing = writing
        self._reading = reading
        self._writer: sa.Connection | None = None
        self._statements = statements_for(writing.dialect)
        self._driver_error: type[Exception] = writing.dialect.import_dbapi().Error

    @staticmethod
    def open(path: str | Path) -> Ledger:
        """Opens the ledger of a path, makes it where there is none, and brings its schema up to date.

        Only for the one writer: the caller holds the lock of the folder. Raises ``TenureError``:
        ``network_file_system``, ``damaged_state`` (the message names the file and what to do; nothing was changed),
        ``disk_full`` or ``io_error``.
        """
        from tenure.ledger.sqlite import open_sqlite

        return open_sqlite(Path(path))

    # -- what a store has to say for itself ------------------------------------------------------------------------

    def failure(self, error: Exception) -> LedgerError:
        """The error of a store in Tenure's words: code, file, and what to do."""
        raise NotImplementedError

    def rest(self) -> None:
        """Puts the store's files in order while nobody needs it. Never raises for what can wait."""

    @property
    def place(self) -> str:
        """Where it is, for people: a path, or the address of a server."""
        raise NotImplementedError

    # -- writing ---------------------------------------------------------------------------------------------------

    def load(self, state: FleetState) -> None:
        """Makes a state what the rows say, exactly; whatever was in it is gone. Reads what is open, never history.

        Who had contact when the ledger was last written has it in the state too, so that memory, rows and replay
        agree. A controller that comes up decides ``Begin`` before anything else: nobody has been heard by it yet.
        """
        with self._transaction() as connection:
            fresh = loaded(connection)
        state.become(fresh)

    def commit(self, events: Sequence[ev.Event], state: FleetState) -> list[Stored]:
        """Writes events that the state has just taken in, and the rows they touched, in one transaction.

        The events are numbered so that the last one is ``state.version``. On return they are durable; then the caller
        drains the state. Raises ``LedgerError`` having kept nothing.
        """
        first = state.version - len(events) + 1
        stored = [rows.event_row(first + index, event) for index, event in enumerate(events)]
        self.write(events, stored, state)
        return stored

    def write(self, events: Sequence[ev.Event], stored: Sequence[Stored], state: FleetState) -> None:
        """``commit`` for events that have been made rows already."""
        changes = Changes(events, state)
        do = self._statements
        with self._cursor() as cursor:
            before = state.version - len(stored)
            if do.head.run(cursor, [(*_head(state), before)]) != 1:
                raise _not_alone(self.place, before)
            do.events.run(cursor, stored)
            do.agents.run(cursor, changes.agents)
            do.tokens.run(cursor, changes.tokens)
            do.devices.run(cursor, changes.devices)
            do.devices_gone.run(cursor, changes.devices_gone)
            do.jobs.run(cursor, changes.jobs)
            # Leases that end make room for those that begin: one live lease a device holds after every statement.
            moved = do.leases_moved.run(cursor, changes.leases_moved)
            do.leases.run(cursor, changes.leases)
            moved += do.devices_moved.run(cursor, changes.devices_moved)
            moved += do.jobs_moved.run(cursor, changes.jobs_moved)
            expected = len(changes.leases_moved) + len(changes.devices_moved) + len(changes.jobs_moved)
            if moved != expected:
                raise LedgerError(
                    "internal",
                    f"Of {expected} rows that had to change, {moved} were there: memory and {self.place} disagree.",
                    do="Nothing was written. Restart the controller, which reads the rows afresh, and report this.",
                    facts={"expected": expected, "changed": moved},
                )

    def forget(self, before: float, most: int) -> list[str]:
        """Deletes the history of jobs that ended before a time (UTC), the oldest first, at most so many: their rows,
        their leases and their events. Gives their ids.

        What is open is never among them, nor a job with a lease that is not released. Whatever the rows say of
        devices and tokens stays, and so do the events that name no job.
        """
        jobs, leases, events = tables.jobs, tables.leases, tables.events
        with self._transaction() as connection:
            query = (
                sa.select(jobs)
                .where(sa.not_(tables.UNFINISHED), jobs.c.submitted_at < before)
                .where(sa.not_(sa.exists().where(leases.c.job == jobs.c.id, tables.LIVE)))
                .order_by(jobs.c.submitted_at)
                .limit(most)
            )
            found = [rows.job_from(row._asdict()) for row in connection.execute(query)]
            gone = [job.id for job in found if job.ended_at is not None and job.ended_at < before]
            for start in range(0, len(gone), _CHUNK):
                some = gone[start : start + _CHUNK]
                connection.execute(sa.delete(leases).where(leases.c.job.in_(some)))
                connection.execute(sa.delete(events).where(events.c.job.in_(some)))
                connection.execute(sa.delete(jobs).where(jobs.c.id.in_(some)))
        return gone

    def close(self) -> None:
        """Closes every connection. What was committed stays."""
        self._let_go()
        self._reading.dispose()
        self._writing.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """The writing connection inside one transaction, which is rolled back on any error."""
        with self._in_words():
            if self._writer is None:
                self._writer = self._connect()
            with self._writer.begin():
                yield self._writer

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        """A cursor of the driver inside one transaction, as ``_transaction`` makes it."""
        with self._transaction() as connection:
            yield connection.connection.cursor()

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Gives the errors of the writing connection in Tenure's words, and drops a connection that may be unfit."""
        try:
            yield
        except (sa.exc.DBAPIError, self._driver_error) as error:
            failed = self.failure(error)
            if failed.unsure or getattr(error, "connection_invalidated", False):
                self._let_go()
            raise failed from error

    def _connect(self) -> sa.Connection:
        """A fresh writing connection."""
        return self._writing.connect()

    def _let_go(self) -> None:
        """Drops the writing connection, whatever state it is in; the next transaction opens another."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.invalidate()
                writer.close()
            except sa.exc.SQLAlchemyError:
                pass  # it was on its way out, and the error that mattered is on its way up

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read(self, query: sa.Select[Any]) -> list[dict[str, Any]]:
        try:
            with self._reading.connect() as connection:
                return [row._asdict() for row in connection.execute(query)]
        except sa.exc.DBAPIError as error:
            raise self.failure(error) from error

    def version(self) -> int:
        """The number of the last committed event; 0 before the first."""
        return int(self._read(sa.select(tables.head.c.version))[0]["version"])

    def events_after(self, seq: int, limit: int = 500) -> list[Stored]:
        """The committed events with numbers above ``seq``, in order, at most ``limit``."""
        query = sa.select(tables.events).where(tables.events.c.seq > seq).order_by(tables.events.c.seq).limit(limit)
        return [Stored(**row) for row in self._read(query)]

    def events_of_job(self, job: str, limit: int = 1000) -> list[Stored]:
        """The events that name a job, in order, at most ``limit``."""
        query = sa.select(tables.events).where(tables.events.c.job == job).order_by(tables.events.c.seq).limit(limit)
        return [Stored(**row) for row in self._read(query)]

    def job(self, job: str) -> Job | None:
        """A job by its whole id, open or closed."""
        found = self._read(sa.select(tables.jobs).where(tables.jobs.c.id == job))
        return rows.job_from(found[0]) if found else None

    def jobs_by_prefix(self, prefix: str, limit: int = 2) -> list[Job]:
        """The jobs whose ids begin with a text, by id, at most ``limit``: more than one means it is ambiguous."""
        ids = tables.jobs.c.id
        query = sa.select(tables.jobs).where(ids >= prefix, ids < prefix + "\U0010ffff").order_by(ids).limit(limit)
        return [rows.job_from(row) for row in self._read(query)]

    def jobs(
        self, *, state: str = "", owner: str = "", device: str = "", limit: int = 50, before: float | None = None
    ) -> list[Job]:
        """Jobs, the latest submission first, at most ``limit``; empty filters let everything pass.

        ``state`` is a state's name or ``open`` (all but ended), ``device`` one that some attempt was granted, and
        ``before`` (UTC seconds of submission) goes on where a page ended.
        """
        table, lent = tables.jobs, tables.leases
        query = sa.select(table).order_by(table.c.submitted_at.desc(), table.c.order_seq.desc()).limit(limit)
        if owner:
            query = query.where(table.c.owner == owner)
        if state == "open":
            query = query.where(tables.UNFINISHED)
        elif state:
            query = query.where(table.c.state == state)
        if device:
            query = query.where(sa.exists().where(lent.c.job == table.c.id, lent.c.device == device))
        if before is not None:
            query = query.where(table.c.submitted_at < before)
        return [rows.job_from(row) for row in self._read(query)]

    def leases_of(self, job: str, attempt: int | None = None) -> list[Lease]:
        """The leases of one attempt of a job, or of all of them; released ones too, by attempt and device."""
        table = tables.leases
        query = sa.select(table).where(table.c.job == job).order_by(table.c.attempt, table.c.device)
        if attempt is not None:
            query = query.where(table.c.attempt == attempt)
        return [rows.lease_from(row) for row in self._read(query)]

    def devices(self) -> list[Device]:
        """Every device as it was last written, by name. Whether its agent is connected now, only memory knows."""
        query = sa.select(tables.devices).order_by(tables.devices.c.name)
        return [rows.device_from(row) for row in self._read(query)]

    def key_lookup(self, owner: str, key: str) -> tuple[str, str] | None:
        """The job that an idempotency key made, and the hash of what it asked for."""
        return self.keys_lookup([(owner, key)]).get((owner, key))

    def keys_lookup(self, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
        """``key_lookup`` for many pairs of owner and key at once; keys that made no job are left out."""
        by_owner: dict[str, list[str]] = {}
        for owner, key in pairs:
            by_owner.setdefault(owner, []).append(key)
        table = tables.jobs
        wanted = sa.select(table.c.owner, table.c.key, table.c.id, table.c.body_hash)
        found = {}
        for owner, keys in by_owner.items():
            for start in range(0, len(keys), _CHUNK):
                query = wanted.where(table.c.owner == owner, table.c.key.in_(keys[start : start + _CHUNK]))
                for row in self._read(query):
                    found[(row["owner"], row["key"])] = (row["id"], row["body_hash"])
        return found


def _head(state: FleetState) -> Row:
    return state.version, state.sequence, state.last_arrival, state.token_floor


def _not_alone(place: str, version: int) -> LedgerError:
    return LedgerError(
        "already_running",
        f"Somebody else wrote to {place} after event {version}.",
        do="Only one controller may use a ledger: end the other one, then restart this one.",
        facts={"place": place, "version": version},
    )
