"""Every path Tenure uses, in one place.

```
$TENURE_HOME/config.toml
$TENURE_HOME/machines/<machine-id>/controller/  agent/  run/  sim/
```

State lies under the machine's id, so that a home folder shared by several hosts never mixes them. The id is that of
/etc/machine-id, else of D-Bus, else one generated once and kept in ``$TENURE_HOME/machine-id``. Two limits, stated
because nothing here can see past them: containers started from one image may carry the same /etc/machine-id, and a
generated id in a home shared by several hosts is shared with it (such a home is refused as a network file system
where it is known to be one).

A Unix socket's address holds 107 bytes, and home folders are deeper than that. A longer path is bound and connected
through an open descriptor of its folder: /proc/self/fd/<n>/<name>.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import socket
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tenure.durable import make_dirs, sync_dir, sync_fd
from tenure.errors import TenureError
from tenure.mounts import require_local, survives_reboot, user_name

__all__ = [
    "Layout",
    "bind_unix",
    "connect_unix",
    "layout",
    "machine_id",
    "require_local",
    "survives_reboot",
    "tenure_home",
    "unix_address",
    "user_name",
]

_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_PLAIN_ADDRESS_BYTES = 100


def tenure_home() -> Path:
    """The folder of all state: ``TENURE_HOME``, else the user's data folder. It need not exist yet."""
    given = os.environ.get("TENURE_HOME", "")
    if not given:
        from platformdirs import user_data_path  # imported only here: a set TENURE_HOME needs no third party

        return user_data_path("tenure")
    path = Path(given).expanduser()
    if not path.is_absolute():
        raise TenureError(
            "invalid_configuration",
            f"TENURE_HOME is {given!r}, which means another folder in every working directory.",
            do="Give it as an absolute path.",
            facts={"TENURE_HOME": given},
        )
    return path


def _read_id(path: Path) -> str | None:
    """The id a file holds; ``None`` where it holds none (systemd writes ``uninitialized`` before the first boot)."""
    try:
        text = path.read_text("ascii").strip().replace("-", "").lower()
    except (OSError, UnicodeDecodeError):
        return None
    return text if re.fullmatch(r"[0-9a-f]{32}", text) and text != "0" * 32 else None


def machine_id(home: Path) -> str:
    """This machine's id, 32 hexadecimal digits: the system's own, else one generated and kept in the home folder."""
    for path in (*_ID_FILES, home / "machine-id"):
        found = _read_id(path)
        if found is not None:
            return found
    require_local(home)  # where several hosts share the folder, they would share the id
    make_dirs(home)
    target = home / "machine-id"
    temporary = home / f".machine-id-{secrets.token_hex(8)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(fd, f"{secrets.token_hex(16)}\n".encode("ascii"))
            sync_fd(fd)
        finally:
            os.close(fd)
        # A link refuses an existing name: of two processes at once, one generates and both read the same id.
        with contextlib.suppress(FileExistsError):
            os.link(temporary, target)
    finally:
        temporary.unlink()
    sync_dir(home)
    found = _read_id(target)
    if found is None:
        raise TenureError(
            "damaged_state",
            f"{target} holds no machine id.",
            do="Write 32 hexadecimal digits into it (the name of this machine's folder under machines/, if it has one),"
            " or remove it to begin a new, empty folder.",
            facts={"path": str(target)},
        )
    return found


