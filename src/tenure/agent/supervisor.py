"""The spawner, and the supervisor that owns one job's whole process tree. Standard library only; run, never imported.

    agent --SOCK_SEQPACKET--> spawner --fork, setsid--> supervisor --fork, setsid, exec--> the command and its tree

The promise: **exit.json exists => no process of the tree is alive.** A child subreaper inherits every orphan below it,
and a process that is gone has no children; so when waitpid(-1) answers ECHILD no descendant is left, whatever forked,
changed its session, its name or its descriptors. A cgroup or a PID namespace, where there is one, makes it one stroke.

A stop (SIGTERM: TERM to all, grace, then KILL; SIGUSR1: KILL now) never waits for output or a disk: the main thread
owns signals and children and touches nothing but /proc and the cgroup until the tree is gone; one thread moves output.
Signals are blocked from before the fork and fetched with sigtimedwait, so that none can come too early for a handler.
"""
# ruff: noqa: PTH102, PTH104, PTH106, PTH108, PTH116, PTH119, PTH120, PTH208, SIM115

import _thread
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import time
from contextlib import suppress

IGNORED = {signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ}
GATED = {signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD}
SETTLE_S = 0.5  # what outlived the command gets SIGTERM and this long (or the grace, if shorter) before SIGKILL
CHUNK, DRAIN = 1 << 18, 256  # bytes of a read; reads of a stream once the tree is gone (an outsider may still write)
RESERVE, EXIT_TRIES = ".exit.tmp", 130  # has its blocks from the start, for a full disk; else ten minutes of trying
# Offset, length, stream, time. DISK or QUOTA beside the stream: lost, not stored; QUOTA, length 0: from here on.
INDEX, DISK, QUOTA, TOP = struct.Struct("<QIBxxxd"), 16, 32, (1 << 32) - 1
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER, SYS_CLONE3, CLONE_INTO_CGROUP = 1, 15, 36, 435, 1 << 33
CLONE_NEWNS, CLONE_NEWPID, SLAVE_ALL, NO_SUID_DEV_EXEC = 1 << 17, 1 << 29, 1 << 14 | 1 << 19, 0b1110
RLIMIT_LOCKS = 10  # of asm-generic/resource.h; the resource module has no name for it
LIBC = ctypes.PyDLL(None, use_errno=True)


