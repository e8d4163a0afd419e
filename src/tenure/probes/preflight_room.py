"""Mounts and what works on them, tried for real; room on disk and in memory."""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
import time

from tenure import mounts
from tenure.domain.quantity import comparable
from tenure.domain.reading import Reason, Unavailable
from tenure.domain.requirement import Look, Requirement
from tenure.probes import host
from tenure.probes.preflight_place import CannotLook, Place, absent, present

#: Errors that say that the file system does not do such a thing, whoever asks.
_NEVER = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EROFS, errno.EPERM)
_NO_LINKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
_FULL = (errno.ENOSPC, errno.EDQUOT)


class NotSo(Exception):
    """A property was tried and does not hold; the text says what was met."""


def mount(need: Requirement, place: Place) -> Look:
    """A mount point of this process's own view, and each property asked of it, tried in its top folder.

    Being there is read from the kernel's table after a touch, so that what is mounted on demand is mounted. A property
    that cannot be tried, as nothing can be created there, could not be looked at; that is not its absence.
    """
    found = place.stat(need.name)
    place.at(f"follow {need.name}")
    path = os.path.realpath(need.name)
    table = mounts.read_mounts()
    if not any(one.mount_point == "/" for one in table):
        raise CannotLook(Reason.NOT_SUPPORTED, "the table of mounts does not even list /")
    lies_on = mounts.mount_of(path, table)
    if lies_on is None:
        raise CannotLook(Reason.NOT_SUPPORTED, f"the table of mounts does not say where {path} lies")
    if found is None:
        return absent(need, f"{need.name} is not there; {place.ancestor(need.name)} is")
    if lies_on.mount_point != path:
        what = f"{path} lies on {lies_on.mount_point} ({lies_on.fs_type})"
        return absent(need, f"nothing is mounted there: {what}", path=path)
    shown = f"{path} is {lies_on.fs_type} from {lies_on.source}"
    met = []
    for name in need.properties:
        place.at(f"try {name} on {path}")
        try:
            met.append(_TRY[name](path, place))
        except NotSo as why:
            return absent(need, f"{shown}, and {name} does not work there: {why}", path=path)
        except CannotLook as problem:
            raise CannotLook(problem.reason, f"{shown}; {name} could not be tried: {problem.words}") from None
    if need.free:
        free = _free(path, place)
        if free < _bytes(need.free):
            return absent(need, f"{shown}, and {size(free)} of {need.free} are free", path=path)
        met.append(f"{size(free)} free")
    return present(need, f"{shown}{': ' if met else ''}{', '.join(met)}", path=path)


def _new_name(folder: str) -> str:
    return os.path.join(folder, f".tenure-need-{secrets.token_hex(6)}")  # noqa: PTH118


def _make(path: str, body: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.write(fd, body)
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108
    except OSError:
        return  # it was not made, or what it lies on went away


def _write(folder: str, place: Place) -> str:
    """Creates a small file, syncs it and removes it."""
    path = _new_name(folder)
    try:
        _make(path, b"tenure\n", 0o600)
    except OSError as problem:
        if problem.errno in (*_NEVER, *_FULL, errno.EACCES):
            raise NotSo(f"creating a file: {problem.strerror}") from None
        raise CannotLook.of(path, problem) from None
    finally:
        _remove(path)
    return "a file was written"


def _writable(folder: str) -> bool:
    path = _new_name(folder)
    try:
        _make(path, b"", 0o600)
    except OSError:
        return False
    finally:
        _remove(path)
    return True


def _symlink(folder: str, place: Place) -> str:
    """Makes a symbolic link and reads it. The same in the job's scratch is the control."""
    path = _new_name(folder)
    try:
        os.symlink("target", path)  # noqa: PTH211
        read = os.readlink(path)  # noqa: PTH115
    except OSError as problem:
        if problem.errno not in _NO_LINKS:
            raise CannotLook.of(path, problem) from None
        if problem.errno == errno.EPERM and not _writable(folder):  # a folder that nobody may change says it too
            raise CannotLook.of(path, problem) from None
        if folder != place.scratch:
            _symlink(place.scratch, place)  # raises where not even that works
        raise NotSo(f"making a symbolic link: {problem.strerror}") from None
    finally:
        _remove(path)
    if read != "target":
        raise NotSo(f"a link that was made reads {read!r}")
    return "a symbolic link was made"


def _exec(folder: str, place: Place) -> str:
    """Creates a program and runs it; where nothing can be created, the kernel's own flag tells, where it is set."""
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise NotSo("it is mounted noexec")
    path = _new_name(folder)
    try:
        try:
            _make(path, b"#!/bin/sh\nexit 7\n", 0o700)
            os.chmod(path, 0o700)  # noqa: PTH101
        except OSError as problem:
            raise CannotLook.of(path, problem) from None
        problem_met = _runs(path)
    finally:
        _remove(path)
    if problem_met is None:
        return "a program was run"
    if folder != place.scratch:
        try:
            _exec(place.scratch, place)
        except NotSo as why:
            raise CannotLook(Reason.NOT_SUPPORTED, f"{problem_met}; nor does one run in the scratch: {why}") from None
    raise NotSo(f"a program that was made there does not run: {problem_met}")


def _runs(path: str) -> str | None:
    """None where the program ran, else what was met."""
    for _ in range(20):
        try:
            process = subprocess.Popen([path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=-3)
        except OSError as problem:
            if problem.errno == errno.ETXTBSY:  # another thread's fork still has it open for a moment
                time.sleep(0.02)
                continue
            return problem.strerror or str(problem)
        try:
            code = process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            raise CannotLook(Reason.TIMEOUT, f"{path} did not end within 5 s") from None
        return None if code == 7 else f"it ended with {code} instead of 7"
    raise CannotLook(Reason.UNPARSEABLE, f"{path} stayed busy")


_TRY = {"write": _write, "symlink": _symlink, "exec": _exec}


def disk(need: Requirement, place: Place) -> Look:
    """Free room, for a writer without privileges, on the file system of the job's scratch."""
    free = _free(place.scratch, place)
    words = f"{size(free)} free on the file system of the job's scratch"
    return present(need, words) if free >= _bytes(need.least) else absent(need, words)


def _free(path: str, place: Place) -> int:
    place.at(f"statvfs {path}")
    found = host.disk_free(path)
    if isinstance(found, Unavailable):
        raise CannotLook(found.reason, found.detail)
    if not found.value.size:
        raise CannotLook(Reason.OUT_OF_RANGE, f"{path}: its file system does not say how large it is")
    return found.value.free


def memory(need: Requirement, place: Place) -> Look:
    """MemAvailable, as the kernel estimates it."""
    available = host.sample().memory_available
    if isinstance(available, Unavailable):
        raise CannotLook(available.reason, f"MemAvailable cannot be read: {available.detail}")
    words = f"MemAvailable is {size(available.value)}"
    return present(need, words) if available.value >= _bytes(need.least) else absent(need, words)


def _bytes(text: str) -> float:
    """A quantity's normal text as bytes, rounded down to what a whole byte is."""
    number = comparable(text).number
    assert number is not None, text
    return number / 10**12


def size(count: int) -> str:
    """Bytes as people say them, rounded down, so that nobody is told of room that is not there."""
    for unit, power in (("T", 40), ("G", 30), ("M", 20)):
        if count >= 1 << power:
            return f"{(count * 10 >> power) / 10:g}{unit}"
    return f"{count >> 10}K"
