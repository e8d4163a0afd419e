"""What of a folder is to be staged: what git tracks and what it does not ignore; without git, everything.

Git is asked, never imitated, and its index is left as it is. A submodule, or another repository within, is asked for
its own in turn. What the index holds and the folder does not (deleted, or left out by a sparse checkout) is not
carried, and said. Where git itself was told that the file system keeps no exec bits or links, they are taken from its
index.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

from tenure.agent import trees
from tenure.domain.tree import EXECUTABLE, FILE, LINK, order, shown
from tenure.errors import TenureError
from tenure.mounts import lacks

GIT_S = 300.0
_MODES = {b"100644": FILE, b"100755": EXECUTABLE, b"120000": LINK}


@dataclass(slots=True)
class Survey:
    """What is to be packed. ``kinds`` says what an entry is where the file system cannot; ``notes`` is for people.

    ``dirty`` is ``None`` where there is no commit to compare with.
    """

    names: list[bytes] = field(default_factory=list)
    kinds: dict[bytes, bytes] = field(default_factory=dict)
    commit: str = ""
    dirty: bool | None = None
    notes: list[str] = field(default_factory=list)


def survey(folder: str) -> Survey:
    """Lists what of a folder is to be staged. Raises ``stage_failed`` in git's words where it cannot say."""
    found = Survey()
    if not _is_git(folder):
        found.names = _everything(folder)
        return found
    found.names = sorted(set(_listed(folder, b"", found)), key=order)
    head = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD", may_fail=True).strip().decode()
    if head:
        found.commit = head
        found.dirty = bool(_git(folder, "status", "--porcelain", "-z", "--", "."))
    return found


def _everything(folder: str) -> list[bytes]:
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return list(trees.every_name(root))
    finally:
        os.close(root)


def _is_git(folder: str) -> bool:
    try:
        done = _run(folder, ["rev-parse", "--is-inside-work-tree"])
    except FileNotFoundError as error:
        above = os.path.abspath(folder)  # noqa: PTH100
        while above != os.path.dirname(above):  # noqa: PTH120
            if os.path.lexists(os.path.join(above, ".git")):  # noqa: PTH118
                raise TenureError(
                    "stage_failed",
                    f"{folder} belongs to a git repository, and there is no git to say what belongs to the tree",
                    do="install git, or copy what is wanted to a folder of its own",
                ) from error
            above = os.path.dirname(above)  # noqa: PTH120
        return False
    if done.returncode == 0:
        return done.stdout.strip() == b"true"
    if b"not a git repository" in done.stderr:
        return False
    raise _failed(folder, done.stderr)


def _listed(folder: str, prefix: bytes, found: Survey) -> Iterator[bytes]:
    """The names below a folder of a repository, each with a prefix; of repositories within too."""
    fallback = _index_decides(folder, found)
    sparse = 0
    for line in _git(folder, "ls-files", "-z", "-t", "-s").split(b"\0"):
        if not line:
            continue
        head, _, name = line.partition(b"\t")
        tag, mode, *_ = head.split()
        path = os.path.join(os.fsencode(folder), name)  # noqa: PTH118
        if tag == b"S" and not os.path.lexists(path):
            sparse += 1
        elif mode == b"160000":
            yield from _within(path, prefix + name, found)
        else:
            if mode in _MODES and fallback:
                _take_from_index(path, prefix + name, _MODES[mode], fallback, found)
            yield prefix + name
    if sparse:
        found.notes.append(f"{sparse} files that the sparse checkout leaves out were not staged")
    for name in _git(folder, "ls-files", "-z", "--others", "--exclude-standard").split(b"\0"):
        if name.endswith(b"/"):
            yield from _within(os.path.join(os.fsencode(folder), name[:-1]), prefix + name[:-1], found)  # noqa: PTH118
        elif name:
            yield prefix + name


def _within(path: bytes, name: bytes, found: Survey) -> Iterator[bytes]:
    """The files of a repository within: a submodule that is checked out, or one that git only knows as a folder."""
    if os.path.islink(path) or not os.path.isdir(path):  # noqa: PTH112, PTH114
        return
    if os.path.lexists(os.path.join(path, b".git")):  # noqa: PTH118
        yield from _listed(os.fsdecode(path), name + b"/", found)
        return
    found.notes.append(f"the submodule {shown(name)} is not checked out: it is staged as an empty folder")
    yield name


def _index_decides(folder: str, found: Survey) -> frozenset[str]:
    """Of what the index knows better than the file system: ``bits``, ``links``."""
    asked = _git(folder, "config", "--type=bool", "--get-regexp", r"^core\.(filemode|symlinks)$", may_fail=True)
    said = {line.split()[0].lower(): line.split()[-1] for line in asked.splitlines() if line.strip()}
    wanting = set()
    words: list[str] = []
    if said.get(b"core.symlinks") == b"false":
        wanting.add("links")
        words.append("stores no symlinks")
    if said.get(b"core.filemode") == b"false":
        wanting.add("bits")
        words.append("presents no exec bits")
    else:
        # The folder may have been moved to another file system, or be mounted another way, since git looked.
        own = os.fsdecode(_git(folder, "rev-parse", "--absolute-git-dir").rstrip(b"\n"))
        try:
            if os.stat(own).st_dev == os.stat(folder).st_dev:  # noqa: PTH116
                there = [one for one in lacks(own) if "exec bit" in one]
                wanting |= {"bits"} if there else set()
                words += there
        except OSError:
            pass  # nothing can be written there: then what the file system presents is taken for what it is
    if wanting:
        said_of = " and ".join(words)
        found.notes.append(f"the file system of {folder} {said_of}: taken from git's index instead")
    return frozenset(wanting)


def _take_from_index(path: bytes, name: bytes, kind: bytes, fallback: frozenset[str], found: Survey) -> None:
    if os.path.islink(path):  # noqa: PTH114
        return
    if (kind == LINK and "links" in fallback) or (kind != LINK and "bits" in fallback):
        found.kinds[name] = kind


def _git(folder: str, *words: str, may_fail: bool = False) -> bytes:
    done = _run(folder, [*words])
    if done.returncode and not may_fail:
        raise _failed(folder, done.stderr)
    return done.stdout if done.returncode == 0 else b""


def _run(folder: str, words: list[str]) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"):
        env.pop(name, None)  # of a hook that calls this, and of another repository
    try:
        return subprocess.run(
            ["git", "-C", folder, *words], env=env, capture_output=True, stdin=subprocess.DEVNULL, timeout=GIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise TenureError(
            "stage_failed", f"git {words[0]} did not answer within {GIT_S:g} s in {folder}", do="look at that disk"
        ) from error


def _failed(folder: str, said: bytes) -> TenureError:
    return TenureError(
        "stage_failed",
        f"git cannot say what belongs to {folder}: {said.decode('utf-8', 'replace').strip()[:500]}",
        do="see to what git says, or copy what is wanted to a folder of its own",
        facts={"path": folder},
    )