def read_file(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def write_all(fd: int, data: bytes | memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


class Proc:
    """One line of /proc/PID/stat. ``start`` (ticks since boot) tells a process from a later one of the same number."""

    def __init__(self, pid: int) -> None:
        fields = read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        self.pid, self.ppid, self.pgid, self.start = pid, int(fields[1]), int(fields[2]), int(fields[19])
        self.alive = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1  # Z with threads: only its first one ended


class Tree:
    """The command and everything below it: who is there, how they are signalled and reaped, and the proof of none."""

    def __init__(self) -> None:
        self.me, self.leader, self.status, self.cgroup, self.ended = os.getpid(), 0, 0, "", (0.0, 0.0)
        self.over, self.stopped, self.killed, self.stragglers = False, False, False, 0  # over: the leader has ended
        self.kind, self.init = "subreaper", 0  # init: that of the job's PID namespace, a child of ours but no member

    def members(self) -> list[Proc]:
        """Every process below this one, dead ones not yet reaped included, parents before their children."""
        children: dict[int, list[Proc]] = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError, IndexError):  # gone between listing and reading; a later round and ECHILD decide
                p = Proc(int(name))
                children.setdefault(p.ppid, []).append(p)
        found = children.pop(self.me, [])
        for p in found:  # grows while it is walked
            found += children.pop(p.pid, [])
        return [p for p in found if p.pid != self.init]

    def tell(self, *numbers: int) -> list[Proc]:
        """Signals every member, and never a later process that was given its number. Answers who they were."""
        found = self.members()
        for p in found:  # it may end first; or (setuid) we may not, and then exit.json stays away
            with suppress(OSError, IndexError), open(os.pidfd_open(p.pid), "rb", buffering=0) as pidfd:
                if Proc(p.pid).start == p.start:
                    for number in numbers:
                        signal.pidfd_send_signal(pidfd.fileno(), number)
        return found

    def reap(self) -> bool:
        """Collects the dead. True: waitpid says ECHILD, so nothing is below us."""
        count = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if count:  # the leader has just ended by itself, and somebody is left
                self.stragglers, count = sum(p.alive for p in self.members()), False
            if pid == 0:
                self.stragglers = max(self.stragglers, int(self.over and not (self.stopped or self.init)))  # or missed
                return False
            self.init = 0 if pid == self.init else self.init
            if pid == self.leader:
                self.over, self.status, self.ended = True, status, (time.time(), time.monotonic())
                count = not self.stopped

    def empty(self) -> bool:
        """The proof: no child is left, and the cgroup (where there is one) has nobody in it."""
        file, sign = ("cgroup.events", b"populated 1") if self.kind == "cgroup2" else ("cgroup.procs", b"\n")
        with suppress(FileNotFoundError):  # a group was removed just now: another look is taken
            return self.reap() and not any(sign in read_file(f"{group}/{file}") for group, *_ in os.walk(self.cgroup))
        return False

    def strike(self) -> None:
        """SIGKILL to everybody in the cgroup at one stroke, forks in flight included."""
        with suppress(OSError):
            open(f"{self.cgroup}/cgroup.kill", "wb", 0).write(b"1")
        for state in (b"FROZEN", b"FROZEN", b"THAWED") if self.kind == "freezer" else ():  # the frozen die when thawed
            for group, *_ in os.walk(self.cgroup):  # those that the job made too: it may have frozen them itself
                with suppress(OSError):
                    for pid in read_file(f"{group}/cgroup.procs").split():
                        os.kill(int(pid), signal.SIGKILL)
                with suppress(OSError):
                    open(f"{group}/freezer.state", "wb", 0).write(state)

    def kill_everything(self) -> None:
        """SIGKILL in rounds until the tree is empty; it does not come back before. Newcomers fall in a later round."""
        pause = 0.001
        while not self.empty():
            found = self.tell(signal.SIGKILL)
            self.killed = self.killed or any(p.alive for p in found)
            if self.cgroup:
                self.strike()
            # A group dies in one stroke as well. Only those of children not yet reaped, which keep the number theirs.
            for group in {p.pgid for p in found if p.ppid == self.me} - {os.getpgrp()}:
                with suppress(OSError):  # nobody left in it
                    os.killpg(group, signal.SIGKILL)
            for _ in range(200 if pause < 0.1 else 1):  # one that forks, leaves its group and exits outruns the rounds
                with suppress(OSError):  # not permitted, or a kernel without CONFIG_PROC_CHILDREN
                    for pid in read_file(f"/proc/self/task/{self.me}/children").split():
                        os.kill(int(pid), signal.SIGKILL)
                if self.reap():
                    break
            pause = 0.001 if signal.sigtimedwait({signal.SIGCHLD}, pause) else min(pause * 2, 1.0)

    def watch(self, grace: float) -> None:
        """From the start of the command to the empty tree."""
        deadline: float | None = None  # when patience ends; None: no end was asked for
        while not self.empty():
            if deadline is None and self.over:
                self.tell(signal.SIGTERM, signal.SIGCONT)  # a stopped process would not see the one without the other
                deadline = time.monotonic() + min(grace, SETTLE_S)
            left = 86400.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                self.kill_everything()
                break
            apart = self.init and self.over  # its init has whoever is left, or a parent of theirs; they end unheard
            if alone := apart and not read_file(f"/proc/{self.init}/task/{self.init}/children"):
                os.kill(self.init, signal.SIGKILL)
            got = signal.sigtimedwait(GATED, min(left, 0.02) if apart else left)
            self.stragglers = max(self.stragglers, int(apart and left < 0.4 and not (got or alone or self.stopped)))
            if got and got.si_signo != signal.SIGCHLD:
                self.reap()  # an end that came before the stop is an end of its own
                first, self.stopped = not (self.stopped or self.over), self.stopped or not self.over
                if got.si_signo == signal.SIGUSR1:
                    deadline = 0.0
                elif first:
                    self.tell(signal.SIGTERM, signal.SIGCONT)
                    deadline = time.monotonic() + grace


class Output:
    """Moves both streams to output.bin and output.idx in a thread. A failing disk or the quota costs bytes, counted."""

    def __init__(self) -> None:
        (self.out, self.out_w), (self.err, self.err_w), (self.wake, self.wake_w) = os.pipe(), os.pipe(), os.pipe()
        os.set_blocking(self.out, False)
        os.set_blocking(self.err, False)
        self.streams, self.seen, self.size, self.indexed = {self.out: 1, self.err: 2}, {1: 0, 2: 0}, 0, 0
        self.lost: dict[int, int] = {}  # bytes not stored, by stream and cause; gaps: those since the last that were
        self.gaps, self.error = dict[int, tuple[int, float]](), ""
        self.bell, self.nudge_path = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), ""
        self.done, self.buffer = _thread.allocate_lock(), memoryview(bytearray(CHUNK))

    def open(self, folder: str, nudge: str, quota: int) -> None:
        self.folder, self.quota, flags = folder, quota, os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.data, self.index = os.open("output.bin", flags, 0o600), os.open("output.idx", flags, 0o600)
        with suppress(OSError, TypeError):  # nobody to wake; an address holds 107 bytes, hence the detour
            self.nudge_path = f"/proc/self/fd/{os.open(os.path.dirname(nudge), os.O_PATH)}/{os.path.basename(nudge)}"

    def nudge(self, what: str) -> None:
        with suppress(OSError):  # nobody listens, or has ten of them to read already: the agent polls as well
            text = json.dumps({"dir": self.folder, "what": what}).encode()
            self.bell.sendto(text, socket.MSG_DONTWAIT, self.nudge_path)

    def run(self) -> None:
        with self.done:
            ready, poller = [-1], select.poll()
            for fd in (self.out, self.err, self.wake):
                poller.register(fd, select.POLLIN)
            while self.streams and self.wake not in ready:
                ready = [fd for fd, _ in poller.poll()]
                for fd in [fd for fd in self.streams if fd in ready]:
                    if self.move(fd) == 0:
                        poller.unregister(fd)
                        del self.streams[fd]
                self.nudge("output")

    def finish(self) -> None:
        """Called when the tree is gone: takes what is left in the pipes, and comes back when it is on the disk."""
        os.write(self.wake_w, b"x")
        self.done.acquire()  # for good: if the thread could not be started, or not yet, this does its work
        for fd in self.streams:
            any(self.move(fd) <= 0 for _ in range(DRAIN))
        if not any(self.seen.values()):
            return  # nothing to keep: the sync of exit.json's folder keeps their names
        for fd in (self.data, self.index, os.open(".", os.O_RDONLY)):  # the folder: their names, before exit.json's
            try:
                os.fsync(fd)
            except OSError as e:
                self.error = self.error or f"fsync: {e.strerror}"

    def move(self, fd: int) -> int:
        """One read, stored whole (bytes, then index record) or not at all. Gives its bytes; 0: ended, -1: none yet."""
        try:
            count = os.readv(fd, [self.buffer])
        except BlockingIOError:
            return -1
        stream, now = self.streams[fd], time.time()
        self.seen[stream] += count
        room = max(0, min(count, self.quota - self.size))
        if room:
            self.store(self.buffer[:room], stream, now)
        if room < count and self.size >= self.quota and not self.gaps:
            self.store(self.buffer[:0], stream | QUOTA, now)  # said at once, for the agent to announce
        if room < count:
            self.lose(stream | (QUOTA if self.size >= self.quota else DISK), count - room, now)
        return count

    def store(self, data: memoryview, tag: int, now: float) -> None:
        lost = ((at, n, gap, since) for gap, (n, since) in self.gaps.items() for at in range(0, n, TOP))
        record = b"".join(INDEX.pack(self.size, min(TOP, n - at), gap, since) for at, n, gap, since in lost)
        record += INDEX.pack(self.size, len(data), tag, now)
        try:
            write_all(self.data, data)
            write_all(self.index, record)
            self.size, self.indexed = self.size + len(data), self.indexed + len(record)
            self.gaps.clear()
        except OSError as e:
            self.error = self.error or f"{e.strerror} (first at byte {self.size} of output.bin)"
            self.lose(tag & 3 | DISK, len(data), now)
            for file, size in ((self.data, self.size), (self.index, self.indexed)):
                with suppress(OSError):  # what is past the last index record is not output
                    os.ftruncate(file, size)

    def told(self) -> list[dict[str, object]]:  # at_end: after the last byte that was stored; no index tells of those
        names, ends = {1: "stdout", 2: "stderr"}, {tag: self.gaps.get(tag, (0, 0.0))[0] for tag in self.lost}
        rows = ((names[tag & 3], "disk" if tag & DISK else "quota", n, ends[tag]) for tag, n in self.lost.items() if n)
        return [dict(zip(("stream", "cause", "bytes", "at_end"), row, strict=True)) for row in rows]

    def lose(self, tag: int, count: int, now: float) -> None:
        gap, since = self.gaps.get(tag, (0, now))
        self.gaps[tag], self.lost[tag] = (gap + count, since), self.lost.get(tag, 0) + count


