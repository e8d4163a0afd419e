"""Builds the folders that a power cut could have left, from a record of what a program did.

The model is strict, and assumes no particular file system:

- A write, a truncation or a growth is durable once an fsync or fdatasync of that file has succeeded after it. A write
  through a descriptor opened with O_SYNC or O_DSYNC is durable by itself.
- A name (create, mkdir, link, rename, unlink, rmdir) is durable once an fsync of its folder has succeeded after it; a
  rename between two folders, once both were synced. An fsync of a file does nothing for its name.
- Each of these, while not durable, may be there or not, whatever happened to the others; a write may be there in part.
  A rename within one folder is never half done.

Every cut (after each operation) is looked at in four ways:

- ``undone``: nothing is there that was not durable.
- ``kept``: everything is there; that is what killing the program alone shows.
- ``prefix``: of what was not durable, a random number of operations in order, and a part of the next write.
- ``subset``: of what was not durable, a random subset, of each write perhaps only some 512-byte sectors.

``Replay.check_complete`` first proves that the record is whole: replayed in full it must give the folder that the
program left behind. Files in ``ignored`` (SQLite's -shm: shared memory that recovery rebuilds) are in no folder built.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.record import Kind, Operation, Recording, snapshot

SECTOR = 512
NEVER = 1 << 62
Pieces = tuple[tuple[int, int], ...]  # parts of a write's data, as (from, to)


@dataclass(eq=False, slots=True)
class Node:
    """A file, folder or link of the model; told apart by identity, because inode numbers come back."""

    kind: str
    content: bytearray = field(default_factory=bytearray)
    children: dict[str, Node] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Change:
    """One recorded change, the node that it concerns, and from which operation on it is durable."""

    operation: Operation
    node: Node
    folder: Node | None
    folder2: Node | None
    durable_from: int = NEVER


@dataclass(frozen=True, slots=True)
class Cut:
    """One state a power cut could have left: after operation ``at`` (-1: before the first), in one of the four ways."""

    replay: Replay
    at: int
    way: str
    kept: Mapping[int, Pieces | None]

    @property
    def marks(self) -> list[str]:
        """What the program had said by then, in order."""
        return self.replay.marks_until(self.at)

    def build(self, folder: Path) -> Path:
        """Makes ``folder`` be that state, whatever was in it before."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_tree(self.replay.tree(self.at, self.kept), folder)
        return folder

    def __str__(self) -> str:
        last = self.replay.recording.operations[self.at] if self.at >= 0 else None
        said = "the beginning" if last is None else f"operation {self.at} ({last.kind.name} {last.name or last.inode})"
        return f"{self.way} after {said}, {len(self.kept)} of the undurable changes kept; marks: {self.marks[-3:]}"


class IncompleteRecord(Exception):
    """The record cannot be replayed faithfully, so no conclusion may be drawn from it."""


