"""An empty file system that the kernel lists as sshfs: ``fuse_share.py FOLDER SOURCE`` mounts it and answers for it.

With a third word, ``mute``, it answers nothing but the mounting, as a share does whose server is gone.

Speaks as much of the FUSE protocol (linux/fuse.h) as an empty folder needs. Prints ``mounted`` and serves until killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
import time

_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")
LOOKUP, GETATTR, OPENDIR, READDIR, RELEASEDIR, STATFS, INIT, ACCESS = 1, 3, 27, 28, 29, 17, 26, 34
FORGET, INTERRUPT, BATCH_FORGET = 2, 36, 42


def _attributes() -> bytes:
    now = int(time.time())
    # ino, size, blocks, three times, their nanoseconds, mode, links, uid, gid, device, block size, flags
    return struct.pack("<6Q10I", 1, 0, 0, now, now, now, 0, 0, 0, stat.S_IFDIR | 0o777, 2, 0, 0, 0, 4096, 0)


def _answer(operation: int) -> bytes | int:
    """The body of an answer, or an error number."""
    if operation == INIT:
        return struct.pack("<IIIIHHIIHHI7I", 7, 31, 4096, 0, 12, 9, 65536, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    if operation == GETATTR:
        return struct.pack("<QII", 1, 0, 0) + _attributes()
    if operation == OPENDIR:
        return struct.pack("<QII", 1, 0, 0)
    if operation in (READDIR, RELEASEDIR, ACCESS):
        return b""
    if operation == STATFS:
        return struct.pack("<5Q10I", 1000, 1000, 1000, 10, 10, 4096, 255, 4096, *[0] * 7)
    return errno.ENOENT if operation == LOOKUP else errno.ENOSYS


def main() -> None:
    place, source, *mute = sys.argv[1:]
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), place.encode(), b"fuse.sshfs", ctypes.c_ulong(0), options):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), place)
    print("mounted", flush=True)
    while True:
        try:
            request = os.read(fd, 1 << 17)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return  # unmounted
            raise
        _, operation, unique, *_ = _IN.unpack_from(request)
        if operation in (FORGET, BATCH_FORGET, INTERRUPT) or (mute and operation != INIT):
            continue
        answer = _answer(operation)
        body, error_number = (answer, 0) if isinstance(answer, bytes) else (b"", answer)
        os.write(fd, _OUT.pack(_OUT.size + len(body), -error_number, unique) + body)


if __name__ == "__main__":
    main()
