"""Which file system a path lies on, and whether it may hold state.

SQLite in WAL mode shares memory between processes and relies on POSIX locks; over a network file system neither can be
trusted, and a ledger there is corrupted silently and late. So a known network file system is refused, by name. What
cannot be told (no /proc, an unknown FUSE program) is not called a network file system: unknown is not refused.

The table is /proc/self/mountinfo (man 5 proc_pid_mountinfo). A longest-prefix match over it is wrong where one mount
covers another, so the lookup walks the tree of mounts as the kernel does. Links are followed, through a network share
too: a home on NFS with a link to a local disk is common and right. Following them touches the share, and a dead server
does not answer, so that step has a deadline; after it the path is judged as it is spelt.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tenure.errors import TenureError

# fmt: off
NETWORK_TYPES = frozenset({
    "9p", "acfs", "afpfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "exfs", "fhgfs", "gfs", "gfs2",
    "glusterfs", "gpfs", "kafs", "lustre", "mmfs", "ncp", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs",
    "prl_fs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "vmhgfs", "wekafs", "webdav",
})
NETWORK_FUSE = frozenset({
    "afp", "azure-storage-fuse", "blobfuse", "blobfuse2", "ceph", "ceph-fuse", "cephfs", "curlftpfs", "davfs2", "dfuse",
    "gcsfuse", "geesefs", "glusterfs", "goofys", "juicefs", "mount-s3", "mountpoint-s3", "quobyte", "rclone", "s3fs",
    "seaweedfs", "smbnetfs", "sshfs", "vmhgfs-fuse",
})
# fmt: on
VOLATILE_TYPES = frozenset({"tmpfs", "ramfs", "devtmpfs"})
DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo: what is mounted where. ``source`` is the kernel's word (``server:/export``, a disk)."""

    id: int
    parent: int
    mount_point: str
    fs_type: str
    source: str

    @property
    def is_network(self) -> bool:
        """Whether this is known to be a network or cluster file system; an unknown type is not."""
        kind, _, program = self.fs_type.partition(".")
        if kind.startswith("fuse"):
            # A FUSE program nobody listed still tells by its source: server:/path, //server/share, s3://bucket
            remote = self.source.startswith("//") or bool(re.match(r"[^/\s:]+:/", self.source))
            return program in NETWORK_FUSE or remote
        return kind in NETWORK_TYPES


class NetworkFileSystem(TenureError):
    """State was asked to live on a network file system. ``mount`` says which; ``suggestion`` is a local path."""

    def __init__(self, path: Path, mount: Mount, suggestion: Path | None) -> None:
        there = "" if suggestion is None else f"; for example TENURE_HOME={suggestion}"
        super().__init__(
            "network_file_system",
            f"{path} lies on a network file system ({mount.fs_type}, mounted on {mount.mount_point} from "
            f"{mount.source}), where neither locks nor shared memory can be trusted.",
            do=f"Set TENURE_HOME to a folder on a disk of this machine{there}.",
            facts={
                "path": str(path),
                "fs_type": mount.fs_type,
                "mount_point": mount.mount_point,
                "source": mount.source,
                "suggestion": None if suggestion is None else str(suggestion),
            },
        )
        self.path = path
        self.mount = mount
        self.suggestion = suggestion


