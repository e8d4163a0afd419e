"""A supervisor that begins on a full disk: nothing is run, and its folder says so once it can be asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.supervised import Floor, alive
from tests.kill.test_full_disk import fill, small_disk

from tenure.agent.adopt import Ended, Lost, examine
from tenure.agent.spawner import StartRefused

pytestmark = pytest.mark.root(reason="mounts a small disk, to show that a full one leaves no half of a record")


async def test_a_full_disk_leaves_no_half_of_a_record(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        floor = Floor(disk)
        try:
            for room in range(0, 16384, 4096):
                folder, mark = floor.prepare(["/bin/true"])
                (disk / "kept").write_bytes(b"\0" * room)
                fill(disk / "filler")
                (disk / "kept").unlink()
                begun = True
                try:
                    await floor.spawner.start(folder)
                except StartRefused:
                    begun = False
                    assert not (folder / "supervisor.json").exists(), "half a record names nobody"
                    unsealed = examine(folder)
                    assert isinstance(unsealed, Lost)
                    assert unsealed.reason in ("unreadable", "never_started")
                assert begun or not alive(mark)
                (disk / "filler").unlink()
                if not begun:
                    found = examine(folder)
                    assert isinstance(found, Lost)
                    assert found.reason == "never_started", found
                    with pytest.raises(StartRefused):
                        await floor.spawner.start(folder)
                    assert not isinstance(examine(folder), Ended)
                if room == 0:
                    assert not begun, "there was room after all"
        finally:
            await floor.close()
