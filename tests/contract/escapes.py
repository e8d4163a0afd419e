"""Ways out of a job, as programs: each leaves something that must not get away, whatever kind of control there is.

A program's processes show themselves to the test by connecting to its socket, once: the kernel says who connected, as a
pid of the test's own namespace, and the test keeps a pidfd. So it does not matter what they do to their names, their
environment or their descriptors afterwards. Beside that each maps a file that carries the job's marker, and bears the
marker in its arguments or environment unless it took care not to.
"""

from __future__ import annotations

# `here()` shows this process to the test; `lead()` is how the leader goes on: for ever, or to its natural end.
PRELUDE = """
import _socket, ctypes, mmap, os, signal, sys, time
MARK, NATURAL, SOCKET = sys.argv[1], sys.argv[2] == "natural", sys.argv[3]
LIBC = ctypes.CDLL(None, use_errno=True)
fd = os.open(os.path.join(os.path.dirname(SOCKET), MARK), os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 4096)
MAPPED = mmap.mmap(fd, 4096)
os.close(fd)
def here():
    told = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    told.connect(SOCKET)
    told.close()
def ignore():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
def forever():
    while True:
        time.sleep(1000)
def rest():
    ignore(); here(); forever()
def lead():
    if NATURAL:
        time.sleep(0.05); sys.exit(7)
    forever()
def unname():
    # What ps and /proc show of the arguments and the environment lies in this process's own memory.
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    for start, end in (fields[45:47], fields[47:49]):
        ctypes.memset(int(start), 0, int(end) - int(start))
    LIBC.prctl(15, b"kworker/7:7", 0, 0, 0)
"""

