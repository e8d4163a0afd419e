"""A person on a host declared to reboot: what they see of a job at its memory ceiling, and of one below it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.e2e.conftest import House

from tenure.agent.survivors import remove_cgroup

GLUTTON = "held = []\nwhile True: held.append(b'x' * (4 << 20))"


def test_a_job_at_its_memory_ceiling_is_told_with_its_figures(empty_house: House) -> None:
    house = empty_house
    protect = {"ooms": "reboots", "reserve": "64M", "ceiling": "128M"}
    house.paths.root.mkdir(parents=True, exist_ok=True)
    (house.paths.root / "embedded.json").write_text(json.dumps({"agent": {"protect": protect}}))
    try:
        house.up()
        done = house.rc("run", "--", sys.executable, "-c", GLUTTON)
        assert done.returncode == 137, done
        assert b"memory ceiling: limit 128.0 MiB" in done.stderr
        page = house.rc("describe", str(house.newest()["id"])).stdout.decode()
        assert "memory ceiling  128.0 MiB, peak 12" in page
        assert "1 killed by the kernel" in page
        assert "reserve 64.0 MiB, not_established" in page
        assert "next time: --need-mem 192M (the peak and 20 %)" in page
        assert house.rc("run", "--", sys.executable, "-c", "print('fine')").returncode == 0
        page = house.rc("describe", str(house.newest()["id"])).stdout.decode()
        assert "peak of its cgroup" in page
        assert "lowest MemAvailable" in page
        assert "memory ceiling  128.0 MiB" in page
    finally:
        parent = Path(json.loads((house.paths.agent / "memory-group.json").read_text())["parent"])
        house.rc("down")
        remove_cgroup(parent)
