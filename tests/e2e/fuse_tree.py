"""A file system in memory that lacks what real shares lack: ``fuse_tree.py FOLDER [LACK...]`` mounts it and serves it.

``no-bits`` presents files without exec bits and takes a chmod without a word (as a share mounted with a mask does);
``no-chmod`` refuses to change any mode; ``no-links`` refuses symbolic links. Speaks as much of the FUSE protocol
(linux/fuse.h) as a tree of files needs. Prints ``mounted`` and serves until it is unmounted or killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")
_OPENED = struct.pack("<QII", 1, 0, 0)
FATTR_MODE, FATTR_SIZE = 1, 8


@dataclass
class Node:
    mode: int
    data: bytearray = field(default_factory=bytearray)
    inside: dict[bytes, int] = field(default_factory=dict)
    changed: int = field(default_factory=time.time_ns)


class Tree:
    def __init__(self, lacks: set[str]) -> None:
        self.lacks = lacks
        self.nodes = {1: Node(stat.S_IFDIR | 0o777)}
        self.answers: dict[int, Callable[[int, bytes], bytes]] = {
            1: lambda at, body: self._entry(self._child(at, body.rstrip(b"\0"))),
            3: lambda at, body: self._attributes_out(at),
            4: self.set_attributes,
            5: lambda at, body: bytes(self.nodes[at].data),
            6: self.symlink,
            8: lambda at, body: self._made(at, body[16:], struct.unpack_from("<I", body)[0]),
            9: lambda at, body: self._made(at, body[8:], struct.unpack_from("<I", body)[0] | stat.S_IFDIR),
            10: self.remove,
            11: self.remove,
            12: lambda at, body: self.rename(at, struct.unpack_from("<Q", body)[0], body[8:]),
            14: lambda at, body: _OPENED,
            15: self.read,
            16: self.write,
            17: lambda at, body: struct.pack("<5Q10I", 100000, 90000, 90000, 9000, 9000, 4096, 255, 4096, *[0] * 7),
            18: lambda at, body: b"",
            20: lambda at, body: b"",
            25: lambda at, body: b"",
            26: lambda at, body: struct.pack("<IIIIHHIIHHI7I", 7, 31, 4096, 0, 12, 9, 65536, *[1, 0, 0], *[0] * 8)[:64],
            27: lambda at, body: _OPENED,
            28: self.read_folder,
            29: lambda at, body: b"",
            30: lambda at, body: b"",
            45: lambda at, body: self.rename(at, struct.unpack_from("<Q", body)[0], body[16:]),
        }

    def _child(self, at: int, name: bytes) -> int:
        try:
            return self.nodes[at].inside[name]
        except KeyError:
            raise OSError(errno.ENOENT, "") from None

    def _attributes(self, at: int) -> bytes:
        node = self.nodes[at]
        mode = node.mode
        if "no-bits" in self.lacks and stat.S_ISREG(mode):
            mode &= ~0o111
        seconds, rest = divmod(node.changed, 10**9)
        size = len(node.data)
        return struct.pack("<6Q10I", at, size, size // 512 + 1, *[seconds] * 3, *[rest] * 3, mode, 1, 0, 0, 0, 4096, 0)

    def _entry(self, at: int) -> bytes:
        return struct.pack("<4Q2I", at, 0, 0, 0, 0, 0) + self._attributes(at)

    def _attributes_out(self, at: int) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(at)

    def _made(self, at: int, names: bytes, mode: int, data: bytes = b"") -> bytes:
        name = names.split(b"\0")[0]
        if name in self.nodes[at].inside:
            raise OSError(errno.EEXIST, "")
        number = max(self.nodes) + 1
        self.nodes[number] = Node(mode, bytearray(data))
        self.nodes[at].inside[name] = number
        return self._entry(number)

    def symlink(self, at: int, body: bytes) -> bytes:
        if "no-links" in self.lacks:
            raise OSError(errno.EPERM, "")
        name, target, _ = body.split(b"\0")
        return self._made(at, name, stat.S_IFLNK | 0o777, target)

    def set_attributes(self, at: int, body: bytes) -> bytes:
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        mode = struct.unpack_from("<I", body, 68)[0]
        node = self.nodes[at]
        if valid & FATTR_MODE:
            if "no-chmod" in self.lacks:
                raise OSError(errno.EPERM, "")
            node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
        if valid & FATTR_SIZE:
            node.data[:] = node.data[:size].ljust(size, b"\0")
        return self._attributes_out(at)

    def remove(self, at: int, body: bytes) -> bytes:
        name = body.rstrip(b"\0")
        if self.nodes[self._child(at, name)].inside:
            raise OSError(errno.ENOTEMPTY, "")
        del self.nodes[at].inside[name]
        return b""

    def rename(self, at: int, to: int, names: bytes) -> bytes:
        old, new, _ = names.split(b"\0")
        self.nodes[to].inside[new] = self._child(at, old)
        del self.nodes[at].inside[old]
        return b""

    def read(self, at: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        return bytes(self.nodes[at].data[offset : offset + size])

    def write(self, at: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        node = self.nodes[at]
        node.data[offset : offset + size] = body[40 : 40 + size]
        node.changed = time.time_ns()
        return struct.pack("<II", size, 0)

    def read_folder(self, at: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        out = b""
        for number, (name, child) in enumerate(list(self.nodes[at].inside.items())[offset:], offset + 1):
            kind = stat.S_IFMT(self.nodes[child].mode) >> 12
            entry = struct.pack("<QQII", child, number, len(name), kind) + name
            entry += bytes(-len(entry) % 8)
            if len(out) + len(entry) > size:
                break
            out += entry
        return out


def main() -> None:
    place, *lacks = sys.argv[1:]
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"share", place.encode(), b"fuse.lacking", ctypes.c_ulong(0), options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), place)
    print("mounted", flush=True)
    tree = Tree(set(lacks))
    while True:
        try:
            request = os.read(fd, 1 << 18)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return  # unmounted
            raise
        _, operation, unique, at, *_ = _IN.unpack_from(request)
        if operation in (2, 36, 42):  # forget, interrupt, forget many: nothing to answer
            continue
        try:
            answer = tree.answers.get(operation)
            if answer is None:
                raise OSError(errno.ENOSYS, "")
            body, error_number = answer(at, request[_IN.size :]), 0
        except OSError as error:
            body, error_number = b"", error.errno or errno.EIO
        os.write(fd, _OUT.pack(_OUT.size + len(body), -error_number, unique) + body)


if __name__ == "__main__":
    main()
