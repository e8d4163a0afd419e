"""Trees on a disk: listed, packed into a stream, unpacked from one, and held against what was packed.

Every step is taken from an open folder to a name in it, and no link is ever followed: whatever is swapped for a link
while this goes on, nothing outside the tree is read or written. Names are bytes. Standard library only: the command
line packs with the same code with which an agent unpacks.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tenure.domain.tree import EXECUTABLE, FILE, FOLDER, LINK, PIECE, TreeWriter, order, shown

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: What opening a name gives where it is no folder (any more), or is gone.
_ELSEWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Walker:
    """Opens the folders of a tree from its root on, one at a time, keeping the last one open."""

    def __init__(self, root: int, *, make: bool = False, mode: int = 0o700) -> None:
        self._root = root
        self._make = make
        self._mode = mode
        self._parts: list[bytes] = []
        self._fd = os.dup(root)

    def close(self) -> None:
        """Closes what is open; the root is the caller's."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Walker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def folder(self, parts: list[bytes]) -> int:
        """The folder of these parts, open until the next call. Raises ``OSError``, also where a part is a link."""
        if parts != self._parts:
            known = len(self._parts)
            if parts[:known] != self._parts:
                self._go(os.dup(self._root), [])
                known = 0
            for part in parts[known:]:
                self._go(self._open(part), [*self._parts, part])
        return self._fd

    def parent(self, name: bytes) -> tuple[int, bytes]:
        """The open folder that a name lies in, and its last part."""
        *parts, last = name.split(b"/")
        return self.folder(parts), last

    def _open(self, part: bytes) -> int:
        if self._make:
            try:
                os.mkdir(part, self._mode, dir_fd=self._fd)
            except FileExistsError:
                return os.open(part, _FOLDER, dir_fd=self._fd)
            fd = os.open(part, _FOLDER, dir_fd=self._fd)
            _set_mode(fd, self._mode)
            return fd
        return os.open(part, _FOLDER, dir_fd=self._fd)

    def _go(self, fd: int, parts: list[bytes]) -> None:
        os.close(self._fd)
        self._fd, self._parts = fd, parts


def _set_mode(fd: int, mode: int) -> None:
    """Sets the mode bits where they are not so already: there are shares that refuse to be told."""
    if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
        os.fchmod(fd, mode)


def every_name(root: int) -> Iterator[bytes]:
    """Every name below an open folder but those of folders that hold something, in the order of a tree."""
    with Walker(root) as walker:
        waiting: list[Iterator[bytes]] = [iter(_listed(root))]
        parts: list[bytes] = []
        while waiting:
            part = next(waiting[-1], None)
            if part is None:
                waiting.pop()
                parts = parts[:-1]
                continue
            here = [*parts, part]
            try:
                fd = walker.folder(here)
            except OSError as error:
                if error.errno not in _ELSEWHERE:
                    error.filename = b"/".join(here)
                    raise
                yield b"/".join(here)  # no folder: a file, a link, or something else
                continue
            inside = _listed(fd)
            if inside:
                waiting.append(iter(inside))
                parts = here
            else:
                yield b"/".join(here)


def _listed(fd: int) -> list[bytes]:
    return sorted(map(os.fsencode, os.listdir(fd)))


@dataclass(slots=True)
class Packed:
    """What came of packing: ``size`` is bytes of files, ``values`` the (kind, value) of every entry.

    ``changed`` are files that changed meanwhile, ``gone`` names that were not there (any more), ``special`` what is
    neither file, link nor folder.
    """

    hash: str = ""
    size: int = 0
    values: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict)
    changed: list[bytes] = field(default_factory=list)
    gone: list[bytes] = field(default_factory=list)
    special: list[bytes] = field(default_factory=list)


def pack(
    root: int,
    names: Iterable[bytes],
    write: Callable[[bytes], object] = len,
    *,
    kinds: Mapping[bytes, bytes] | None = None,
    progress: Callable[[int], object] = id,
) -> Packed:
    """Packs the named entries below an open folder, in the order given. Without ``write`` only the hash is made.

    ``kinds`` says what an entry is where the file system cannot: ``x`` or ``f``, or ``l`` for a file that holds a
    link's target. ``progress`` is told the bytes of files read so far. Raises ``OSError`` naming what cannot be read,
    and ``TreeError``.
    """
    done, tree = Packed(), TreeWriter(write)
    with Walker(root) as walker:
        for name in names:
            try:
                fd, last = walker.parent(name)
                found = os.stat(last, dir_fd=fd, follow_symlinks=False)
                _pack_one(tree, done, fd, last, name, found, (kinds or {}).get(name), progress)
            except OSError as error:
                if error.errno not in _ELSEWHERE:
                    error.filename = error.filename2 = None
                    raise OSError(error.errno, error.strerror, os.fsdecode(name)) from error
                done.gone.append(name)
    done.hash = tree.close()
    return done


