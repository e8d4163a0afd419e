"""A job's scratch: where it lies, how it goes at the job's end, and which ones are kept.

It lies in the attempt's folder, or where the settings say (``scratch_dir``). ``scratch.json`` says so wherever that
is not the plain case, and that it is to be kept.

Removal trusts nothing in it. The tree is renamed first: from then on it has one remover, and the kernel refuses to
rename what something is mounted on. Every folder below is likewise moved up into the root of what goes before it is
looked into, so depth costs nothing, no path is ever followed, and a mount is never entered, whatever it was bound to.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.durable import write_atomic
from tenure.mounts import lacks

if TYPE_CHECKING:
    from tenure.agent import records as r
    from tenure.agent.shell import Shell

log = logging.getLogger("tenure.agent.scratch")

_RECORD = "scratch.json"
_GONE = ".scratch-gone-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Seconds that working out the size of one kept scratch may take; beyond it the size is unknown.
SIZE_S = 5.0
#: Seconds that the file system of ``scratch_dir`` may take to answer.
ANSWER_S = 10.0


# -- where


def record_of(folder: Path) -> dict[str, Any]:
    """What is on record of an attempt's scratch; empty in the plain case. Raises ``ValueError`` where it is damaged."""
    try:
        body = json.loads((folder / _RECORD).read_bytes())
    except FileNotFoundError:
        return {}
    if not isinstance(body, dict):
        raise ValueError(f"{folder / _RECORD} holds no object")
    return body


def place_of(folder: Path) -> Path:
    """Where the scratch of the attempt in this folder lies."""
    return Path(str(record_of(folder).get("path") or folder / "scratch"))


async def choose(shell: Shell, attempt: r.Attempt, folder: Path) -> tuple[Path, str]:
    """Where the scratch of an attempt is to lie, and why there where it was meant to lie elsewhere.

    That is the attempt's folder, or one below ``scratch_dir``. A staged tree does not go where exec bits or links would
    be lost, and nothing goes where the file system does not answer in time: then it is the attempt's folder after all.
    """
    own = folder / "scratch"
    with contextlib.suppress(OSError, ValueError):
        before = record_of(folder)
        if before and not is_left_over(folder):
            return place_of(folder), str(before.get("why", ""))
    if not shell.options.scratch_dir:
        return own, ""
    below = Path(shell.options.scratch_dir) / f"tenure-{shell.identity.agent}"
    try:
        async with asyncio.timeout(ANSWER_S):
            found = await asyncio.to_thread(_looked_at, below)
    except TimeoutError:
        return own, f"{below} did not answer within {ANSWER_S:g} s"
    except OSError as error:
        return own, f"{below} cannot be used: {error.strerror}"
    if found and attempt.spec is not None and attempt.spec.stage:
        return own, f"the file system of {shell.options.scratch_dir} {' and '.join(found)}"
    return below / f"{folder.name}.{secrets.token_hex(4)}", ""


def _looked_at(below: Path) -> tuple[str, ...]:
    """What the file system of a folder lacks; the folder is made, for this user alone as far as it can be told so."""
    below.mkdir(mode=0o700, exist_ok=True)
    return lacks(below)


def make(folder: Path, place: Path, *, keep: bool, why: str = "") -> None:
    """Makes the scratch of an attempt, for this user alone. Doing it again changes nothing.

    ``why`` says why it lies elsewhere than it was meant to. Raises ``OSError`` where somebody else's folder is there.
    """
    if keep or why or place != folder / "scratch":
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Its own folder is not named: that may be set aside, and then another attempt's has its name.
        body = {"v": 1, "path": "" if place == folder / "scratch" else str(place), "kept": keep, "why": why}
        write_atomic(folder / _RECORD, json.dumps(body).encode())
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not stat.S_ISDIR(place.lstat().st_mode):
        raise OSError(errno.EEXIST, "something else than a folder is there", str(place))


def is_left_over(folder: Path) -> bool:
    """Whether an attempt's folder is what is left of one that was over and discarded."""
    return (folder / "supervisor.json").exists() and not (folder / "spec.json").exists()