def _unescape(field: str) -> str:
    # The kernel writes space, tab, newline and backslash as three octal digits each.
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Reads the text of /proc/self/mountinfo, in its own order. A line that does not fit the format is left out."""
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if not separator or len(before) < 6 or len(after) < 2 or not (before[0].isdigit() and before[1].isdigit()):
            continue
        mounts.append(
            Mount(int(before[0]), int(before[1]), _unescape(before[4]), _unescape(after[0]), _unescape(after[1]))
        )
    return tuple(mounts)


def read_mounts() -> tuple[Mount, ...]:
    """The mounts this process sees; empty where there is no /proc to ask (then nothing is known)."""
    try:
        raw = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return ()
    return parse_mountinfo(raw.decode("utf-8", "surrogateescape"))


def mount_of(path: str | os.PathLike[str], mounts: Sequence[Mount]) -> Mount | None:
    """The mount that an absolute path without symbolic links lies on, or ``None`` where the table does not say."""
    known = {mount.id for mount in mounts}
    current = None
    pure = PurePosixPath(path)
    for place in [*reversed(pure.parents), pure]:
        if current is None:
            # The root of what this process sees: no parent in the table. In a chroot there may be none at "/".
            tops = [m for m in mounts if m.mount_point == str(place) and (m.parent not in known or m.parent == m.id)]
            current = tops[-1] if tops else None
        # Mounts stack: a later one on the same place has the earlier one as its parent.
        while current is not None:
            covering = [m for m in mounts if m.parent == current.id != m.id and m.mount_point == str(place)]
            if not covering:
                break
            current = covering[-1]
    return current


def _resolve(path: str | os.PathLike[str]) -> Path:
    """The path without links, or as it is spelt where a file server does not answer within the deadline."""
    answer: list[str] = []
    asking = threading.Thread(target=lambda: answer.append(os.path.realpath(path)), daemon=True)
    asking.start()
    asking.join(DEADLINE_S)
    return Path(answer[0]) if answer else Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would ask again


def find_mount(path: str | os.PathLike[str]) -> Mount | None:
    """The mount that a path lies on or would be created on, links followed; ``None`` is unknown.

    Following the links has touched the path, so what is mounted on demand is mounted before the table is read.
    """
    resolved = _resolve(path)
    return mount_of(resolved, read_mounts())


def suggest_local(user: str) -> Path | None:
    """A folder for this user's state that is not known to be on a network file system; none where all are."""
    for base in ("/var/tmp", "/tmp", "/dev/shm"):
        mount = find_mount(base)
        if Path(base).is_dir() and not (mount is not None and mount.is_network):
            return Path(base) / f"tenure-{user}"
    return None


def require_local(path: str | os.PathLike[str], *, user: str | None = None) -> Mount | None:
    """Raises ``NetworkFileSystem`` where a path is known to lie on one; gives the mount, or ``None`` for unknown."""
    mount = find_mount(path)
    if mount is not None and mount.is_network:
        raise NetworkFileSystem(Path(path), mount, suggest_local(user or user_name()))
    return mount


def survives_reboot(path: str | os.PathLike[str]) -> bool | None:
    """Whether what is stored at a path is there after a reboot: ``None`` where that cannot be told.

    Memory file systems lose everything. /tmp on a disk may be emptied at boot, and an overlay may go with its
    container, so both are unknown.
    """
    resolved = _resolve(path)
    mount = mount_of(resolved, read_mounts())
    if mount is None or mount.fs_type in ("overlay", "aufs") or resolved.is_relative_to("/tmp"):
        return False if mount is not None and mount.fs_type in VOLATILE_TYPES else None
    return mount.fs_type not in VOLATILE_TYPES


def user_name() -> str:
    """The name of the user this process runs as, or its number where no name is known."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


#: What a file system answers that has no such thing as a mode bit or a symbolic link.
_NOT_HERE = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def lacks(folder: str | os.PathLike[str]) -> tuple[str, ...]:
    """What the file system of a folder does not hold of a tree, in words that follow its name; empty: it holds all.

    Tried, not read from a table of types: what a share presents depends on its server and on how it was mounted. A
    file and a link are made in the folder and removed. Raises ``OSError`` where no file can be made at all.
    """
    found = []
    name = os.path.join(folder, f".tenure-probe-{secrets.token_hex(8)}")  # noqa: PTH118 - may be bytes that are no text
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.fchmod(fd, 0o700)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            found.append("refuses chmod")
        else:
            with_bit = os.stat(name).st_mode  # noqa: PTH116
            os.fchmod(fd, 0o600)
            without = os.stat(name).st_mode  # noqa: PTH116
            if not with_bit & stat.S_IXUSR:
                found.append("presents no exec bit")
            elif without & stat.S_IXUSR:
                found.append("presents every file with an exec bit")
    finally:
        os.close(fd)
        os.unlink(name)  # noqa: PTH108
    try:
        os.symlink("target", name)  # noqa: PTH211
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        found.append("stores no symlinks")
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)  # noqa: PTH108
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        found.append("runs no programs (it is mounted noexec)")
    return tuple(found)
