"""Compiles the simulated NVML on demand. The result is kept as long as its source is the same."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tenure.errors import TenureError

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"
FLAGS = ("-std=c11", "-O1", "-Wall", "-fvisibility=hidden", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}")


def build(dest_dir: Path | str) -> Path:
    """Makes ``libnvidia-ml.so.1`` in ``dest_dir`` and returns its path.

    Several may build at once: each compiles to a file of its own and renames it into place. Raises TenureError
    (``library_missing``) where there is no C compiler, with its words where it fails.
    """
    folder = Path(dest_dir)
    folder.mkdir(parents=True, exist_ok=True)
    target, stamp = folder / LIBRARY, folder / f"{LIBRARY}.sha256"
    digest = hashlib.sha256(SOURCE.read_bytes() + repr(FLAGS).encode()).hexdigest()
    if target.exists() and stamp.exists() and stamp.read_text().strip() == digest:
        return target
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler or shutil.which(compiler) is None:
        raise TenureError(
            "library_missing",
            "simulated devices need a C compiler, and none was found.",
            do="Install one (for instance the package gcc), or set CC.",
        )
    draft = folder / f".{LIBRARY}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        done = subprocess.run(
            [compiler, *FLAGS, "-o", str(draft), str(SOURCE), "-lpthread", "-ldl"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise TenureError(
                "library_missing",
                f"the simulated NVML library could not be compiled by {compiler}: {done.stderr.strip()[-500:]}",
                do="Check that the compiler and the C library's headers are installed.",
            )
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    fresh = folder / f".{LIBRARY}.sha256.{os.getpid()}.{os.urandom(4).hex()}"
    fresh.write_text(digest + "\n")
    fresh.replace(stamp)
    return target
