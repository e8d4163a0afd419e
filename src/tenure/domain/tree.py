"""A tree of files as one stream of bytes and as one hash: what a job's staged files are, wherever they lie.

An entry is a kind, a name and a value. Names are bytes, relative, with ``/`` between their parts; entries are in the
order of their names, compared part by part as bytes.

    f  a file                     value: the sha256 of its bytes, in hexadecimal digits
    x  a file that may be run     the same
    l  a symbolic link            value: its target, as it is
    d  a folder with nothing in it   value: empty. Every other folder follows from what lies in it

**The hash of a tree** is the sha256 of ``KIND SPACE NAME NUL VALUE NUL`` of every entry, one after the other. Owners,
times, sizes on disk and all mode bits but the owner's right to run are no part of it, nor of what is carried: so the
same commit has the same hash whoever checked it out. Rejected: tar, where one tree has many forms, a name may lead
anywhere, and an entry may be a device; here what must not be cannot be said.

The stream: ``MAGIC``, then for each entry its kind (1 byte), the length of its name (4 bytes, little endian) and the
name; a link's target likewise; a file's bytes in pieces of at most ``PIECE`` (4 bytes of length, the bytes), a piece
of length 0, and the 32 bytes of their sha256. At the end ``e``, 8 bytes with the number of entries, and the 32 bytes
of the tree's hash. Nothing follows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from hashlib import sha256
from typing import Protocol

MAGIC = b"tenure tree 1\n"
FILE, EXECUTABLE, LINK, FOLDER, END = b"f", b"x", b"l", b"d", b"e"
#: Bytes of a file that travel as one piece, at most.
PIECE = 1 << 20
#: Bytes of one part of a name, and of a whole name or link: what Linux can hold.
LONGEST_PART, LONGEST_NAME = 255, 4095
#: Entries of one tree, at most.
MOST_ENTRIES = 2_000_000

_LENGTH, _COUNT = struct.Struct("<I"), struct.Struct("<Q")


class TreeError(ValueError):
    """A stream that is no tree, or names what must not be. ``name`` is the entry at fault, where there is one."""

    def __init__(self, message: str, name: bytes = b"") -> None:
        super().__init__(message)
        self.name = name


def shown(name: bytes) -> str:
    """A name for people: text where it is text, and its other bytes as escapes; cut where it is very long."""
    text = name.decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= 200 else text[:150] + "…" + text[-40:])


def order(name: bytes) -> list[bytes]:
    """What entries are sorted by."""
    return name.split(b"/")


def check_name(name: bytes) -> None:
    """Raises ``TreeError`` for a name that no entry may have: it must lead into the tree and nowhere else."""
    if not name or len(name) > LONGEST_NAME:
        raise TreeError(f"the name {shown(name)} is {len(name)} bytes long; 1 to {LONGEST_NAME} may be", name)
    if b"\0" in name:
        raise TreeError(f"the name {shown(name)} holds a NUL", name)
    if name.startswith(b"/"):
        raise TreeError(f"the name {shown(name)} is absolute", name)
    for part in name.split(b"/"):
        if part in (b"", b".", b".."):
            raise TreeError(f"the name {shown(name)} has the part {part.decode()!r}", name)
        if len(part) > LONGEST_PART:
            raise TreeError(f"the name {shown(name)} has a part of {len(part)} bytes; a file system holds 255", name)


def check_target(name: bytes, target: bytes) -> None:
    """Raises ``TreeError`` for what no link can hold. Where it leads is its own affair: nothing here follows it."""
    if not target or len(target) > LONGEST_NAME or b"\0" in target:
        raise TreeError(f"{shown(name)} is a link to {len(target)} bytes that no link can hold", name)


class TreeHash:
    """The hash of a tree, entry by entry; holds the entries to their order, in which none can lie below another's."""

    def __init__(self) -> None:
        self._sum = sha256()
        self._last: bytes | None = None
        self.entries = 0

    def add(self, kind: bytes, name: bytes, value: bytes = b"") -> None:
        """Takes the next entry in. Raises ``TreeError`` where it must not be the next."""
        self.check(name)
        self._sum.update(b"%s %s\0%s\0" % (kind, name, value))
        self._last = name
        self.entries += 1

    def check(self, name: bytes) -> None:
        """Raises ``TreeError`` where an entry of that name must not be the next."""
        check_name(name)
        if self.entries >= MOST_ENTRIES:
            raise TreeError(f"{shown(name)} is one entry more than the {MOST_ENTRIES} that a tree may have", name)
        if self._last is not None:
            if order(name) <= order(self._last):
                raise TreeError(f"{shown(name)} comes after {shown(self._last)}: twice, or out of order", name)
            if name.startswith(self._last + b"/"):
                raise TreeError(f"{shown(name)} would lie below {shown(self._last)}, which holds nothing", name)

    def digest(self) -> bytes:
        """The hash so far, 32 bytes."""
        return self._sum.digest()

    def hexdigest(self) -> str:
        """The hash so far, 64 hexadecimal digits."""
        return self._sum.hexdigest()


