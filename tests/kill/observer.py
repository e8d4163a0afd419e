"""The observer outside Tenure: standard library only, run as processes of their own, one that scans and one that asks.

``scan MARK PAUSE`` reads /proc for living members of jobs (the mark in their environment) and keeps, for each job, when
a member was first and last seen alive. ``poll SOCKET PAUSE`` asks the API for its devices and keeps when each was said
to be ready. The pause (seconds) is the least time from one look to the next; with 0.001 and 0 that is every millisecond
and as fast as the API answers. Both print JSON when their standard input ends.

Clocks: a first sighting is stamped after the read that made it, a last one before it, an answer with the times before
its request and after its reply. So what the analysis calls a violation is one whatever the order within a read was.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from typing import Any

YOUNG_S = 0.5  # a process may still exec into a job: looked at again until it is older than this
FORGET_S = 0.25  # numbers are reused, so who was an outsider is asked anew this often
TICKS = os.sysconf("SC_CLK_TCK")


def ended() -> bool:
    """Whether the parent has closed our standard input."""
    return bool(select.select([0], [], [], 0)[0])


def read(path: str) -> bytes:
    """A file of /proc; empty where the process is gone."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(fd, 1 << 17)
    except OSError:
        return b""
    finally:
        os.close(fd)


def alive(pid: str) -> int | None:
    """The start time (ticks) of a process that runs; None for one that is gone or a zombie."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 20 or (fields[0] in (b"Z", b"X") and int(fields[17]) <= 1):
        return None
    return int(fields[19])


def scan(mark: str, pause_s: float) -> None:
    """Scans until told to end."""
    wanted = mark.encode()
    jobs: dict[str, dict[str, Any]] = {}
    known: dict[str, tuple[int, str]] = {}
    outsiders: set[str] = set()
    scans, longest, forgot, before = 0, 0.0, 0.0, time.monotonic()
    began = before
    print("on", flush=True)
    while not ended():
        now = time.monotonic()
        scans, longest, before = scans + 1, max(longest, now - before), now
        if now - forgot > FORGET_S:
            outsiders.clear()
            forgot = now
        pids = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 (standard library, and quick)
        for gone in known.keys() - set(pids):
            del known[gone]
        for pid in pids:
            if pid in outsiders:
                continue
            mono, wall = time.monotonic(), time.time()
            start = alive(pid)
            member = known.get(pid)
            if member is not None and member[0] != start:
                del known[pid]
                member = None
            if start is None:
                continue
            if member is None:
                words = read(f"/proc/{pid}/environ").split(b"\0")
                if wanted not in words:
                    if time.clock_gettime(time.CLOCK_BOOTTIME) - start / TICKS > YOUNG_S:
                        outsiders.add(pid)
                    continue
                facts = dict(word.partition(b"=")[::2] for word in words)
                job = facts[b"RC_JOB_ID"].decode()
                known[pid] = (start, job)
                if job not in jobs:
                    jobs[job] = {"device": facts[b"RC_DEVICE"].decode(), "first": time.monotonic(), "pids": []}
                    jobs[job] |= {"last": mono, "last_wall": wall}
                jobs[job]["pids"].append(int(pid))
                mono, wall = time.monotonic(), time.time()
                if alive(pid) != start:  # the environment was read of a living process, or it does not count
                    continue
            else:
                job = member[1]
            jobs[job]["last"], jobs[job]["last_wall"] = mono, wall
        time.sleep(max(0.0, pause_s - (time.monotonic() - now)))
    span = time.monotonic() - began
    print(json.dumps({"scans": scans, "span_s": span, "longest_s": longest, "jobs": jobs}), flush=True)


def poll(path: str, pause_s: float) -> None:
    """Asks until told to end. A controller that is away is asked again."""
    ready: dict[str, list[tuple[float, float]]] = {}
    answers, link, began = 0, None, time.monotonic()
    print("on", flush=True)
    while not ended():
        try:
            if link is None:
                link = socket.socket(socket.AF_UNIX)
                link.settimeout(10)
                link.connect(path)
            asked = time.monotonic()
            link.sendall(b"GET /v1/devices HTTP/1.1\r\nHost: x\r\n\r\n")
            body = answer(link)
        except OSError:
            if link is not None:
                link.close()
            link = None
            time.sleep(0.01)
            continue
        got = time.monotonic()
        answers += 1
        for device in json.loads(body)["devices"]:
            if device["free"] or device["state"] == "ready":
                ready.setdefault(device["name"], []).append((asked, got))
        time.sleep(pause_s)
    print(json.dumps({"answers": answers, "span_s": time.monotonic() - began, "ready": ready}), flush=True)


def answer(link: socket.socket) -> bytes:
    """The body of one HTTP answer with a Content-Length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += more(link)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    while len(body) < length:
        body += more(link)
    return body


def more(link: socket.socket) -> bytes:
    data = link.recv(1 << 20)
    if not data:
        raise ConnectionError("the controller hung up")
    return data


if __name__ == "__main__":
    {"scan": scan, "poll": poll}[sys.argv[1]](sys.argv[2], float(sys.argv[3]))
