"""Numbers of processes are used again: the next process of a number is nobody's job, and nobody's supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hosts.fleet import Fleet, Host, frozen, until
from tests.hosts.test_ends import WORKER

pytestmark = [
    pytest.mark.root(reason="pids of a namespace are given to strangers, to show that none of them is signalled"),
    pytest.mark.timeout(180),
]

#: Takes the numbers it is told, in the PID namespace it runs in, by processes that ignore nothing; says each once it is
#: there, and which signals they died of when its input ends.
STRANGERS = """
import json, os, sys, time
wanted = [int(word) for word in sys.argv[1:]]
taken = {}
for number in wanted:
    for _ in range(2000):
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(number - 1))
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.execv("/bin/sleep", ["sleep", "1000"])
        if pid == number:
            break
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    else:
        sys.exit(f"{number} is not to be had")
    taken[number] = pid
print(json.dumps(sorted(taken)), flush=True)
sys.stdin.read()
print(json.dumps({pid: os.waitpid(pid, os.WNOHANG) for pid in taken.values()}), flush=True)
for pid in taken.values():
    os.kill(pid, 9)
"""


class Strangers:
    """Processes in a host's PID namespace with numbers of our choice."""

    def __init__(self, host: Host, *numbers: int) -> None:
        assert host.process is not None
        [init] = Path(f"/proc/{host.process.pid}/task/{host.process.pid}/children").read_text().split()
        self.numbers = numbers
        self._helper = subprocess.Popen(
            ["nsenter", "--target", init, "--pid", "--mount", sys.executable, "-I", "-S", "-c", STRANGERS]
            + [str(number) for number in numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={},
        )
        assert self._helper.stdout is not None
        assert json.loads(self._helper.stdout.readline()) == sorted(numbers)

    def untouched(self) -> None:
        """Every one of them still runs; then they go."""
        out, _ = self._helper.communicate(timeout=30)
        assert json.loads(out) == {str(number): [0, 0] for number in self.numbers}, "a stranger was signalled"


#: An init that collects everybody's dead, and starts the agent once more when it died.
INIT = (*WORKER, "sh", "-c", '"$0" "$@" & wait; "$0" agent & wait')


def _numbers(host: Host, job: str) -> tuple[int, int]:
    """The numbers of a job's supervisor and of its command, as they are in the host's namespace."""
    record = json.loads((host.paths.attempt(job, 1) / "supervisor.json").read_bytes())
    return int(record["pid"]), int(record["leader_pid"])


def _outside(host: Host, inside: int) -> int:
    """The number by which this test knows a process of the host."""
    for pid in host.mine():
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            words = line.split()
            if words[0] == "NSpid:" and len(words) > 2 and words[-1] == str(inside):
                return pid
    raise AssertionError(f"no process of {host.name} has the number {inside}")


def _agent(host: Host) -> int:
    return _outside(host, int(host.paths.agent_lock.read_text()))


def _end(host: Host, *inside: int) -> None:
    """SIGKILL; waits until the numbers are free."""
    pids = [_outside(host, number) for number in inside]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # the command goes with its supervisor
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "their numbers to be free", 20)


def test_a_stop_never_reaches_the_process_that_got_the_number(hosts: Fleet) -> None:
    host = hosts.joined("numbers", *INIT)
    story = hosts.story(host)
    numbers = _numbers(host, story.id)
    with frozen(_agent(host)):
        _end(host, *numbers)  # the agent cannot see it
        strangers = Strangers(host, *numbers)
        hosts.controller.ask("POST", f"/v1/jobs/{story.id}/stop", {"reason": "test"})
    record = hosts.controller.ended(story.id)
    assert record["outcome"]["ending"] == "lost", record["words"]
    hosts.controller.reaches("numbers:gpu0", "ready")
    strangers.untouched()


def test_a_new_agent_takes_no_stranger_for_its_supervisor(hosts: Fleet) -> None:
    host = hosts.joined("adopts", *INIT)
    story = hosts.story(host)
    numbers, agent = _numbers(host, story.id), _agent(host)
    with frozen(agent):
        _end(host, *numbers)
        strangers = Strangers(host, *numbers)
        os.kill(agent, signal.SIGKILL)  # and the next one starts beside the strangers
    record = hosts.controller.ended(story.id)
    assert (record["outcome"]["ending"], record["outcome"]["cause"]) == ("lost", "lost_cause_not_established")
    hosts.controller.reaches("adopts:gpu0", "ready")
    hosts.story(host).holds()
    strangers.untouched()
