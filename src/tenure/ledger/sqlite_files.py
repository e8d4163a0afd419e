"""What may be wrong with a ledger's file, and the words for it. Looks only; changes nothing."""

from __future__ import annotations

import errno
import os
import shlex
import sqlite3
import stat
import struct
from pathlib import Path

from tenure.ledger import tables
from tenure.ledger.store import LedgerError

_MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100
#: With fewer bytes free than this a failed write is told as a full disk, whatever SQLite called it.
_FULL_BYTES = 256 * 1024
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_ACCESS = frozenset({sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH})


def check(path: Path) -> None:
    """Raises ``LedgerError`` for a file that cannot be a whole ledger of this version or an older one.

    Costs the same however long the history is. The file may have a write-ahead log beside it, as a killed controller
    leaves it; then its length says nothing, because pages may be in the log still.
    """
    log = path.with_name(path.name + "-wal")
    try:
        logged = log.stat().st_size if log.exists() else 0
        if not os.path.lexists(path):
            raise _damaged(path, "it is gone, but its write-ahead log is there", aside=log)
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
            raise _damaged(path, f"it is {kind}")
        for mode, word in ((os.R_OK, "read"), (os.W_OK, "written")):
            if not os.access(path, mode):
                raise not_openable(path, OSError(errno.EACCES, f"it may not be {word} by this user"))
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError as error:
        raise not_openable(path, error) from error
    if not header:
        raise _damaged(path, "it is empty, and Tenure never leaves one empty")
    if not header.startswith(_MAGIC):
        raise _damaged(path, "it does not begin as a SQLite database does")
    if len(header) < _HEADER_BYTES:
        raise _damaged(path, f"it is cut off after {len(header)} bytes")
    _check_length(path, header, found.st_size, logged)
    _check_revision(path, logged)


def _check_length(path: Path, header: bytes, size: int, logged: int) -> None:
    page = struct.unpack_from(">H", header, 16)[0]
    page = 65536 if page == 1 else page
    changes, pages, valid_for = (struct.unpack_from(">I", header, at)[0] for at in (24, 28, 92))
    if page < 512 or page & (page - 1):
        raise _damaged(path, f"its header gives pages of {page} bytes")
    if not logged and changes == valid_for and size < pages * page:
        raise _damaged(path, f"it is cut off after {size} of {pages * page} bytes")


def _check_revision(path: Path, logged: int) -> None:
    try:
        # Read-only, so that closing it again moves nothing from the log into a file that may be damaged. Even so SQLite
        # would make an empty log where there is none, unless it takes the file for one that nobody can write.
        how = "mode=ro" if logged else "mode=ro&immutable=1"
        raw = sqlite3.connect(f"{path.as_uri()}?{how}", uri=True, timeout=5.0)
        try:
            known = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            found = raw.execute("SELECT version_num FROM alembic_version").fetchall() if "head" in known else []
        finally:
            raw.close()
    except sqlite3.Error as error:
        raise failure(path, error) from error
    if "alembic_version" not in known:
        raise _damaged(path, "it is a database, but not a ledger of Tenure")
    for (revision,) in found:
        if revision > tables.REVISION:
            raise LedgerError(
                "damaged_state",
                f"{path} was written by a newer Tenure: its schema is {revision}, this one knows up to "
                f"{tables.REVISION}. Nothing was changed.",
                do="Use the newer version again (tenure --version shows which this is), or another TENURE_HOME.",
                facts={"path": str(path), "schema": revision, "known": tables.REVISION},
            )


def failure(path: Path, error: BaseException) -> LedgerError:
    """What an error of SQLite means for whoever asked, with the file and what to do."""
    code = int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    free = _free_bytes(path)
    facts = {"path": str(path), "sqlite": name, "free_bytes": free}
    tight = free is not None and free < _FULL_BYTES
    if code == sqlite3.SQLITE_FULL or (tight and code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)):
        limit = "" if tight else " (so a quota or a limit on the file's size stands in the way)"
        return LedgerError(
            "disk_full",
            f"{path} cannot grow: {free} bytes are free there{limit}. Nothing of the command was kept.",
            do=f"Make room, then try again: df -h {_quoted(path.parent)}",
            facts=facts,
        )
    if code in _DAMAGE:
        return _damaged(path, f"SQLite says: {error}")
    if code == sqlite3.SQLITE_CONSTRAINT:
        return LedgerError(
            "internal",
            f"The ledger refused what had been decided, and kept nothing of it: {error}.",
            do="This is a defect of Tenure: please report it with the controller's log.",
            facts=facts,
        )
    if code in _ACCESS:
        return LedgerError(
            "io_error",
            f"{path} could not be opened or written: {error}.",
            do=f"Look at who may: ls -ld {_quoted(path.parent)} {_quoted(path)}",
            facts=facts,
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LedgerError(
            "io_error",
            f"Another process keeps {path} locked.",
            do=f"Find it: fuser -v {_quoted(path)}",
            facts=facts,
        )
    return LedgerError(
        "io_error",
        f"{path} could not be read or written: {error} ({name}).",
        do="Look for disk errors: dmesg | tail",
        facts=facts,
    )


def not_openable(path: Path, error: OSError) -> LedgerError:
    """What an error of the operating system means, met before SQLite was asked."""
    facts = {"path": str(path), "errno": error.errno, "free_bytes": _free_bytes(path)}
    why = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        message = f"{path} cannot be made: {why}."
        return LedgerError(
            "disk_full", message, do=f"Make room, then try again: df -h {_quoted(path.parent)}", facts=facts
        )
    do = f"Look at who may: ls -ld {_quoted(path.parent)} {_quoted(path)}"
    do += f"; if it is yours: chmod u+rwX {_quoted(path.parent)} {_quoted(path)}"
    return LedgerError("io_error", f"{path} could not be opened: {why}.", do=do, facts=facts)


def _damaged(path: Path, why: str, aside: Path | None = None) -> LedgerError:
    folder, kept = path.parent, path.parent.with_name(path.parent.name + ".damaged")
    moved = aside or path
    return LedgerError(
        "damaged_state",
        f"{path} is damaged: {why}. Nothing was changed.",
        do=f"First keep a copy: cp -a {_quoted(folder)} {_quoted(kept)}. Then put a backup in its place, or begin an "
        f"empty ledger: mv {_quoted(moved)} {_quoted(moved.with_name(moved.name + '.damaged'))}",
        facts={"path": str(path), "why": why},
    )


def _free_bytes(path: Path) -> int | None:
    """What an ordinary user may still write there; ``None`` where the system does not say."""
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