class Replay:
    """The cuts of one recording."""

    def __init__(self, recording: Recording, *, ignored: Callable[[str], bool] = lambda name: name.endswith("-shm")):
        self.recording = recording
        self._ignored = ignored
        self._changes: list[Change] = []
        self._syncs: list[int] = []
        self._before, live = self._initial()
        self._root = live[recording.root_inode]
        self._understand(live)
        self._marks = [(o.number, o.data.decode()) for o in recording.operations if o.kind is Kind.MARK]

    def _initial(self) -> tuple[dict[Node, tuple[bytes, dict[str, Node]]], dict[int, Node]]:
        entries = self.recording.before
        live = {inode: Node(entry.kind) for inode, entry in entries.items()}
        before = {}
        for inode, entry in entries.items():
            children = {name: live[child] for name, child in entry.children.items() if not self._ignored(name)}
            before[live[inode]] = (entry.data, children)
        return before, live

    def _understand(self, live: dict[int, Node]) -> None:
        """Turns inode numbers into nodes, and finds for each change the sync that made it durable."""
        shared_memory: set[int] = {
            inode
            for entry in self.recording.before.values()
            for name, inode in entry.children.items()
            if self._ignored(name)
        }
        waiting: dict[Node, list[Change]] = {}
        makes = {Kind.CREATE: "file", Kind.MKDIR: "folder", Kind.SYMLINK: "link"}
        for op in self.recording.operations:
            if op.kind in makes:
                live[op.inode] = Node(makes[op.kind], bytearray(op.data) if op.kind is Kind.SYMLINK else bytearray())
                shared_memory.discard(op.inode)
                if self._ignored(op.name):
                    shared_memory.add(op.inode)
            if op.kind is Kind.MARK or op.inode in shared_memory:
                continue
            if op.kind is Kind.UNSUPPORTED:
                raise IncompleteRecord(f"operation {op.number}: {op.name} cannot be replayed")
            if op.kind is Kind.SYNC_ALL:
                self._syncs.append(op.number)
                for changes in waiting.values():
                    self._make_durable(changes, op.number)
                waiting.clear()
                continue
            node = live.get(op.inode)
            if node is None:
                raise IncompleteRecord(
                    f"operation {op.number} ({op.kind.name}) is on a file whose creation was not seen"
                )
            if op.kind is Kind.SYNC:
                self._syncs.append(op.number)
                self._make_durable(waiting.pop(node, []), op.number)
                continue
            change = Change(op, node, live.get(op.folder), live.get(op.folder2))
            self._changes.append(change)
            if op.kind is Kind.WRITE_SYNCED:
                change.durable_from = op.number
                self._syncs.append(op.number)
            elif change.folder is None:
                waiting.setdefault(node, []).append(change)
            else:
                for folder in {change.folder, change.folder2} - {None}:
                    waiting.setdefault(folder, []).append(change)  # type: ignore[arg-type]

    @staticmethod
    def _make_durable(changes: Iterable[Change], number: int) -> None:
        for change in changes:
            if change.operation.kind is Kind.RENAME and change.folder is not change.folder2:
                # The first of the two folders' syncs is only half of it.
                if change.durable_from == NEVER:
                    change.durable_from = -number - 2
                    continue
                number = max(number, -change.durable_from - 2)
            change.durable_from = number

    def marks_until(self, at: int) -> list[str]:
        """The marks up to and with an operation."""
        return [text for number, text in self._marks if number <= at]

    def undurable(self, at: int) -> list[Change]:
        """The changes before a cut that a power cut may take back."""
        return [c for c in self._changes if c.operation.number <= at and not 0 <= c.durable_from <= at]

    def tree(self, at: int, kept: Mapping[int, Pieces | None]) -> Node:
        """The folder after the durable changes and the kept ones; ``None`` keeps a change whole."""
        for node, (content, children) in self._before.items():
            node.content, node.children = bytearray(content), dict(children)
        for change in self._changes:
            if change.operation.kind in (Kind.CREATE, Kind.MKDIR):
                change.node.content, change.node.children = bytearray(), {}
        for change in self._changes:
            number = change.operation.number
            if number > at:
                break
            if 0 <= change.durable_from <= at:
                _apply(change, None)
            elif number in kept:
                _apply(change, kept[number])
        return self._root

    def check_complete(self) -> None:
        """Raises where a full replay is not the folder that the program left: then the shim missed something."""
        last = len(self.recording.operations)
        replayed = _flat(self.tree(last, {c.operation.number: None for c in self._changes}))
        entries = snapshot(self.recording.root)
        live = {inode: Node(entry.kind, bytearray(entry.data)) for inode, entry in entries.items()}
        for inode, entry in entries.items():
            live[inode].children = {n: live[c] for n, c in entry.children.items() if not self._ignored(n)}
        real = _flat(live[self.recording.root_inode])
        if replayed != real:
            differing = sorted(n for n in replayed.keys() | real.keys() if replayed.get(n) != real.get(n))
            raise IncompleteRecord(f"the replay differs from what the program left in: {', '.join(differing)}")

    def cuts(self, *, points: int | None = None, samples: int = 2, seed: int = 0) -> Iterator[Cut]:
        """The cuts, each way of each point; reproducible from the seed.

        ``points`` bounds the number of points for ``kept``, ``prefix`` and ``subset`` (``None``: after every
        operation); ``samples`` is how many random states each of the latter two gives at a point. ``undone`` is always
        exhaustive: its state changes only at a sync, so the last point before each sync is the hardest of its run.
        """
        last = len(self.recording.operations) - 1
        for at in sorted({-1, last, *(number - 1 for number in self._syncs), *self._syncs}):
            yield Cut(self, at, "undone", {})
        dice = random.Random(seed)
        every = range(-1, last + 1)
        chosen: Sequence[int] = every if points is None or points >= len(every) else sorted(dice.sample(every, points))
        for at in chosen:
            loose = self.undurable(at)
            yield Cut(self, at, "kept", {c.operation.number: None for c in loose})
            if not loose:
                continue
            for _ in range(samples):
                yield Cut(self, at, "prefix", _prefix(loose, dice))
                yield Cut(self, at, "subset", _subset(loose, dice))