class Attempt:
    """One attempt, to its exit.json. Works in the attempt's folder; __init__ is what can be done ahead of a request."""

    def __init__(self) -> None:
        if LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) or LIBC.prctl(PR_SET_NAME, b"tenure-sup", 0, 0, 0):
            raise OSError(ctypes.get_errno(), "this kernel has no child subreaper")
        me, boot = Proc(os.getpid()), read_file("/proc/sys/kernel/random/boot_id").decode().strip()
        self.mine: dict[str, object] = {"v": 1, "pid": me.pid, "start_ticks": me.start, "boot_id": boot}
        self.output, self.tree, self.group, (self.status, self.status_w) = Output(), Tree(), "", os.pipe()
        self.publish(json.loads('"/dev/null"'), "w")  # so that pages are copied (on write) now, and not at the start

    def begin(self, folder: str) -> None:  # what it raises means: nothing will be run, and no exit.json comes
        os.chdir(folder)
        self.spec = json.loads(read_file("spec.json"))
        self.began = self.tree.ended = time.time(), time.monotonic()
        self.grace, self.names = float(self.spec["grace_s"]), {key: self.spec[key] for key in ("job", "attempt")}
        self.output.open(folder, self.spec.get("nudge"), self.spec.get("output_quota") or 1 << 62)
        self.mine |= {"started_at": self.began[0], "mark": leave_mark(), "pidns": os.stat("/proc/self/ns/pid").st_ino}
        self.publish(".supervisor.new", "x")  # whole before it has its name: a full disk leaves no half of it
        os.link(".supervisor.new", "supervisor.json")  # only one of several can: an attempt starts once

    def publish(self, path: str, mode: str) -> None:
        with open(path, mode) as file:  # not fsynced: after a power cut another boot id makes all of it void
            file.write(json.dumps({"leader_pid": None, **self.mine}))

    def fork(self) -> int:
        """The command's process, under the kind of control asked for; where that cannot be had, the subreaper alone."""
        kind, parent = self.spec.get("control", "cgroup2"), self.spec.get("cgroup_parent")
        if parent:
            with suppress(OSError):
                self.group = f"{parent}/tenure-{self.spec['job']}.{self.spec['attempt']}"
                os.mkdir(self.group)
                os.stat(f"{self.group}/{'freezer.state' if kind == 'freezer' else 'cgroup.kill'}")
                # By clone3, which spares the milliseconds of moving a process. Into version 1 the child moves itself.
                args = [CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, os.open(self.group, os.O_RDONLY)]
                pid = os.fork() if kind == "freezer" else int(LIBC.syscall(SYS_CLONE3, struct.pack("11Q", *args), 88))
                if pid >= 0:
                    self.tree.kind, self.tree.cgroup = kind, self.group
                    return pid
        return os.fork()

    def fork_apart(self) -> int:
        """Into a PID namespace of its own: first its init, then the command, which is our child all the same."""
        own = os.open("/proc/self/ns/pid", os.O_RDONLY)
        if LIBC.unshare(CLONE_NEWPID) == 0:
            init = os.fork()
            if init == 0:
                LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the job ends with its supervisor
                LIBC.prctl(PR_SET_NAME, b"tenure-init", 0, 0, 0)
                os.closerange(0, 1 << 20)
            while init == 0:  # collects the orphans
                self.tree.reap()
                signal.sigwait({signal.SIGCHLD})
            self.tree.kind, self.tree.init = "pidns", init
        pid = os.fork()
        LIBC.setns(own, CLONE_NEWPID)  # one whose children go elsewhere can have no threads
        return pid

    def become_command(self) -> None:
        """Runs in the forked child. Ends in exec, or with one line on the status pipe, which exec closes."""
        spec, code, doing, hint = self.spec, 126, "start", ""
        try:
            os.setsid()
            os.dup2(self.output.out_w, 1)
            os.dup2(self.output.err_w, 2)
            for number in IGNORED:  # the others are at their default; descriptors are close-on-exec, all of them
                signal.signal(number, signal.SIG_DFL)
            os.umask(os.umask(0) if spec.get("umask") is None else spec["umask"])
            for group in spec.get("join", ()):
                doing, hint = f"enter {group}", "this host runs nothing without its memory ceiling: see agent.log"
                open(f"{group}/cgroup.procs", "wb", 0).write(b"0")
            doing, hint = f"put it under {self.tree.kind}", 'set "control" to "auto" in embedded.json'
            if self.tree.kind == "freezer":
                open(f"{self.group}/cgroup.procs", "wb", 0).write(b"0")
            if self.tree.kind == "pidns":
                failed = LIBC.unshare(CLONE_NEWNS) or LIBC.mount(None, b"/", None, SLAVE_ALL, None)
                if failed or LIBC.mount(b"proc", b"/proc", b"proc", NO_SUID_DEV_EXEC, None):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            doing, hint = f"enter {spec['cwd']}", "create it on this host, or name another working directory with --cwd"
            os.chdir(spec["cwd"])
            doing, hint = f"run {spec['argv'][0]}", "check its execute bit and its #! line"
            signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a stop that came until here is delivered now: nothing runs
            os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
        except BaseException as e:
            if isinstance(e, FileNotFoundError | NotADirectoryError) and doing.startswith("run"):
                code, hint = 127, "check the name, PATH, and what its #! line names, as this host sees them"
            text = f"cannot {doing}: {getattr(e, 'strerror', None) or e}; {hint}"
            os.write(self.status_w, json.dumps({"code": code, "error": text[:600]}).encode())
        os._exit(code)

    def start(self) -> None:
        self.tree.leader = self.fork_apart() if self.spec.get("control") == "pidns" else self.fork()
        if self.tree.leader == 0:
            self.become_command()
        for fd in (self.status_w, self.output.out_w, self.output.err_w):
            os.close(fd)
        with suppress(OSError), open(RESERVE, "a") as file:  # without it a full disk is waited for, at the end
            os.posix_fallocate(file.fileno(), 0, 16384)
        _thread.start_new_thread(self.output.run, ())
        self.mine |= {"leader_pid": self.tree.leader, "leader_start_ticks": Proc(self.tree.leader).start}
        self.mine |= {"control": self.tree.kind, "cgroup": self.tree.cgroup or None}
        with suppress(OSError):  # the disk is full: the first version stands, which names the supervisor
            self.publish(".supervisor.tmp", "w")
            os.rename(".supervisor.tmp", "supervisor.json")

    def outcome(self, trouble: str | None) -> dict[str, object]:
        """What exit.json says. Called when the tree is empty and the output is on the disk."""
        tree, output, usage = self.tree, self.output, resource.getrusage(resource.RUSAGE_CHILDREN)
        said = os.read(self.status, 4096) if tree.leader else json.dumps({"code": 126, "error": trouble}).encode()
        failure = json.loads(said) if said else None
        signaled = failure is None and os.WIFSIGNALED(tree.status)
        kind = "spawn_failed" if failure else "signaled" if signaled else "exited"
        code = failure["code"] if failure else None if signaled else os.WEXITSTATUS(tree.status)
        for group, *_ in os.walk(self.group, topdown=False):
            with suppress(OSError):
                os.rmdir(group)
        record: dict[str, object] = {"v": 1, **self.names, "kind": kind, "code": code}
        record |= {"error": failure["error"] if failure else trouble, "stopped": tree.stopped, "killed": tree.killed}
        record |= {"signal": os.WTERMSIG(tree.status) if signaled else None, "stragglers": tree.stragglers}
        record |= {"started_at": self.began[0], "ended_at": tree.ended[0], "wall_s": tree.ended[1] - self.began[1]}
        record |= {"output_bytes": output.size, "stdout_bytes": output.seen[1], "stderr_bytes": output.seen[2]}
        floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + 1024  # the child was a copy of this one until exec
        peak, cpu = usage.ru_maxrss if usage.ru_maxrss > floor else None, usage.ru_utime + usage.ru_stime
        lost = sum(count for tag, count in output.lost.items() if tag & DISK)
        record |= {"output_lost_bytes": lost, "output_error": output.error or None, "control": tree.kind}
        record |= {"output_quota_bytes": self.spec.get("output_quota"), "output_gaps": output.told()}
        return record | {"max_rss_kb": peak, "cpu_s": cpu, "boot_id": self.mine["boot_id"], "tree_empty": True}


