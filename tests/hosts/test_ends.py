"""Reboot, restart, or silence: what a host's kernel says of itself decides how the end of a job is named.

A reboot is another boot id, mounted over the kernel's own; a restarted worker is another PID namespace in the same
boot, as a container has that is started again. The cases are those of ``tests/cases/ends.json``.
"""

from __future__ import annotations

import re
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.hosts.fleet import Fleet, Host, until

pytestmark = [
    pytest.mark.root(reason="boot ids are mounted and PID namespaces made, to tell reboot, restart and silence apart"),
    pytest.mark.timeout(180),
]

#: Mounts a file over the kernel's boot id, for what runs in it alone.
BOOT = 'mount --make-rprivate / && mount --bind {file} /proc/sys/kernel/random/boot_id && exec "$0" "$@"'
#: An init of its own for an agent: whoever dies with it is gone as the processes of a container are.
WORKER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def booted(fleet: Fleet, host: Host) -> str:
    """Gives a host another boot id; gives it."""
    file = fleet.folder / f"{host.name}.boot"
    new = str(uuid.uuid4())
    file.write_text(new + "\n")
    host.prefix = ("unshare", "--mount", "sh", "-c", BOOT.format(file=file))
    return new


def test_a_reboot_is_told_by_the_boot_id_and_its_time_is_derived(hosts: Fleet) -> None:
    host = hosts.host("rebooted")
    first = booted(hosts, host)
    hosts.join(host)
    story = hosts.story(host)
    lease = hosts.controller.devices()["rebooted:gpu0"]["lease"]
    until(lambda: (host.paths.attempt(story.id, 1) / "host.log").exists(), "a sample of the host beside the job")
    host.dies()
    down = hosts.controller.reaches("rebooted:gpu0", "unknown")
    assert re.fullmatch(r"unknown \(no contact \d+s\)", down["words"])
    assert down["lease"] == lease, "until the host itself has said so, nothing is over"
    second = booted(hosts, host)
    host.agent()
    record = hosts.controller.ended(story.id)
    outcome = record["outcome"]
    assert (outcome["ending"], outcome["cause"]) == ("lost", "host_rebooted")
    assert "host rebooted" in record["words"]
    told = outcome["stats"]["reboot"]
    assert (told["boot_before"], told["boot_now"]) == (first, second)
    began = told["boot_began"]
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert began["strength"] == "derived"
    assert abs(began["no_later_than"] - (time.time() - uptime)) < 5.0
    assert "wall clock" in began["assumption"]
    # The kernel of this test did not boot: its uptime says so, and the words give what it says the weight it has.
    assert "derived from uptime" in outcome["detail"], outcome["detail"]
    assert "derived from uptime" in hosts.controller.rc("describe", story.id).stdout
    device = hosts.controller.reaches("rebooted:gpu0", "ready")
    assert device["condition"]["outcome"] == "clear", "free after a look in the new boot"
    again = hosts.story(host)
    again.holds()


def test_a_worker_that_is_started_again_says_so(hosts: Fleet) -> None:
    host = hosts.joined("worker", *WORKER)
    for _ in range(2):  # the kernel gives the number of the first namespace to the third
        story = hosts.story(host)
        assert host.process is not None
        host.kill(signal.SIGKILL)
        until(lambda: not host.mine(), "its processes went with its init")
        host.agent()
        record = hosts.controller.ended(story.id)
        assert (record["outcome"]["ending"], record["outcome"]["cause"]) == ("lost", "worker_restarted"), record[
            "words"
        ]
        assert "worker restarted" in record["words"]
        assert not story.alive()
        hosts.controller.reaches("worker:gpu0", "ready")


def test_an_agent_that_is_started_again_finds_its_job_going_on(hosts: Fleet) -> None:
    host = hosts.joined("agent")
    story = hosts.story(host)
    before = _who(hosts, "agent")
    host.kill(signal.SIGKILL)
    hosts.controller.reaches("agent:gpu0", "unknown")
    host.agent()
    hosts.controller.reaches("agent:gpu0", "busy")
    after = _who(hosts, "agent")
    assert (before["boot_id"], before["namespace"]) == (after["boot_id"], after["namespace"])
    assert before["instance"] != after["instance"]
    assert hosts.controller.record(story.id)["state"] == "running"
    story.holds()


def test_while_nothing_is_known_nothing_is_said_of_the_job(hosts: Fleet) -> None:
    host = hosts.joined("silent")
    story = hosts.story(host)
    host.dies()  # whatever became of it: nobody has told
    hosts.controller.reaches("silent:gpu0", "unknown")
    time.sleep(1.0)
    record = hosts.controller.record(story.id)
    assert (record["state"], record["outcome"]) == ("running", None)
    assert hosts.controller.devices()["silent:gpu0"]["words"].startswith("unknown (no contact ")


def test_processes_gone_in_the_same_boot_and_namespace_have_no_cause(hosts: Fleet) -> None:
    host = hosts.joined("gone")
    story = hosts.story(host)
    host.dies()
    host.agent()
    record = hosts.controller.ended(story.id)
    assert (record["outcome"]["ending"], record["outcome"]["cause"]) == ("lost", "lost_cause_not_established")
    hosts.controller.reaches("gone:gpu0", "ready")


def _who(hosts: Fleet, host: str) -> dict[str, Any]:
    """What an agent said it is, when it came in last."""
    said = [e for e in hosts.controller.events() if e["kind"] == "agent_registered" and e["host"] == host]
    return said[-1]