class TreeWriter:
    """Writes a tree as a stream. ``write`` is called with bytes; leave it out where the hash alone is wanted."""

    def __init__(self, write: Callable[[bytes], object] = len) -> None:
        self._write = write
        self._file: tuple[bytes, bytes] | None = None
        self._sum = sha256()
        self.hash = TreeHash()
        write(MAGIC)

    def folder(self, name: bytes) -> None:
        """A folder with nothing in it."""
        self.hash.add(FOLDER, name)
        self._head(FOLDER, name)

    def link(self, name: bytes, target: bytes) -> None:
        """A symbolic link."""
        check_target(name, target)
        self.hash.add(LINK, name, target)
        self._head(LINK, name)
        self._write(_LENGTH.pack(len(target)) + target)

    def begin(self, name: bytes, *, executable: bool) -> None:
        """A file, whose bytes follow with ``data`` and end with ``finish``."""
        self.hash.check(name)
        self._file = (EXECUTABLE if executable else FILE, name)
        self._sum = sha256()
        self._head(*self._file)

    def data(self, piece: bytes) -> None:
        """The next bytes of the file."""
        for start in range(0, len(piece), PIECE):
            part = piece[start : start + PIECE]
            self._sum.update(part)
            self._write(_LENGTH.pack(len(part)) + part)

    def finish(self) -> str:
        """The end of the file; gives its sha256 in hexadecimal digits."""
        assert self._file is not None
        kind, name = self._file
        value = self._sum.hexdigest()
        self.hash.add(kind, name, value.encode())
        self._write(_LENGTH.pack(0) + self._sum.digest())
        return value

    def close(self) -> str:
        """The end of the tree; gives its hash."""
        self._write(END + _COUNT.pack(self.hash.entries) + self.hash.digest())
        return self.hash.hexdigest()

    def _head(self, kind: bytes, name: bytes) -> None:
        self._write(kind + _LENGTH.pack(len(name)) + name)


class Sink(Protocol):
    """What is done with each entry that is read. Every name has passed ``check_name``."""

    def folder(self, name: bytes) -> None:
        """A folder with nothing in it."""

    def link(self, name: bytes, target: bytes) -> None:
        """A symbolic link."""

    def begin(self, name: bytes, *, executable: bool) -> None:
        """A file whose bytes follow."""

    def data(self, piece: bytes) -> None:
        """Bytes of the file."""

    def finish(self, value: str) -> None:
        """The end of the file; ``value`` is the sha256 of what was handed over."""


class Nowhere:
    """A sink that keeps nothing: for those who only want to know whether a stream is what it says."""

    def folder(self, name: bytes) -> None: ...
    def link(self, name: bytes, target: bytes) -> None: ...
    def begin(self, name: bytes, *, executable: bool) -> None: ...
    def data(self, piece: bytes) -> None: ...
    def finish(self, value: str) -> None: ...


def read_tree(read: Callable[[int], bytes], sink: Sink) -> str:
    """Reads a whole tree and gives its hash, having held every byte against it.

    ``read(n)`` gives at most ``n`` bytes and none at the end only. Raises ``TreeError``; what the sink got until then
    is not to be used.
    """
    hashed = TreeHash()
    take = _taker(read)
    if take(len(MAGIC), b"") != MAGIC:
        raise TreeError("it does not begin as a tree does")
    name = b""
    while (kind := take(1, name)) != END:
        if kind not in (FILE, EXECUTABLE, LINK, FOLDER):
            raise TreeError(f"after {shown(name)} comes an entry of the kind {kind!r}, which there is not", name)
        name = take(_bounded(_LENGTH.unpack(take(4, name))[0], LONGEST_NAME, name), name)
        hashed.check(name)
        if kind == FOLDER:
            sink.folder(name)
            hashed.add(kind, name)
        elif kind == LINK:
            target = take(_bounded(_LENGTH.unpack(take(4, name))[0], LONGEST_NAME, name), name)
            check_target(name, target)
            sink.link(name, target)
            hashed.add(kind, name, target)
        else:
            hashed.add(kind, name, _read_file(take, sink, kind, name))
    if _COUNT.unpack(take(8, name))[0] != hashed.entries or take(32, name) != hashed.digest():
        raise TreeError("its entries are not those that its end tells of")
    if read(1):
        raise TreeError("something follows its end")
    return hashed.hexdigest()


def _read_file(take: Callable[[int, bytes], bytes], sink: Sink, kind: bytes, name: bytes) -> bytes:
    sink.begin(name, executable=kind == EXECUTABLE)
    held = sha256()
    while size := _bounded(_LENGTH.unpack(take(4, name))[0], PIECE, name):
        piece = take(size, name)
        held.update(piece)
        sink.data(piece)
    if take(32, name) != held.digest():
        raise TreeError(f"the bytes of {shown(name)} are not those that were packed", name)
    sink.finish(held.hexdigest())
    return held.hexdigest().encode()


def _taker(read: Callable[[int], bytes]) -> Callable[[int, bytes], bytes]:
    def take(size: int, name: bytes) -> bytes:
        parts: list[bytes] = []
        while size:
            part = read(size)
            if not part:
                raise TreeError(f"it ends in the middle{f', at {shown(name)}' if name else ''}", name)
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    return take


def _bounded(size: int, most: int, name: bytes) -> int:
    if size > most:
        raise TreeError(f"after {shown(name)} comes a length of {size}, and {most} may be", name)
    return int(size)