def leave_mark() -> int | None:
    """Marks this process and all that will come of it, so that they are found if this one dies without them.

    By a resource limit that Linux has not enforced since 2.4 and still hands down through fork, exec and setsid: a
    cleared environment, a new session and lost parents do not shed it. It may only be lowered, so a mark ends in ones:
    a supervisor inside a job takes a number out of their range, which whoever looks for the outer job knows by its
    leading bits. None where no range is left (marks within marks within marks, or a limit set by somebody else).
    """
    with suppress(OSError, ValueError):
        limit = resource.getrlimit(RLIMIT_LOCKS)[1]
        endless = limit == resource.RLIM_INFINITY
        ones = 61 if endless else (~limit & (limit + 1)).bit_length() - 1
        if ones >= 15:
            kept = ones // 2
            own = int.from_bytes(os.urandom(8), "little") % ((1 << ones - kept) - 1)  # never all ones, like the outer
            mark = (0 if endless else limit >> ones << ones) | own << kept | (1 << kept) - 1
            resource.setrlimit(RLIMIT_LOCKS, (mark, mark))
            return mark
    return None


def write_exit(record: dict[str, object]) -> None:
    """exit.json, durably: into the blocks kept for it; failing that, those are freed and it is tried for minutes."""
    for attempt in range(EXIT_TRIES):
        try:
            fd, text = os.open(RESERVE, os.O_WRONLY | os.O_CREAT, 0o600), json.dumps(record).encode()
            write_all(fd, text)
            os.ftruncate(fd, len(text))
            os.fsync(fd)
            os.rename(RESERVE, "exit.json")
            os.fsync(os.open(".", os.O_RDONLY))
            break
        except OSError:
            if os.stat(".").st_nlink == 0:  # the folder was deleted: there is nowhere to write to any more
                return
            with suppress(OSError):
                os.unlink(RESERVE)
            time.sleep(min(5.0, 0.05 * 2 ** min(attempt, 9)))


