"""Slurm on loopback: munged, slurmctld and three slurmd, four GRES on character devices, its scheduler tuned.

Names of nodes and ports are this run's own, so that another Slurm on the machine is neither met nor disturbed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from pathlib import Path

from bench import processes

PACKAGES = ("slurm-wlm", "munge")
#: slurmctld answers a submission first and writes its state files afterwards, every five seconds: seen with strace on
#: 22.05.8, where a submission was answered two seconds before the fsync of job_state.new that held it.
DURABILITY = "later"
GRACE_S = 1
NODES = (1, 1, 2)
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "salloc", "squeue", "scancel", "sinfo")
CGROUPS = Path("/sys/fs/cgroup")


class SlurmSite:
    """``up`` writes a configuration and starts everything; ``down`` ends it and removes its cgroups."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = str(folder / "etc/slurm.conf")
        self.env = {**os.environ, "SLURM_CONF": self.conf}
        self.version = ""
        self.names = [f"tb{os.getpid()}n{n}" for n in range(1, len(NODES) + 1)]
        self.pids: dict[int, str] = {}
        self.fenced = (CGROUPS / "devices").is_dir()

    def run(self, *words: str, timeout_s: float = 60.0) -> str:
        """One command to its end, as its output; raises where it fails."""
        done = subprocess.run(
            words, env=self.env, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout_s, check=True
        )
        return done.stdout.decode().strip()

    def up(self) -> None:
        """Starts everything and waits until all nodes are idle. Raises ``FileNotFoundError``, ``PermissionError``."""
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
        if missing:
            raise FileNotFoundError(f"not installed: {', '.join(missing)}")
        if os.geteuid():
            raise PermissionError("slurmd, munged and mknod need root")
        for name in ("etc", "log", "state", "spool", "run", "dev"):
            (self.folder / name).mkdir(parents=True, mode=0o755)
        self._start("munged", self._munge(), self.folder / "run/munged.pid")
        self._configure()
        self._start("slurmctld", ["slurmctld"], self.folder / "run/slurmctld.pid")
        for name in self.names:
            self._start("slurmd", ["slurmd", "-N", name], self.folder / f"run/slurmd.{name}.pid")
        self.version = self.run("sinfo", "--version")
        processes.until(self._ready, "every node is idle", timeout_s=30, every_s=0.1)

    def _ready(self) -> bool:
        with contextlib.suppress(subprocess.CalledProcessError):  # slurmctld may not answer yet
            return self.run("sinfo", "-h", "-t", "idle", "-o", "%D") == str(len(NODES))
        return False

    def _start(self, name: str, command: list[str], pid_file: Path) -> None:
        """Starts a daemon that puts itself into the background, and notes its pid."""
        with (self.folder / f"log/{name}.start").open("ab") as log:
            done = subprocess.run(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=30, check=False
            )
        if done.returncode:
            raise RuntimeError(f"{name} did not start: {(self.folder / f'log/{name}.start').read_text()[-300:]}")
        processes.until(lambda: pid_file.exists() and pid_file.read_text().strip(), f"{name} has a pid", timeout_s=10)
        self.pids[int(pid_file.read_text())] = name

    def _munge(self) -> list[str]:
        run = self.folder / "run"
        key = run / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        options = {"key-file": key, "socket": f"{run}/munge.sock", "pid-file": f"{run}/munged.pid"}
        options |= {"log-file": f"{self.folder}/log/munged.log", "seed-file": f"{run}/munged.seed"}
        return ["munged", "--force", *(f"--{name}={value}" for name, value in options.items())]

    def _configure(self) -> None:
        host, folder = socket.gethostname().partition(".")[0], self.folder
        ports = free_ports(1 + len(NODES))
        track, task = ("proctrack/cgroup", "task/cgroup") if self.fenced else ("proctrack/linuxproc", "task/none")
        lines = f"""
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType={track}
TaskPlugin={task}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
GresTypes=gpu
MpiDefault=none
ReturnToService=1
KillWait={GRACE_S}
JobCompType=jobcomp/none
SlurmdParameters=config_overrides
"""
        gres, first = "AutoDetect=off\n", 0
        for name, port, count in zip(self.names, ports[1:], NODES, strict=True):
            lines += f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=1000 "
            lines += f"Gres=gpu:bench:{count}\n"
            for number in range(first, first + count):
                os.mknod(folder / f"dev/gpu{number}", 0o666 | 0o020000, os.makedev(240, number))
            last = first + count - 1
            files = f"gpu{first}" if count == 1 else f"gpu[{first}-{last}]"
            gres += f"NodeName={name} Name=gpu Type=bench File={folder}/dev/{files}\n"
            first += count
        lines += "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
        (folder / "etc/slurm.conf").write_text(lines)
        (folder / "etc/gres.conf").write_text(gres)
        fence = "CgroupPlugin=cgroup/v1\nConstrainDevices=yes\n" if self.fenced else "CgroupPlugin=autodetect\n"
        (folder / "etc/cgroup.conf").write_text(fence)

    def idle(self, timeout_s: float = 60.0) -> None:
        """Waits until no job waits, runs or is being cleared away."""
        processes.until(
            lambda: not self.run("squeue", "-h", "-o", "%T"), "no job is left", timeout_s=timeout_s, every_s=0.05
        )

    def daemons(self) -> dict[int, str]:
        """slurmctld with its children, every slurmd, and munged."""
        found: dict[int, str] = {}
        for root, name in self.pids.items():
            found |= dict.fromkeys(processes.descendants([root]), name)
        return {pid: name for pid, name in found.items() if not processes.command(pid).startswith("slurmstepd")}

    def supervisors(self) -> dict[int, str]:
        """The slurmstepd of the steps that run now: one a step."""
        found = {}
        for pid in processes.mentioning(str(self.folder)):
            if processes.command(pid).startswith("slurmstepd"):
                found[pid] = "slurmstepd"
        return found

    def down(self) -> None:
        """Ends jobs and daemons, then removes what Slurm leaves in the cgroup tree."""
        try:
            if any(name == "slurmctld" and not processes.gone(pid) for pid, name in self.pids.items()):
                with contextlib.suppress(subprocess.SubprocessError, TimeoutError):  # what is left is killed below
                    self.run("scancel", "-u", str(os.geteuid()))
                    self.idle(20.0)
        finally:
            processes.end(processes.mentioning(str(self.folder)) | set(self.pids), mark=str(self.folder))
            for name in self.names:
                for left in sorted(CGROUPS.glob(f"*/slurm_{name}/**/"), key=lambda path: -len(path.parts)):
                    with contextlib.suppress(OSError):  # a process that could not be killed keeps its group
                        left.rmdir()


def free_ports(count: int) -> list[int]:
    """So many TCP ports of the loopback that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
