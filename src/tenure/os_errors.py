"""What an error of the operating system means for a file, and the command that does something about it.

Beside ``tenure.errors``, which every command imports and which has to stay small: this is read when something failed.
"""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

from tenure.errors import TenureError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_WRONG_KIND = (errno.EISDIR, errno.ENOTDIR, errno.EADDRINUSE, errno.ELOOP, errno.EEXIST)
_NO_ACCESS = (errno.EACCES, errno.EPERM)


def told(error: OSError, what: str = "") -> TenureError:
    """The error under its code, naming the file at fault. ``what`` begins the sentence: ``the agent cannot use``."""
    path = os.fspath(error.filename) if isinstance(error.filename, str | os.PathLike) else ""
    why = error.strerror or str(error)
    if error.errno == errno.ENOTDIR and path:
        path, why = _not_a_folder(path), "it is a file, and a folder is needed there"
    said = f"{what} {path or 'a file'}: {why}" if what else f"{path}: {why}" if path else why
    return TenureError(
        "disk_full" if error.errno in _FULL else "io_error",
        said,
        do=advice(error.errno, path),
        facts={"path": path or None, "errno": error.errno},
    )


def advice(number: int | None, path: str) -> str:
    """What to type about an error number at a path (empty where it is not known)."""
    if not path:
        return "make room on that disk" if number in _FULL else "look at the folder that TENURE_HOME names"
    quoted, folder = shlex.quote(path), shlex.quote(str(Path(path).parent))
    if number in _FULL:
        return f"make room, then try again: df -h {folder}"
    if number in _WRONG_KIND:
        return f"move what is there aside, then try again: mv {quoted} {shlex.quote(path + '.aside')}"
    if number in _NO_ACCESS:
        return f"look at who may: ls -ld {folder} {quoted}; if it is yours: chmod u+rwX {folder} {quoted}"
    if number == errno.EROFS:
        return "its disk is mounted read-only: set TENURE_HOME to a folder that can be written"
    return f"look at it: ls -ld {folder} {quoted}"


def _not_a_folder(path: str) -> str:
    """The part of a path that stands where a folder should; the path itself where it cannot be told."""
    parts = [Path(path), *Path(path).parents]
    return str(next((part for part in parts if os.path.lexists(part) and not part.is_dir()), path))
