"""Networks of hosts: each a namespace behind a cable, cut in either direction by a route, and a probe for each way.

The controller has one address, outside all namespaces. A cut is a route that leads nowhere, on the side that would
send, so that one direction can be taken away while the other is there. A probe is a datagram: unlike anything that
wants an answer it tells the two directions apart.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

T = TypeVar("T")
Way = Literal["up", "down"]
BOTH: tuple[Way, Way] = ("up", "down")

_NET = 0x40000000  # CLONE_NEWNET
_PREFIX = "tenure-hosts"


class Network:
    """The controller's ``address``, on this machine's loopback, and the hosts that can reach it."""

    def __init__(self) -> None:
        self.block = f"10.{200 + os.getpid() % 55}"
        self.address = f"{self.block}.0.1"
        self.hosts: list[Cable] = []
        _remove_left_behind()
        _ip("address", "add", f"{self.address}/32", "dev", "lo")

    def host(self) -> Cable:
        """A new host."""
        self.hosts.append(Cable(self, len(self.hosts) + 1))
        return self.hosts[-1]

    def close(self) -> None:
        """Takes everything away again."""
        for host in self.hosts:
            host.close()
        _ip("address", "del", f"{self.address}/32", "dev", "lo", check=False)


class Cable:
    """One host's network. ``prefix`` begins a command line that is to run there; ``address`` is the host's own."""

    def __init__(self, network: Network, number: int) -> None:
        self.controller = network.address
        self.name = f"{_PREFIX}-{os.getpid()}-{number}"
        self.gateway, self.address = f"{network.block}.{number}.1", f"{network.block}.{number}.2"
        self.prefix = ("ip", "netns", "exec", self.name)
        self._link = f"th{os.getpid() % 100000}n{number}"
        self._cut: set[tuple[Way, str]] = set()
        _ip("netns", "add", self.name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("address", "add", f"{self.gateway}/24", "dev", self._link)
        _ip("link", "set", self._link, "up")
        for words in (f"address add {self.address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            _ip("-n", self.name, *words.split())
        _ip("-n", self.name, "route", "add", "default", "via", self.gateway)
        self._here = _bound(self.controller)
        self._there = self._inside(lambda: _bound(self.address))

    def cut(self, *ways: Way, kind: str = "blackhole") -> None:
        """Takes directions away: ``up`` is from the host to the controller. ``kind``: ``blackhole`` says nothing to
        whoever sends, ``unreachable`` and ``prohibit`` answer with an error. Shows that each cut is one, and the only
        one."""
        before = {way: self.passes(way) for way in BOTH}
        for way in ways:
            assert before[way], f"nothing went {way} before the cut either"
            _ip(*self._side(way), "route", "add", kind, self._target(way))
            self._cut.add((way, kind))
        after = {way: self.passes(way) for way in BOTH}
        assert after == {way: before[way] and way not in ways for way in BOTH}, f"cut {ways}: {after}"

    def heal(self) -> None:
        """Gives every direction back, and shows that it is."""
        for way, kind in sorted(self._cut):
            _ip(*self._side(way), "route", "del", kind, self._target(way))
        self._cut.clear()
        assert all(self.passes(way) for way in BOTH), "the cut is still there"

    def passes(self, way: Way) -> bool:
        """Whether one of three datagrams arrives. They are sent from and heard at the very addresses in question."""
        send, hear = (self._there, self._here) if way == "up" else (self._here, self._there)
        mark = secrets.token_bytes(8)
        for _ in range(3):
            with contextlib.suppress(OSError):  # a route may refuse it at once
                send.sendto(mark, hear.getsockname())
            with contextlib.suppress(TimeoutError):
                while True:
                    if hear.recv(64) == mark:
                        return True
        return False

    def close(self) -> None:
        """Takes it away. Whatever still runs in it keeps the namespace, without a cable."""
        for way, kind in sorted(self._cut):
            _ip(*self._side(way), "route", "del", kind, self._target(way), check=False)
        self._here.close()
        self._there.close()
        _ip("link", "del", self._link, check=False)
        _ip("netns", "del", self.name, check=False)

    def _side(self, way: Way) -> tuple[str, ...]:
        return ("-n", self.name) if way == "up" else ()

    def _target(self, way: Way) -> str:
        return f"{self.controller if way == 'up' else self.address}/32"

    def _inside(self, make: Callable[[], T]) -> T:
        """What ``make`` gives in the namespace. A socket stays where it was made; only a thread of its own goes."""
        made: list[T] = []
        trouble: list[BaseException] = []

        def work() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            try:
                with Path(f"/run/netns/{self.name}").open("rb") as namespace:
                    if libc.setns(namespace.fileno(), _NET):
                        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), self.name)
                made.append(make())
            except BaseException as error:
                trouble.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if trouble:
            raise trouble[0]
        return made[0]


def _bound(address: str) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.bind((address, 0))
    found.settimeout(0.2)
    return found


def _ip(*words: str, check: bool = True) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20, check=False)
    assert not check or done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout


def _remove_left_behind() -> None:
    """Namespaces of runs that were killed: their process is gone."""
    for name, pid in re.findall(rf"^({_PREFIX}-(\d+)-\d+)", _ip("netns", "list"), re.MULTILINE):
        if not Path(f"/proc/{pid}").exists():
            _ip("netns", "del", name, check=False)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network until the block ends."""
    made = Network()
    try:
        yield made
    finally:
        made.close()
