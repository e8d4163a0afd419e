"""Who this host is: the machine, this boot of it, this PID namespace. Standard library only; parsers are pure.

The machine id and boot id are observed. The boot *time* is derived (wall clock less uptime) and weaker: a wall clock
that was set since, a namespace with its own uptime, or a suspended clock moves it.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # the kernel's fixed inode number of it (PROC_PID_INIT_INO)


@dataclass(frozen=True, slots=True)
class DerivedBoot:
    """When this host booted, as far as uptime tells. Not evidence of a reboot: only the boot id is.

    ``earliest`` <= boot <= ``latest`` (UTC seconds) holds as long as the wall clock was right when it was read:
    uptime is cut, never rounded up, so the boot may lie before ``latest`` by what the reading took, never after it.
    """

    earliest: float
    latest: float
    assumption: str = "wall clock right when read; uptime of the whole host, suspended time included"


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """``machine_source`` says where the machine id comes from; ``derived:...`` ones are weaker than a file's.

    ``boot_id`` is None where the kernel does not tell. ``pid_namespace`` is the inode of the namespace, None where
    there is none; ``initial_namespace`` says whether pids here are the driver's own (None: could not look).
    """

    machine_id: str
    machine_source: str
    boot_id: str | None
    pid_namespace: int | None
    initial_namespace: bool | None
    hostname: str
    boot: DerivedBoot | None


def parse_machine_id(text: str) -> str | None:
    """32 hexadecimal digits that are not all zero; "uninitialized" and an image's empty file are no identity."""
    word = text.strip().lower().replace("-", "")
    return word if re.fullmatch(r"[0-9a-f]{32}", word) and set(word) != {"0"} else None


def machine_id(root: Path = Path("/"), hostname: str | None = None) -> tuple[str, str]:
    """(id, source). Without a file it is derived from the host name and the addresses of its physical networks."""
    for name in ("etc/machine-id", "var/lib/dbus/machine-id"):
        try:
            found = parse_machine_id((root / name).read_text(errors="replace"))
        except OSError:
            continue
        if found is not None:
            return found, f"/{name}"
    macs = _physical_addresses(root)
    name = hostname if hostname is not None else socket.gethostname()
    digest = hashlib.sha256("\n".join(["tenure", name, *macs]).encode()).hexdigest()[:32]
    return digest, "derived:hostname+network" if macs else "derived:hostname"


def _physical_addresses(root: Path) -> Sequence[str]:
    found: list[str] = []
    try:
        for interface in sorted((root / "sys/class/net").iterdir()):
            if (interface / "device").exists():  # virtual interfaces come and go
                found.append((interface / "address").read_text().strip())
    except OSError:
        return []
    return sorted(found)


def boot_id(root: Path = Path("/")) -> str | None:
    """The kernel's random id of this boot."""
    try:
        text = (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return text or None


def pid_namespace(pid: int | str = "self") -> int | None:
    """The inode number that names a process's PID namespace, None where it cannot be looked at."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino  # noqa: PTH116 - follows the namespace link
    except OSError:
        return None


def namespace_name(identity: HostIdentity, proc: Path = Path("/proc")) -> str:
    """What tells this PID namespace from every other of this boot; empty where the kernel does not tell.

    Its number alone does not: the kernel gives it to the next namespace once this one is gone. So where it is not the
    host's own, the start of its first process goes with it (clock ticks since boot).
    """
    if identity.pid_namespace is None:
        return ""
    number = str(identity.pid_namespace)
    if identity.initial_namespace:
        return number
    try:
        fields = (proc / "1/stat").read_bytes().rpartition(b")")[2].split()
        return f"{number}:{int(fields[19])}"
    except (OSError, IndexError, ValueError):
        return number


def derive_boot(uptime_text: str, wall_before: float, wall_after: float) -> DerivedBoot | None:
    """The boot time from the first figure of /proc/uptime (seconds, cut to hundredths) and the wall clock around it."""
    found = re.match(r"(\d+\.\d+)\b", uptime_text)
    if found is None:
        return None
    uptime = float(found[1])
    return DerivedBoot(wall_before - uptime - 0.01, wall_after - uptime)


def read(root: Path = Path("/"), wall: Callable[[], float] = time.time) -> HostIdentity:
    """Reads all of it now. Cheap; never blocks on anything but local pseudo-files."""
    hostname = socket.gethostname()
    identity, source = machine_id(root, hostname)
    namespace = pid_namespace()
    before = wall()
    try:
        uptime = (root / "proc/uptime").read_text()
    except OSError:
        uptime = ""
    return HostIdentity(
        machine_id=identity,
        machine_source=source,
        boot_id=boot_id(root),
        pid_namespace=namespace,
        initial_namespace=None if namespace is None else namespace == INITIAL_PID_NAMESPACE,
        hostname=hostname,
        boot=derive_boot(uptime, before, wall()),
    )
