"""The machine-wide claim of a device: an flock on one path per device UUID that is the same for every user.

The lock is the truth; the line in the file is only a hint for words. The lock belongs to the open file description: it
lasts until the last copy of the descriptor is closed, so a copy handed to a supervisor keeps the claim while the agent
is away. Hence nothing here ever unlocks: ``close`` lets go of one copy. (LOCK_UN on one copy would free all.)

A supervisor's copy dies with the supervisor, even when processes of its job are left. So the agent keeps its own copy
until the tree is proven empty, and a holder that vanished without ``release`` leaves its line behind: the next claim
finds it as ``left_behind``, and has to look for survivors before it offers the device.

Limits: containers with a /run/lock of their own have claims of their own, unless the folder is shared into them; and
any local user can take a lock, as any could use the device. Whoever made the folder can remove files in it; that shows
(``intact``), and the claim is taken again on the new file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import stat
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from tenure.errors import TenureError

PARENTS = (Path("/run/lock"), Path("/dev/shm"), Path("/tmp"))
_STICKY = 0o1777
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Holder:
    """Who wrote the line in a claim file. A hint: it may be missing, stale or untrue; ``since`` in UTC seconds."""

    user: str
    uid: int
    controller: str
    pid: int
    since: float

    def __str__(self) -> str:
        return f"controller of {self.user} ({self.controller}, pid {self.pid})"


@dataclass(frozen=True, slots=True)
class Occupied:
    """Somebody else has the claim. ``holder`` is None where no readable line says who."""

    uuid: str
    path: Path
    holder: Holder | None


class Claim:
    """A claim that is held. Hand ``fd`` to a supervisor; close or release it when the device is proven empty."""

    def __init__(self, uuid: str, path: Path, fd: int, left_behind: Holder | None) -> None:
        self.uuid = uuid
        self.path = path
        self.fd = fd
        self.left_behind = left_behind

    def intact(self) -> bool:
        """Whether the path still leads to the locked file. False: it was removed, and another claim may exist."""
        return self.fd >= 0 and _same_file(self.fd, self.path)

    def close(self) -> None:
        """Lets go of this copy; the claim lasts while a supervisor has one. The line stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def release(self) -> None:
        """The orderly end: empties the line, then closes. Only where no supervisor has a copy."""
        if self.intact():
            _write(self.fd, self.path, "")
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def claims_dir(parents: Sequence[Path] = PARENTS) -> Path:
    """The folder of all claims of this machine: ``tenure`` in the first of the parents that every user may write to.

    Raises TenureError where it cannot be used. It never goes on to the next parent then: two users on two paths would
    both hold the device.
    """
    for parent in parents:
        try:
            mode = parent.stat().st_mode
        except OSError:
            continue  # not there: not there for anybody
        if stat.S_ISDIR(mode) and stat.S_IMODE(mode) == _STICKY:
            return _sticky_folder(parent / "tenure")
    raise _unusable(parents[0], "none of " + ", ".join(map(str, parents)) + " is a folder of mode 1777")


def claim(uuid: str, controller: str, *, folder: Path | None = None) -> Claim | Occupied:
    """Claims a device for this process, without waiting. ``controller`` is how words name the claimant's controller."""
    path = path_of(uuid, folder)
    for _ in range(_TRIES):
        fd = _open(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return Occupied(uuid, path, holder_of(uuid, folder=folder))
        except BaseException:
            os.close(fd)
            raise
        if not _same_file(fd, path):  # removed between opening and locking: this lock guards nothing
            os.close(fd)
            continue
        left_behind = _parse(os.pread(fd, 4096, 0))
        me = Holder(_user(os.geteuid()), os.geteuid(), controller, os.getpid(), time.time())
        _write(fd, path, json.dumps(asdict(me)) + "\n")
        return Claim(uuid, path, fd, left_behind)
    raise _unusable(path, "it is removed again and again while it is being locked")


def holder_of(uuid: str, *, folder: Path | None = None) -> Holder | None:
    """What the line of a claim file says; None where there is none. Says nothing of whether the lock is held."""
    try:
        fd = os.open(path_of(uuid, folder), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return _parse(os.pread(fd, 4096, 0))
    except OSError:
        return None
    finally:
        os.close(fd)


def path_of(uuid: str, folder: Path | None = None) -> Path:
    """The claim file of a device. Bytes that a file name cannot hold are percent-encoded, the same for everybody."""
    name = quote(uuid, safe="")
    if not uuid or len(name) > 200:
        raise ValueError(f"not a device UUID: {uuid!r}")
    return (claims_dir() if folder is None else folder) / f"{name}.claim"


def _sticky_folder(path: Path) -> Path:
    for _ in range(_TRIES):
        try:
            path.mkdir()
        except FileExistsError:
            pass
        except OSError as e:
            raise _unusable(path, e.strerror or str(e)) from e
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise _unusable(path, "it is not a folder")
        if stat.S_IMODE(found.st_mode) == _STICKY:
            return path
        if found.st_uid == os.geteuid():
            path.chmod(_STICKY)  # mkdir is subject to the umask
        else:
            time.sleep(0.01)  # another user may be between mkdir and chmod
    raise _unusable(path, f"its mode is {stat.S_IMODE(path.lstat().st_mode):o}, not 1777")


def _open(path: Path) -> int:
    """Opens the claim file, creating it where needed. Without O_CREAT where it exists: in a sticky folder the kernel
    may refuse that flag on another user's file (fs.protected_regular)."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for _ in range(_TRIES):
        try:
            fd = os.open(path, os.O_RDONLY | flags)
        except FileNotFoundError:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o666)
            except FileExistsError:
                continue
            except OSError as e:
                raise _unusable(path, e.strerror or str(e)) from e
            os.fchmod(fd, 0o666)
        except PermissionError:
            time.sleep(0.01)  # another user may be between creation and fchmod
            continue
        except OSError as e:
            reason = "it is a symbolic link" if e.errno == errno.ELOOP else e.strerror or str(e)
            raise _unusable(path, reason) from e
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:  # a second name: writing would reach another file
            os.close(fd)
            raise _unusable(path, "it is not a regular file with this one name")
        return fd
    raise _unusable(path, "it cannot be opened for reading")


def _same_file(fd: int, path: Path) -> bool:
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _write(locked: int, path: Path, line: str) -> None:
    """Writes the hint, through a descriptor of its own that is closed again: flock is not affected by that."""
    with contextlib.suppress(OSError):  # not allowed, or no room: the lock is held all the same, only the words lack
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if os.fstat(fd).st_ino == os.fstat(locked).st_ino:
                os.ftruncate(fd, 0)
                os.pwrite(fd, line.encode(), 0)
        finally:
            os.close(fd)


def _parse(data: bytes) -> Holder | None:
    try:
        found = json.loads(data)
        return Holder(
            str(found["user"]), int(found["uid"]), str(found["controller"]), int(found["pid"]), float(found["since"])
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # anybody may have written it
        return None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _unusable(path: Path, why: str) -> TenureError:
    return TenureError(
        "io_error",
        f"Devices cannot be claimed through {path}: {why}.",
        do="Make it what every user of this machine can lock (a folder of mode 1777, files of mode 0666), as root.",
        facts={"path": str(path), "why": why},
    )
