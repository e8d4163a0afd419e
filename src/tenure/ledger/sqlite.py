"""The ledger in one SQLite file: write-ahead log, full sync, one writer.

A new ledger is built under another name, synced, and renamed into place. So a ledger file that is empty, or whose -wal
is there without it, is never one that a crash interrupted in the making: it is a loss, and it is refused instead of
being taken for a new ledger, which would forget every lease and begin the fencing tokens again.

Nothing is repaired here. A file that cannot be what it should be is left alone, byte for byte, with a word on what to
do. The whole file is not checked at every start (that would grow with history): the header, the file's length and the
schema are, and every row that a start needs is read; damage further down shows when it is read, with the same words.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tenure.durable import make_dirs, sync_dir, sync_fd
from tenure.ledger import tables
from tenure.ledger.sqlite_files import check, failure, not_openable
from tenure.ledger.store import Ledger, LedgerError
from tenure.mounts import require_local

_BUSY_S = 5.0
_WAL_KEPT_BYTES = 4 * 1024 * 1024
#: The look-up of an idempotency key, which goes to the driver itself.
BY_KEY = "SELECT id, body_hash FROM jobs WHERE owner = ? AND key = ?"
#: Errors after which it is known that nothing of the transaction is on disk; after any other it may be.
_SURE = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT}
)


def open_sqlite(path: Path) -> SqliteLedger:
    """See ``Ledger.open``."""
    path = path.absolute()
    require_local(path.parent)
    try:
        make_dirs(path.parent)
        if not os.path.lexists(path) and not path.with_name(path.name + "-wal").exists():
            _create(path)
    except OSError as error:
        raise not_openable(path, error) from error
    except sa.exc.DBAPIError as error:
        raise failure(path, error.orig or error) from error
    check(path)
    ledger = SqliteLedger(path)
    try:
        ledger.migrate()
    except BaseException:
        ledger.close()
        raise
    return ledger


def _create(path: Path) -> None:
    """Makes an empty ledger, durably: its name appears only once all of it is on disk."""
    mark = f".{path.name}.tenure-tmp-"
    _remove(path.parent, mark)  # from a start that was killed: nobody else uses such a name
    building = path.with_name(f"{mark}{os.getpid()}")
    fd = os.open(building, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        engine = _engine(building, sa.pool.NullPool, ["PRAGMA journal_mode=WAL", "PRAGMA synchronous=OFF"])
        with engine.begin() as connection:
            tables.METADATA.create_all(connection)
            connection.execute(sa.insert(tables.revision).values(version_num=tables.REVISION))
            connection.execute(sa.insert(tables.head).values(tables.FIRST_HEAD))
        engine.dispose()
        sync_fd(fd)
        building.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the error that matters is on its way up
            _remove(path.parent, mark)
        raise
    finally:
        os.close(fd)
    sync_dir(path.parent)


def _remove(folder: Path, mark: str) -> None:
    for left in folder.iterdir():
        if left.name.startswith(mark):
            left.unlink(missing_ok=True)


class SqliteLedger(Ledger):
    """The ledger in a file. Made by ``Ledger.open``."""

    local = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._doubt = False
        keep = f"PRAGMA journal_size_limit={_WAL_KEPT_BYTES}"
        settings = ["PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "PRAGMA foreign_keys=ON", keep]
        writing = _engine(path, sa.pool.NullPool, settings)
        sa.event.listen(writing, "begin", _begin_immediate)
        super().__init__(writing, _engine(path, sa.pool.QueuePool, ["PRAGMA query_only=ON"], pool_size=4))

    @property
    def place(self) -> str:
        return str(self.path)

    def failure(self, error: Exception) -> LedgerError:
        origin = error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error
        failed = failure(self.path, origin)
        failed.unsure = _primary(origin) not in _SURE
        self._doubt = self._doubt or failed.unsure
        return failed

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[Any]:
        # On the driver alone: what SQLAlchemy does around a transaction costs as much as five of its statements.
        with self._in_words():
            if self._writer is None:
                self._writer = self._connect()
            raw: Any = self._writer.connection.dbapi_connection
            cursor = raw.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # the error that matters is on its way up
                    raw.rollback()
                if raw.in_transaction:
                    self._let_go()
                raise

    def keys_lookup(self, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
        # One by one: each is a walk down an index in memory, and a list of them would be a new statement each time.
        found = {}
        try:
            with contextlib.closing(self._reading.raw_connection()) as connection:
                cursor = connection.cursor()
                for pair in pairs:
                    row = cursor.execute(BY_KEY, pair).fetchone()
                    if row is not None:
                        found[pair] = (row[0], row[1])
        except (sa.exc.DBAPIError, sqlite3.Error) as error:
            raise self.failure(error) from error
        return found

    def migrate(self) -> None:
        """Brings an older schema up to date; does nothing, and imports nothing for it, where it is up to date."""
        with self._transaction() as connection:
            found = connection.execute(sa.select(tables.revision.c.version_num)).scalar_one_or_none()
            if found != tables.REVISION:
                from tenure.ledger.migrations import upgrade

                upgrade(connection)

    def take_back(self, revision: str) -> None:
        """Takes the schema back to an earlier revision, for the version that knows no later one."""
        with self._transaction() as connection:
            found = connection.execute(sa.select(tables.revision.c.version_num)).scalar_one_or_none()
            if found is not None and found > revision:
                from tenure.ledger.migrations import downgrade

                downgrade(connection, revision)

    def rest(self) -> None:
        """Moves the write-ahead log into the file and empties it, unless a reader is in the way just now."""
        if self._writer is None:
            return
        raw: Any = self._writer.connection.dbapi_connection
        try:
            raw.execute("PRAGMA busy_timeout=0")
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            raw.execute(f"PRAGMA busy_timeout={int(_BUSY_S * 1000)}")
        except sqlite3.Error:  # whatever it is, the next commit meets it again and can tell somebody
            self._let_go()

    def _connect(self) -> sa.Connection:
        """A writing connection. After an error that left open what is on disk, only with a log that is empty.

        A sync that failed once may be called a success the next time although the pages are gone, and frames of the
        failed transaction may be taken up by the next recovery. Moving the log into the file writes every page anew
        and leaves no frame behind.
        """
        connection = super()._connect()
        if self._doubt:
            raw: Any = connection.connection.dbapi_connection
            try:
                busy = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            except sqlite3.Error as error:
                connection.close()
                raise failure(self.path, error) from error
            if busy:
                connection.close()
                raise failure(self.path, sqlite3.OperationalError("the log could not be emptied: somebody reads it"))
            self._doubt = False
        return connection


def _primary(error: BaseException) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _begin_immediate(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _engine(path: Path, pool: type[sa.pool.Pool], settings: list[str], **options: Any) -> sa.Engine:
    def connect() -> sqlite3.Connection:
        # mode=rw: a file that was taken away is an error and never a new, empty database.
        raw = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, timeout=_BUSY_S, check_same_thread=False, isolation_level=None
        )
        try:
            for setting in settings:
                raw.execute(setting).fetchall()
        except BaseException:
            raw.close()
            raise
        return raw

    return sa.create_engine("sqlite://", creator=connect, poolclass=pool, **options)
