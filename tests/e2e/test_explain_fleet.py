"""``rc run --select ... --explain`` on a fleet of four unlike devices: the real program, controller and socket.

The four hosts are scripted agents that offer each device of the field case with its labels as they were read there.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.contract.controller_world import World, connected, offered, registration
from tests.e2e.conftest import RC, House
from tests.e2e.served import serving

from tenure.domain.label import read_label

CASE = json.loads((Path(__file__).parents[1] / "cases/selectors.json").read_text())
#: Each device's reason in words has to speak of what stood in the way of just this device.
WORDS = {"unknown": "unknown", "absent": "no such label", "matches": "matches"}


async def rc(house: House, *words: str) -> tuple[int, str, str]:
    """(exit status, standard output, standard error) of the program, while the controller runs in this loop."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(RC, *words, env=house.env, stdout=pipe, stderr=pipe)
    out, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode(), said.decode()


def labels(told: dict[str, Any]) -> dict[str, Any]:
    return {key: read_label(value, "detected", 1.0).to_dict() for key, value in told.items()}


@pytest.mark.timeout(120)
async def test_each_device_of_the_fleet_has_one_reason(empty_house: House) -> None:
    house, fleet = empty_house, CASE["fleet"]
    async with serving(house.paths), AsyncExitStack() as agents:
        world = cast(World, SimpleNamespace(path=str(house.paths.ctl_sock)))
        for name, told in fleet.items():
            host = name.partition(":")[0]
            device = offered(name, labels=labels(told))
            await agents.enter_async_context(connected(world, registration(f"a-{host}", device, host=host)))

        status, page, said = await rc(house, "run", "--select", "vram>=40G", "--explain", "--", "true")
        assert (status, said) == (0, "")
        rows = {line.split()[0]: line for line in page.splitlines()[1:]}
        assert set(rows) == set(fleet)
        for name, outcome in CASE["explain"]["vram>=40G"].items():
            assert rows[name].split()[1] == ("yes" if outcome == "matches" else "no")
            assert WORDS[outcome] in rows[name], rows[name]
        assert "not_supported" in rows["dgx:gpu0"], "the reason that the probe gave"

        status, body, _ = await rc(house, "run", "--select", "vram>=40G", "--explain", "-o", "json", "--", "true")
        assert status == 0
        told = json.loads(body)
        assert told["enough"] is True
        reasons = {name: row["reason"] for name, row in told["devices"].items()}
        assert reasons["pod:gpu0"] == "matches"
        assert all(WORDS[outcome] in reasons[name] for name, outcome in CASE["explain"]["vram>=40G"].items())
        assert {row["state"] for row in told["devices"].values()} == {"ready"}

        for select, right in CASE["right"].items():
            status, body, _ = await rc(house, "explain", select, "-o", "json")
            devices = json.loads(body)["devices"]
            assert sorted(name for name, row in devices.items() if row["reason"] == "matches") == right, select
            assert status == (0 if right else 67), select
        for select in CASE["malformed"]:
            status, _, said = await rc(house, "run", "--select", select, "--explain", "--", "true")
            assert (status, "rc: " in said) == (64, True), select
        status, body, _ = await rc(house, "jobs", "-o", "json")
        assert (status, json.loads(body)["jobs"]) == (0, []), "nothing was submitted"