def begun(folder: Path) -> bool:
    """Whether a command was started in it: its supervisor's record is there, and no seal."""
    try:
        body = json.loads((folder / "supervisor.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(body, dict) and not body.get("sealed")


def is_kept(folder: Path) -> bool:
    """Whether the scratch is to be kept. One of an attempt that never began holds nothing to keep. One whose record
    is damaged is kept: nobody may be told that it was not wanted."""
    try:
        return bool(record_of(folder).get("kept")) and begun(folder)
    except (OSError, ValueError):
        return True


# -- removing


@dataclass(frozen=True, slots=True)
class Left:
    """Something that could not be removed, and why."""

    path: str
    why: str


def finish(folder: Path) -> list[Left]:
    """Removes the scratch of an attempt of which nothing runs any more, unless it is kept. Gives what is left."""
    if is_kept(folder):
        return []
    left = [one for path in (place_of(folder), *remains(folder)) for one in remove(path)]
    if not left:
        forget(folder)
    for one in left:
        log.error("of the scratch of %s is left: %s: %s", folder.name, one.path, one.why)
    return left


def is_remains(path: Path) -> bool:
    """Whether it is what a removal left, or one that died under way."""
    return _GONE in path.name


def remains(folder: Path) -> list[Path]:
    """What removals of an attempt's scratch left, or died under way with."""
    place = place_of(folder)
    elsewhere = [] if place.parent == folder else list(place.parent.glob(f"{place.name}{_GONE}*"))
    return sorted([*folder.glob(f"*{_GONE}*"), *elsewhere])


def remove(path: Path) -> list[Left]:
    """Removes a folder with all that is in it; a link or a file by that name is removed itself. Gives what is left."""
    try:
        path.rmdir()  # most are empty
        return []
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return []
    except OSError:
        pass
    gone = path.with_name(f"{path.name.partition(_GONE)[0]}{_GONE}{secrets.token_hex(8)}")
    try:
        path.rename(gone)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [Left(str(path), _why(error))]
    return _empty(gone)


def _empty(root: Path) -> list[Left]:
    """Removes a renamed folder: what is below is moved up into it first, level by level."""
    left: list[Left] = []
    mark, count = secrets.token_hex(8), 0
    try:
        top = _open(str(root), None)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [Left(str(root), _why(error))]
    try:
        waiting: list[tuple[str | None, str]] = [(None, str(root))]
        while waiting:
            name, was = waiting.pop()
            try:
                here = top if name is None else _open(name, top)
            except OSError as error:
                left += [] if error.errno == errno.ENOENT else [Left(was, _why(error))]
                continue
            try:
                for entry in os.listdir(here):  # noqa: PTH208
                    if name is None and entry.startswith(mark):
                        continue
                    inside = f"{was}/{entry}"
                    try:
                        if stat.S_ISDIR(os.stat(entry, dir_fd=here, follow_symlinks=False).st_mode):
                            count += 1
                            moved = f"{mark}-{count}"
                            _may_move(entry, here)
                            os.rename(entry, moved, src_dir_fd=here, dst_dir_fd=top)
                            waiting.append((moved, inside))
                        else:
                            os.unlink(entry, dir_fd=here)
                    except FileNotFoundError:
                        continue
                    except OSError as error:
                        left.append(Left(inside, _why(error)))
            finally:
                if here != top:
                    os.close(here)
            if name is not None:
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    try:
        root.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        left = left or [Left(str(root), _why(error))]
    return [Left(f"{one.path} (now below {root})", one.why) for one in left]


def _open(name: str, top: int | None) -> int:
    """Opens a folder of ours, whatever its mode bits say."""
    _may_move(name, top)
    return os.open(name, _FOLDER, dir_fd=top)


def _may_move(name: str, folder: int | None) -> None:
    """Gives its owner every right on a folder: to be listed, emptied, and moved (``..`` is written then)."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        if os.fstat(fd).st_mode & 0o700 != 0o700:
            with contextlib.suppress(OSError):  # not ours: what follows says so
                os.chmod(f"/proc/self/fd/{fd}", 0o700)  # noqa: PTH101 - the folder that is open, by no path
    finally:
        os.close(fd)


def _why(error: OSError) -> str:
    if error.errno == errno.EBUSY:
        return "something is mounted on it (umount it, then: rc admin clean)"
    return error.strerror or str(error)


# -- telling


def size_of(path: Path, within_s: float = SIZE_S) -> int | None:
    """The bytes that a tree takes on disk; ``None`` where that cannot be told within the time. Follows no links."""
    end, total, waiting = time.monotonic() + within_s, 0, [os.fspath(path)]
    try:
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
            if time.monotonic() > end:
                return None
    except OSError:
        return None
    return total


def kept(attempts: Path) -> Iterator[tuple[Path, Path, float | None]]:
    """(attempt's folder, scratch, UTC time of its end) of every scratch that is kept; ``None`` where it still runs."""
    for folder in sorted(attempts.iterdir()):
        if not (folder / _RECORD).exists() or not is_kept(folder):
            continue
        place = place_of(folder)
        if place.is_dir():
            yield folder, place, ended_at(folder)


def ended_at(folder: Path) -> float | None:
    """When the attempt of a folder ended, as its exit record says; ``None`` where there is none."""
    try:
        body = json.loads((folder / "exit.json").read_bytes())
        at = body.get("ended_at")
        return float(at) if isinstance(at, int | float) else (folder / "exit.json").stat().st_mtime
    except (OSError, ValueError, AttributeError):
        return None


def forget(folder: Path) -> None:
    """Takes the record of a kept scratch that was removed."""
    (folder / _RECORD).unlink(missing_ok=True)
