"""The child that takes a fingerprint, at the lowest priority: one line for each part as soon as it has been read.

Run as ``python -I -S fingerprint_worker.py SOURCE-ROOT PROGRESS-FD PARENT-PID``. One request on stdin, then lines on
stdout. A part that is as it was before is answered by that alone: neither its size nor its parsing is paid for again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any


def _lowest_priority() -> None:
    """Behind everything else for the processor, and for the disk where the scheduler knows such a thing."""
    os.nice(19)
    if sys.platform == "linux":
        import ctypes

        number = {"x86_64": 251, "aarch64": 30}.get(os.uname().machine)
        if number is not None:
            ctypes.CDLL(None).syscall(number, 1, 0, 3 << 13)  # ioprio_set: this process, class idle


def read(part: str, config: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """One part as plain data. ``before``: ``signature`` and ``digest`` of the last look at it, where there was one."""
    from tenure.probes import fingerprint_look as look
    from tenure.probes import fingerprint_packages as packages

    patterns = config["path"]
    signature = ""
    kind, _, which = part.partition(":")
    if part in ("packages:dpkg", "packages:rpm"):
        files = [config["dpkg"]] if which == "dpkg" else [f"{folder}/rpmdb.sqlite" for folder in config["rpm"]]
        signature = packages.signature([*files, *(f"{file}-wal" for file in files)])
        if signature and signature == before.get("signature"):
            return {"same": True}
    if kind == "tools":
        items, blind = look.tools(which, patterns)
    elif part == "cuda":
        items, blind = look.cuda(config["cuda"], patterns)
    elif part == "packages:dpkg":
        items, blind = packages.dpkg(config["dpkg"])
    elif part == "packages:rpm":
        items, blind = packages.rpm(config["rpm"])
    elif part == "packages:python":
        items, blind = packages.python(patterns)
    elif part == "mounts":
        items, blind = look.mounts(config["mounts"])
    elif part == "scratch":
        items, blind = look.scratch(config["attempts"])
    else:
        items, blind = _versions(config, before.get("items", {}))
    from hashlib import blake2b

    digest = blake2b(json.dumps([items, blind], sort_keys=True).encode(), digest_size=16).hexdigest()
    if digest == before.get("digest") and signature == before.get("signature", ""):
        return {"same": True}
    return {"items": items, "blind": blind, "digest": digest, "signature": signature}


def _versions(config: dict[str, Any], before: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Path -> identity and version of the important tools; only one that changed since is asked."""
    from tenure.probes import fingerprint_look as look

    items: dict[str, str] = {}
    blind: dict[str, str] = {}
    for name, path in look.first_on_path(config["versions"], config["path"]).items():
        try:
            now = look.identity(path)
        except OSError as error:
            blind[path] = look.why(error)
            continue
        known, _, version = before.get(path, "").rpartition(" ")
        if known != now:
            version = _ask(name, path, config["version_s"])
        items[path] = f"{now} {version}"
    return items, blind


def _ask(name: str, path: str, deadline_s: float) -> str:
    """The version that a tool says it has, empty where it does not say. It is killed with its group when it is late."""
    import subprocess

    from tenure.probes.fingerprint_look import version_in

    out = os.memfd_create("tenure-version") if hasattr(os, "memfd_create") else None
    if out is None:
        return ""
    try:
        asked = subprocess.Popen(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            cwd="/",
            start_new_session=True,
        )
    except OSError:
        os.close(out)
        return ""
    end = time.monotonic() + deadline_s
    while asked.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    try:
        os.killpg(asked.pid, signal.SIGKILL)
    except OSError:
        pass
    code = asked.poll()
    text = os.pread(out, 1 << 16, 0).decode(errors="replace") if code == 0 else ""
    os.close(out)
    return version_in(name, text)


def main(argv: list[str]) -> int:
    """Answers one request."""
    root, progress, parent = argv[1], int(argv[2]), int(argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: stuck, it would not see its socket close
        if os.getppid() != parent:
            return 0
    _lowest_priority()
    sys.path.append(root)
    out = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(0, "rb") as requests:
        request = json.loads(requests.readline())
    for part in request["parts"]:
        os.pwrite(progress, part.encode()[:199] + b"\0", 0)
        began = time.monotonic()
        try:
            reply = read(part, request["config"], request["before"].get(part, {}))
        except Exception as error:  # one part that cannot be read must not take the others with it
            reply = {"e": "unparseable", "m": f"{type(error).__name__}: {error}"}
        reply |= {"part": part, "took_s": round(time.monotonic() - began, 6)}
        data = json.dumps(reply).encode() + b"\n"
        while data:
            data = data[os.write(out, data) :]
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
