"""The child that looks where a look can block: memory maps of stuck processes, and mounts whose server is gone.

Run as ``python -I -S proc_worker.py SOURCE-ROOT PROGRESS-FD PARENT-PID``; JSON lines on stdin and stdout as with the
NVML child. It answers each question as soon as it is settled and names the one it is at in the progress file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any


def source_root() -> str:
    """The folder that holds the package, for a child that runs without ``site``."""
    from pathlib import Path

    return str(Path(__file__).parents[2])


def _reading(reading: Any, body: Any) -> dict[str, Any]:
    from tenure.domain.reading import Unavailable

    if isinstance(reading, Unavailable):
        return {"e": str(reading.reason), "m": reading.detail, "i": reading.instrument}
    return {"v": body(reading.value)}


def answer(op: str, subject: Any) -> dict[str, Any]:
    """One question, answered as plain data."""
    from tenure.probes import host, proc

    if op == "disk":
        return _reading(host.disk_free(subject), lambda d: [d.path, d.free, d.size, d.free_inodes])
    if op == "environ":
        has = proc.environ_has(*subject)
        return {"gone": True} if isinstance(has, proc.Vanished) else _reading(has, bool)
    pid, start_ticks = subject
    found = proc.handles(pid, start_ticks=start_ticks)
    if isinstance(found, proc.Vanished):
        return {"gone": True}
    return _reading(found, lambda h: [h.device_files, h.libraries, sorted(h.kinds)])


def main(argv: list[str]) -> int:
    """Answers requests until the socket closes."""
    root, progress, parent = argv[1], int(argv[2]), int(argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: stuck, it would not see its socket close
        if os.getppid() != parent:
            return 0
    sys.path.append(root)
    out = os.dup(1)
    os.dup2(2, 1)
    os.write(out, b'{"hello":true}\n')
    with os.fdopen(0, "rb") as requests:
        for line in requests:
            request = json.loads(line)
            for number, subject in enumerate(request["subjects"]):
                os.pwrite(progress, f"{request['op']} {subject}".encode()[:199] + b"\0", 0)
                reply = {"id": request["id"], "n": number, **answer(request["op"], subject)}
                data = json.dumps(reply).encode() + b"\n"
                while data:
                    data = data[os.write(out, data) :]
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