@dataclass(frozen=True)  # no slots: what is asked for with every job is built once
class Layout:
    """The paths of one machine under one home. Only names them: ``create`` makes the folders."""

    home: Path
    machine: str

    @property
    def config(self) -> Path:
        return self.home / "config.toml"

    @cached_property
    def root(self) -> Path:
        """The folder of this machine."""
        return self.home / "machines" / self.machine

    @cached_property
    def controller(self) -> Path:
        return self.root / "controller"

    @property
    def ledger_db(self) -> Path:
        return self.controller / "ledger.db"

    @property
    def controller_lock(self) -> Path:
        return self.controller / "controller.lock"

    @property
    def controller_log(self) -> Path:
        return self.controller / "controller.log"

    @property
    def served(self) -> Path:
        """What a controller that is served to other hosts keeps of itself; without it the home is an embedded one's."""
        return self.controller / "served.json"

    @property
    def tokens(self) -> Path:
        return self.controller / "tokens.json"

    @property
    def certificate(self) -> Path:
        """The controller's own certificate and its key, in one file."""
        return self.controller / "certificate.pem"

    @cached_property
    def output(self) -> Path:
        """The controller's copies of the jobs' output."""
        return self.controller / "output"

    def output_bin(self, job: str, attempt: int) -> Path:
        return self.output / f"{_attempt(job, attempt)}.bin"

    def output_idx(self, job: str, attempt: int) -> Path:
        return self.output / f"{_attempt(job, attempt)}.idx"

    @cached_property
    def stages(self) -> Path:
        """Staged trees by their hash, and uploads of more."""
        return self.controller / "stages"

    @cached_property
    def agent(self) -> Path:
        return self.root / "agent"

    @property
    def identity(self) -> Path:
        return self.agent / "identity.json"

    @property
    def joined(self) -> Path:
        """How this machine's agent reaches a controller elsewhere, once it has joined one."""
        return self.agent / "joined.json"

    @property
    def journal(self) -> Path:
        return self.agent / "journal.log"

    @property
    def agent_lock(self) -> Path:
        return self.agent / "agent.lock"

    @property
    def agent_log(self) -> Path:
        return self.agent / "agent.log"

    @cached_property
    def attempts(self) -> Path:
        return self.agent / "attempts"

    def attempt(self, job: str, attempt: int) -> Path:
        """The folder that an agent and a supervisor share for one attempt of a job."""
        return self.attempts / _attempt(job, attempt)

    @cached_property
    def run(self) -> Path:
        return self.root / "run"

    @cached_property
    def ctl_sock(self) -> Path:
        return self.run / "ctl.sock"

    @cached_property
    def nudge_sock(self) -> Path:
        return self.run / "nudge.sock"

    @property
    def sim(self) -> Path:
        return self.root / "sim"

    @property
    def sim_library(self) -> Path:
        return self.sim / "libnvidia-ml.so.1"

    @cached_property
    def sim_scenario(self) -> Path:
        return self.sim / "scenario"

    def create(self) -> None:
        """Makes the folders, durably and for this user alone. Raises where they would lie on a network file system."""
        require_local(self.root)
        for folder in (self.controller, self.output, self.stages, self.agent, self.attempts, self.run):
            make_dirs(folder)


def layout(home: Path | None = None) -> Layout:
    """The paths of this machine, under the given home or the one of the environment."""
    home = tenure_home() if home is None else home
    return Layout(home, machine_id(home))


def _attempt(job: str, attempt: int) -> str:
    if not _NAME.fullmatch(job) or attempt < 0:
        raise ValueError(f"not a job and an attempt: {job!r}, {attempt!r}")
    return f"{job}.{attempt}"


@contextlib.contextmanager
def unix_address(path: str | os.PathLike[str]) -> Iterator[str]:
    """An address for bind or connect that reaches a path of any length; valid inside the ``with`` block."""
    plain = os.fspath(Path(path).absolute())
    if len(os.fsencode(plain)) <= _PLAIN_ADDRESS_BYTES:
        yield plain
        return
    folder = os.open(Path(plain).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        short = f"/proc/self/fd/{folder}/{Path(plain).name}"
        if len(os.fsencode(short)) > _PLAIN_ADDRESS_BYTES or not Path(f"/proc/self/fd/{folder}").exists():
            raise OSError(errno.ENAMETOOLONG, "the path of a Unix socket is too long for this system", plain)
        yield short
    finally:
        os.close(folder)


def bind_unix(path: str | os.PathLike[str], kind: int = socket.SOCK_STREAM, *, mode: int = 0o600) -> socket.socket:
    """A socket bound to a path; a stream socket still has to ``listen``. Its folder must exist.

    A socket file that nobody answers on is left over from a process that died, and is replaced. One that somebody
    answers on raises ``OSError`` (EADDRINUSE), as does anything that is not a socket. The test and the replacement
    are two steps: callers hold the lock of the folder.
    """
    path = Path(path)
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.EADDRINUSE, "there is a file, and it is not a socket", str(path))
        with contextlib.suppress(TimeoutError, BlockingIOError):  # somebody listens, but is too busy to accept
            connect_unix(path, kind, timeout=1.0).close()
    except FileNotFoundError:
        pass
    except ConnectionRefusedError:
        path.unlink()
    else:
        raise OSError(errno.EADDRINUSE, "another process listens there", str(path))
    bound = socket.socket(socket.AF_UNIX, kind)
    try:
        # On Linux the file takes its mode from the socket at bind, so there is no moment at which others could connect.
        if sys.platform == "linux":
            os.fchmod(bound.fileno(), mode)
        with unix_address(path) as address:
            bound.bind(address)
        if sys.platform != "linux":
            path.chmod(mode)
    except BaseException:
        bound.close()
        raise
    return bound


def connect_unix(
    path: str | os.PathLike[str], kind: int = socket.SOCK_STREAM, *, timeout: float | None = None
) -> socket.socket:
    """A socket connected to a path, with the timeout (seconds) set on it. Raises ``OSError`` as connect does."""
    connected = socket.socket(socket.AF_UNIX, kind)
    try:
        connected.settimeout(timeout)
        with unix_address(path) as address:
            connected.connect(address)
    except BaseException:
        connected.close()
        raise
    return connected
