"""A real agent is killed at many instants after a job's end; whoever comes after says the same of the same job."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent_kit import FakeController, Host, Job, until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    (made / "usr/bin").mkdir(parents=True)
    return made


async def test_killed_at_any_instant_after_an_end_it_is_said_of_that_job(tmp_path: Path, root: Path) -> None:
    host = Host.make(
        tmp_path,
        leftovers=True,
        leftovers_root=str(root),
        leftovers_home=str(tmp_path),
        leftovers_every_s=0.01,
        leftovers_idle_s=3600,
    )
    try:
        async with FakeController(host.layout.ctl_sock).serving() as controller:
            host.start()
            await until(lambda: controller.left, 30, "the first look")
            expected: dict[str, list[str]] = {}
            for number, delay_s in enumerate((0.0, 0.01, 0.03, 0.06, 0.12, 0.25)):
                name, tool = f"k{number}", root / f"usr/bin/t{number}"
                job = Job(await controller.connected(), "cpu0", job=name, token=number + 1)
                await controller.tell(job.shell(f"printf '#!/bin/sh\\n' > {tool}; chmod +x {tool}"))
                await controller.wait("ended", name, 30)
                await asyncio.sleep(delay_s)
                host.kill()
                expected[str(tool)] = [name]
                seen = len(controller.registers)
                host.start()

                def back(seen: int = seen) -> bool:
                    return len(controller.registers) > seen

                await until(back, 30, "the next agent")

                def told(name: str = name) -> Any:
                    return controller.left and name in controller.left[-1]["jobs"]

                await until(told, 30, f"what {name} left, killed {delay_s} s after its end")
                last = controller.left[-1]["leftovers"]
                assert {each["item"]: each["by"]["jobs"] for each in last} == expected
                assert all(each["by"]["kind"] == "job" for each in last)
    finally:
        host.close()


async def test_a_look_that_hangs_delays_neither_a_start_nor_an_end(tmp_path: Path, root: Path) -> None:
    (root / "var/lib/dpkg").mkdir(parents=True)
    os.mkfifo(root / "var/lib/dpkg/status")  # whoever opens it waits for a writer that never comes
    host = Host.make(
        tmp_path, leftovers=True, leftovers_root=str(root), leftovers_home=str(tmp_path), leftovers_every_s=0.01
    )
    try:
        async with FakeController(host.layout.ctl_sock).serving() as controller:
            host.start()
            register = await controller.connected()
            began = time.monotonic()
            for number in range(5):
                job = Job(register, "cpu0", job=f"k{number}", token=number + 1)
                await controller.tell(job.shell("exit 0"))
                await controller.proved("h:cpu0", f"k{number}", 15)
            assert time.monotonic() - began < 15
            assert not controller.left, "the look hangs meanwhile: nothing is told of this worker"
            # What hung is unknown, and the rest is told all the same.
            await until(lambda: controller.left, 40, "the first look")
            told = controller.left[-1]
            assert [(each["part"], each["why"].partition(":")[0]) for each in told["unread"]] == [
                ("packages:dpkg", "timeout"),
                ("mounts", "not_supported"),
            ]
    finally:
        host.close()