def _prefix(loose: Sequence[Change], dice: random.Random) -> dict[int, Pieces | None]:
    whole = dice.randrange(len(loose))
    kept: dict[int, Pieces | None] = {change.operation.number: None for change in loose[:whole]}
    torn = loose[whole].operation
    if torn.kind is Kind.WRITE:
        kept[torn.number] = ((0, dice.randrange(len(torn.data) + 1)),)
    return kept


def _subset(loose: Sequence[Change], dice: random.Random) -> dict[int, Pieces | None]:
    kept: dict[int, Pieces | None] = {}
    for change in loose:
        op = change.operation
        fate = dice.choice(("kept", "lost", "part"))
        if op.kind is Kind.WRITE and fate == "part":
            kept[op.number] = tuple(piece for piece in sectors(op.offset, len(op.data)) if dice.random() < 0.5)
        elif fate != "lost":
            kept[op.number] = None
    return kept


def sectors(offset: int, length: int) -> list[tuple[int, int]]:
    """A write's data cut at the sector borders of the file."""
    edges = [0, *range(SECTOR - offset % SECTOR, length, SECTOR), length]
    return list(itertools.pairwise(edges))


def _apply(change: Change, pieces: Pieces | None) -> None:
    op, node = change.operation, change.node
    folder = change.folder
    if op.kind in (Kind.WRITE, Kind.WRITE_SYNCED):
        content = node.content
        for start, end in ((0, len(op.data)),) if pieces is None else pieces:
            if end > start:
                content.extend(bytes(max(0, op.offset + end - len(content))))
                content[op.offset + start : op.offset + end] = op.data[start:end]
    elif op.kind in (Kind.TRUNCATE, Kind.GROW):
        if op.kind is Kind.TRUNCATE:
            del node.content[op.offset :]
        node.content.extend(bytes(max(0, op.offset - len(node.content))))
    elif folder is None:
        raise IncompleteRecord(f"operation {op.number} ({op.kind.name}) is in a folder that was not seen")
    elif op.kind is Kind.UNLINK:
        if folder.children.get(op.name) is node:
            del folder.children[op.name]
    elif op.kind is Kind.RENAME:
        assert change.folder2 is not None
        if folder.children.get(op.name) is node:
            del folder.children[op.name]
        change.folder2.children[op.name2] = node
    else:
        folder.children[op.name] = node


def _flat(root: Node, prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, node in root.children.items():
        found[prefix + name] = node.kind if node.kind == "folder" else (node.kind, bytes(node.content))
        if node.kind == "folder":
            found |= _flat(node, f"{prefix}{name}/")
    return found


def write_tree(root: Node, folder: Path, made: dict[Node, Path] | None = None) -> None:
    """Writes a model folder to the disk; two names of one file become a hard link."""
    made = {} if made is None else made
    for name, node in root.children.items():
        path = folder / name
        if node.kind == "folder":
            path.mkdir()
            write_tree(node, path, made)
        elif node.kind == "link":
            path.symlink_to(os.fsdecode(bytes(node.content)))
        elif node in made:
            path.hardlink_to(made[node])
        else:
            path.write_bytes(node.content)
            made[node] = path


def losses(
    recording: Recording,
    check: Callable[[Path, list[str]], str | None],
    scratch: Path,
    *,
    points: int | None = None,
    samples: int = 2,
    seed: int = 0,
    killed: bool = False,
    most: int | None = None,
) -> list[str]:
    """The cuts that a check objects to, in words; after ``most`` of them it stops looking.

    ``check`` gets a folder to recover, and what the program had said by then.
    The record is proven complete first, unless processes were ``killed`` while it was made: each may have left its very
    last operation unrecorded. A check that raises has objected too: recovery must not fail.
    """
    replay = Replay(recording)
    if not killed:
        replay.check_complete()
    found = []
    for cut in replay.cuts(points=points, samples=samples, seed=seed):
        try:
            objection = check(cut.build(scratch), cut.marks)
        except Exception as error:
            objection = f"{type(error).__name__}: {error}"
        if objection is not None:
            found.append(f"{cut}: {objection}")
            if len(found) == most:
                break
    return found