def _pack_one(
    tree: TreeWriter,
    done: Packed,
    folder: int,
    last: bytes,
    name: bytes,
    found: os.stat_result,
    kind: bytes | None,
    progress: Callable[[int], object],
) -> None:
    if stat.S_ISLNK(found.st_mode):
        target = os.readlink(last, dir_fd=folder)
        tree.link(name, target)
        done.values[name] = LINK, target
    elif stat.S_ISDIR(found.st_mode):
        fd = os.open(last, _FOLDER, dir_fd=folder)
        try:
            empty = not os.listdir(fd)  # noqa: PTH208
        finally:
            os.close(fd)
        if empty:
            tree.folder(name)
            done.values[name] = FOLDER, b""
        else:
            done.changed.append(name)  # filled since it was listed; or git names a folder that is not its own
    elif stat.S_ISREG(found.st_mode):
        # Not blocking: it may have become a pipe since.
        fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            _pack_file(tree, done, fd, name, kind, progress)
        finally:
            os.close(fd)
    else:
        done.special.append(name)


def _pack_file(
    tree: TreeWriter, done: Packed, fd: int, name: bytes, kind: bytes | None, progress: Callable[[int], object]
) -> None:
    before = os.fstat(fd)
    if not stat.S_ISREG(before.st_mode):
        done.special.append(name)
        return
    if kind == LINK:
        target = os.read(fd, 4096)
        tree.link(name, target)
        done.values[name] = LINK, target
        return
    runs = bool(before.st_mode & stat.S_IXUSR) if kind is None else kind == EXECUTABLE
    tree.begin(name, executable=runs)
    left = before.st_size  # no further: a file may grow faster than it can be read
    while left and (piece := os.read(fd, min(PIECE, left))):
        tree.data(piece)
        left -= len(piece)
        done.size += len(piece)
        progress(done.size)
    value = tree.finish()
    done.values[name] = EXECUTABLE if runs else FILE, value.encode()
    if left or _state(before) != _state(os.fstat(fd)):
        done.changed.append(name)


def _state(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Unpacker:
    """A sink of ``tree.read_tree`` that makes a tree below an open, empty folder. ``umask`` is the job's."""

    def __init__(self, root: int, umask: int) -> None:
        self._folder_mode = 0o777 & ~umask | 0o700
        self._umask = umask
        self._walker = Walker(root, make=True, mode=self._folder_mode)
        self._fd = -1
        self._name = b""
        self._value = b""
        self.values: dict[bytes, tuple[bytes, bytes]] = {}
        self.size = 0

    def close(self) -> None:
        """Closes what is open."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._walker.close()

    def folder(self, name: bytes) -> None:
        """A folder with nothing in it."""
        with _named(name):
            self._walker.folder(name.split(b"/"))
        self.values[name] = FOLDER, b""

    def link(self, name: bytes, target: bytes) -> None:
        """A symbolic link, made and never followed."""
        with _named(name):
            fd, last = self._walker.parent(name)
            os.symlink(target, last, dir_fd=fd)
        self.values[name] = LINK, target

    def begin(self, name: bytes, *, executable: bool) -> None:
        """A new file; one that is there is never opened."""
        mode = (0o777 if executable else 0o666) & ~self._umask | (0o700 if executable else 0o600)
        self._name, self._kind = name, EXECUTABLE if executable else FILE
        with _named(name):
            fd, last = self._walker.parent(name)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(last, flags, mode, dir_fd=fd)
            _set_mode(self._fd, mode)

    def data(self, piece: bytes) -> None:
        """Bytes of the file."""
        view = memoryview(piece)
        with _named(self._name):
            while view:
                view = view[os.write(self._fd, view) :]
        self.size += len(piece)

    def finish(self, value: str) -> None:
        """The end of the file; what a share only says on closing is heard."""
        fd, self._fd = self._fd, -1
        with _named(self._name):
            os.close(fd)
        self.values[self._name] = self._kind, value.encode()


class _named:
    """Gives an error of the system the name of the entry it came with."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, os.fsdecode(self._name)) from error


def difference(wanted: Mapping[bytes, tuple[bytes, bytes]], found: Packed) -> tuple[bytes, str] | None:
    """The first entry in which a tree on disk is not what it should be, and how; ``None`` where it is all of it."""
    for name in sorted(wanted.keys() | found.values.keys() | set(found.special), key=order):
        ours, theirs = wanted.get(name), found.values.get(name)
        if ours == theirs:
            continue
        if theirs is None:
            return name, "is not there after unpacking"
        if ours is None:
            return name, "is there after unpacking and was not packed"
        if {ours[0], theirs[0]} == {FILE, EXECUTABLE}:
            return name, "lost its exec bit" if ours[0] == EXECUTABLE else "became executable"
        if ours[0] != theirs[0]:
            return name, f"was packed as {_KINDS[ours[0]]} and became {_KINDS[theirs[0]]}"
        what = "leads elsewhere" if ours[0] == LINK else "holds other bytes"
        return name, f"{what} after unpacking"
    return None


_KINDS = {FILE: "a file", EXECUTABLE: "a file", LINK: "a link", FOLDER: "a folder"}

__all__ = ["Packed", "Unpacker", "Walker", "difference", "every_name", "pack", "shown"]