def reply(control: socket.socket, request: bytes, **said: object) -> None:
    with suppress(OSError):  # the agent is gone; its successor reads the folder
        control.send(json.dumps({"dir": json.loads(request)["dir"], **said}).encode(), socket.MSG_DONTWAIT)


def supervise(control: socket.socket, went: int) -> None:
    """The life of one supervisor: waits for the next request, and owns that attempt to its end."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    attempt, trouble = Attempt(), None
    request, claims, flags, _ = socket.recv_fds(control, 65536, 250)
    for fd in claims:
        os.set_inheritable(fd, False)  # recv_fds of Python 3.11 passes no flags on, so MSG_CMSG_CLOEXEC does nothing
    if not request:
        os.write(went, b".")  # the agent is gone
        return
    try:
        if flags & socket.MSG_CTRUNC:
            raise OSError("not all claims arrived: raise the agent's ulimit -n")
        attempt.begin(json.loads(request)["dir"])
    except Exception as e:
        reply(control, request, ok=False, error=f"{type(e).__name__}: {e}")
        return
    try:
        attempt.start()
        reply(control, request, ok=True, **{key: attempt.mine[key] for key in ("pid", "start_ticks", "leader_pid")})
        control.close()
        os.write(went, b"+")  # only now: the fork of the next one would have slowed this start
        attempt.tree.watch(attempt.grace)
    except Exception as e:
        trouble = f"the supervisor failed, and ended the job: {type(e).__name__}: {e}"
        attempt.tree.kill_everything()
    attempt.output.finish()
    write_exit(attempt.outcome(trouble))
    attempt.output.nudge("exit")


def serve() -> None:
    """The spawner: keeps one supervisor ahead, which takes the next request. Ends with the agent's end of the socket"""
    control, null = socket.socket(fileno=os.dup(0)), os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in {*IGNORED, signal.SIGCHLD} else signal.SIG_DFL)
    gc.disable()  # nothing here makes cycles, and a collection would copy the pages that supervisors share
    said = b"+"
    while said != b".":
        time.sleep(0 if said else 0.1)  # nothing said: it died, or could not be forked
        coming, went = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, GATED)
        with suppress(OSError):
            if os.fork() == 0:
                try:
                    supervise(control, went)
                finally:
                    os._exit(0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GATED)
        os.close(went)
        said = os.read(coming, 1)
        os.close(coming)


if __name__ == "__main__":
    serve()
