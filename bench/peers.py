"""Gets the peers from the distribution's packages where they are missing and this user may install."""

from __future__ import annotations

import os
import shutil
import subprocess

#: A program that shows whether a package is there.
PROGRAMS = {"slurm-wlm": "slurmctld", "munge": "munged", "task-spooler": "tsp"}
INSTALL_S = 300


def missing() -> list[str]:
    """The packages whose program is not on the path."""
    return [package for package, program in PROGRAMS.items() if shutil.which(program) is None]


def install() -> str:
    """Installs what is missing; gives why it could not, and nothing where all is there.

    Services of these packages are not started: the benches start their own, in a folder of their own.
    """
    wanted = missing()
    if not wanted:
        return ""
    if shutil.which("apt-get") is None:
        return f"{', '.join(wanted)} not installed, and this is no Debian"
    if os.geteuid():
        return f"{', '.join(wanted)} not installed, and only root may: apt-get install {' '.join(wanted)}"
    print(f"installing {', '.join(wanted)} (apt-get; --no-install leaves them out)", flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *wanted]):
        try:
            done = subprocess.run(
                ["apt-get", *words], env=env, capture_output=True, text=True, timeout=INSTALL_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"apt-get {words[0]} did not end within {INSTALL_S} s"
        if done.returncode:
            return f"apt-get {words[0]} failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1][:200]}"
    left = missing()
    return f"still not there after apt-get: {', '.join(left)}" if left else ""