#: name -> (how many show themselves before the end is asked for, the program)
ESCAPES: dict[str, tuple[int, str]] = {
    "setsid": (1, "if os.fork() == 0:\n    os.setsid(); rest()\nlead()"),
    "double fork": (
        1,
        """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        rest()
    os._exit(0)
os.wait(); lead()
""",
    ),
    "TERM ignored, by leader and child": (2, "ignore()\nif os.fork() == 0:\n    rest()\nhere(); lead()"),
    "a trap that returns": (
        2,
        """
signal.signal(signal.SIGTERM, lambda number, frame: None)
if os.fork() == 0:
    here(); forever()
here(); lead()
""",
    ),
    "a trap that starts new processes": (
        1,
        """
def trap(number, frame):
    if os.fork() == 0:
        os.setsid(); ignore()
        if os.fork() == 0:
            rest()
        rest()
signal.signal(signal.SIGTERM, trap)
if os.fork() == 0:
    here(); forever()
lead()
""",
    ),
    "another name, in prctl and argv": (1, "if os.fork() == 0:\n    os.setsid(); unname(); rest()\nlead()"),
    "a cleared environment": (
        1,
        """
if os.fork() == 0:
    os.setsid()
    code = "import _socket,os,signal,sys,time;signal.signal(15,signal.SIG_IGN);told=_socket.socket(1,1);"
    code += "told.connect(sys.argv[2]);told.close();time.sleep(1000)"
    os.execve(sys.executable, ["[kworker/7:7]", "-I", "-S", "-c", code, MARK, SOCKET], {})
lead() if not NATURAL else (time.sleep(0.3), lead())
""",
    ),
    "closed descriptors": (
        2,
        """
if os.fork() == 0:
    here(); os.setsid(); ignore()
    if os.fork() == 0:
        here(); os.closerange(0, 256); forever()
    os.closerange(0, 256)
    os._exit(0)
os.wait(); lead()
""",
    ),
    "a child that holds the output pipe": (
        1,
        """
if os.fork() == 0:
    ignore(); here()
    while True:
        os.write(1, b"still here" * 1000)
lead()
""",
    ),
    "suspended in vfork": (
        1,
        """
if os.fork() == 0:
    os.setsid(); ignore(); here()
    if LIBC.vfork() == 0:
        while True:
            LIBC.pause()
lead()
""",
    ),
    "stopped under a tracer": (
        2,
        """
if os.fork() == 0:
    os.setsid(); ignore()
    child = os.fork()
    if child == 0:
        here(); LIBC.ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP); forever()
    os.waitpid(child, os.WUNTRACED)
    LIBC.ptrace(0x4200, child, 0, ctypes.c_void_p(0x40))  # it is to stop at its exit as well
    rest()
lead()
""",
    ),
    "a PID namespace of its own": (
        2,
        """
if os.fork() == 0:
    os.setsid(); ignore()
    if LIBC.unshare(1 << 29):
        here()  # not allowed to: then it is an ordinary child, and its children are
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid(); rest()
        rest()
    forever()
lead()
""",
    ),
    "a fork storm": (
        3,
        """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid(); ignore(); here()
        while True:
            if os.fork() == 0:
                if os.fork() == 0:
                    os.setsid()
                time.sleep(0.05); os._exit(0)
            time.sleep(0.002)
lead()
""",
    ),
    "forks between the list and the kill": (
        1,
        """
if os.fork() == 0:
    ignore(); here()
    hops = 0
    while True:  # hops from process to process, always another pid
        if os.fork():
            os._exit(0)
        os.setsid()
        hops += 1
        MAPPED[:8] = hops.to_bytes(8, "little")  # by this it is known to live, whoever cannot see it
lead()
""",
    ),
    "respawns what dies": (
        1,
        """
if os.fork() == 0:
    os.setsid(); ignore()
    for _ in range(3):
        if os.fork() == 0:
            forever()
    here()
    while True:
        os.wait()
        if os.fork() == 0:
            forever()
lead()
""",
    ),
    "a stopped child": (
        1,
        """
child = os.fork()
if child == 0:
    ignore(); here(); os.kill(os.getpid(), signal.SIGSTOP); forever()
os.waitpid(child, os.WUNTRACED); lead()
""",
    ),
    "a stopped group": (
        1,
        """
child = os.fork()
if child == 0:
    os.setpgid(0, 0); ignore(); here(); os.kill(os.getpid(), signal.SIGSTOP); forever()
os.waitpid(child, os.WUNTRACED); lead()
""",
    ),
    "zombies nobody waits for": (
        1,
        """
if os.fork() == 0:
    os.setsid(); ignore()
    for _ in range(5):
        if os.fork() == 0:
            os._exit(0)
    rest()
lead()
""",
    ),
    "its first thread ended": (
        1,
        """
if os.fork() == 0:
    import _thread
    os.setsid(); ignore()
    _thread.start_new_thread(forever, ())
    time.sleep(0.05); here()
    LIBC.syscall(60 if os.uname().machine == "x86_64" else 93, 0)
lead() if not NATURAL else (time.sleep(0.1), lead())
""",
    ),
    "a subreaper of its own": (
        4,
        """
if os.fork() == 0:
    LIBC.prctl(36, 1, 0, 0, 0); os.setsid(); ignore()
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                rest()
            os._exit(0)
    rest()
lead()
""",
    ),
    "frozen in a group below its own": (
        1,
        """
def frozen():
    group = next((line[line.index(":/") + 1:].strip() for line in open("/proc/self/cgroup") if ":freezer:" in line), "")
    if "tenure-" not in group:
        return  # what it froze outside of a group of ours is nobody's to thaw
    for mount in [line.split()[4] for line in open("/proc/self/mountinfo") if ",freezer" in line]:
        inner = f"{mount}{group.rstrip('/')}/{MARK}"
        os.mkdir(inner)
        open(inner + "/cgroup.procs", "w").write("0")
        open(inner + "/freezer.state", "w").write("FROZEN")
if os.fork() == 0:
    os.setsid(); ignore(); here()
    frozen()
    forever()
lead() if not NATURAL else (time.sleep(0.1), lead())
""",
    ),
    "out of its cgroups": (
        1,
        """
if os.fork() == 0:
    os.setsid(); ignore()
    for line in open("/proc/self/mountinfo"):
        if " - cgroup" in line and (" - cgroup2 " in line or "freezer" in line):
            try:
                open(line.split()[4] + "/cgroup.procs", "w").write("0")
            except OSError:
                pass  # not allowed to: it stays where it is
    rest()
lead() if not NATURAL else (time.sleep(0.1), lead())
""",
    ),
}
