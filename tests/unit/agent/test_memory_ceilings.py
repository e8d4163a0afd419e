"""Making, finding again and sweeping the groups of a host that needs ceilings; folders stand in for the kernel's."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenure.agent import memory_groups
from tenure.agent.memory_ceilings import MemoryCeilings, Unprotected

MIB = 1 << 20


def ceilings(root: Path, *, boot: str = "b1", attempts: Any = (), **protect: Any) -> MemoryCeilings:
    (root / "agent").mkdir(exist_ok=True)
    shell = SimpleNamespace(
        options=SimpleNamespace(protect={"ooms": "reboots", "reserve": "64M", **protect}),
        identity=SimpleNamespace(boot_id=boot, agent="a1"),
        layout=SimpleNamespace(agent=root / "agent"),
        state=SimpleNamespace(attempts=dict.fromkeys(attempts)),
    )
    return MemoryCeilings(shell)  # type: ignore[arg-type]


def as_version_2(monkeypatch: pytest.MonkeyPatch, parent: Path) -> list[str]:
    """What the kernel would do: the parent has the controller. Gives the names that were asked for."""
    asked = []

    def make_parent(name: str) -> tuple[int, Path]:
        asked.append(name)
        parent.mkdir(exist_ok=True)
        return 2, parent

    monkeypatch.setattr(memory_groups, "make_parent", make_parent)
    return asked


def test_under_version_2_the_supervisor_works_inside_the_limited_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tmp_path / "tenure-a1"
    as_version_2(monkeypatch, parent)
    told = ceilings(tmp_path, ceiling="256M").make(("j1", 2))
    group = parent / "tenure-j1.2"
    assert told["control"] == "cgroup2"
    assert told["cgroup_parent"] == str(group)
    assert told["join"] == [f"{group}/tenure-j1.2"], "where a supervisor makes the attempt's own group"
    assert (group / "memory.max").read_text() == str(256 * MIB)
    assert (group / "memory.oom.group").read_text() == "1"
    assert int((parent / "memory.max").read_text()) > 256 * MIB
    assert told["ceiling"]["limit"] == 256 * MIB
    assert told["ceiling"]["reserve_is"] == "not_established"


def test_the_parent_of_an_earlier_agent_is_used_again_in_the_same_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = as_version_2(monkeypatch, tmp_path / "parent")
    ceilings(tmp_path).make(("j1", 1))
    ceilings(tmp_path).make(("j2", 1))
    assert asked == ["tenure-a1"]
    ceilings(tmp_path, boot="b2").make(("j3", 1))
    assert asked == ["tenure-a1"] * 2


def test_where_no_group_can_be_made_nothing_is_started_and_it_says_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_groups, "parents", lambda name: iter([(2, Path("/proc/none") / name)]))
    with pytest.raises(Unprotected, match=r"/proc/none/tenure-a1: .*; nothing was run"):
        ceilings(tmp_path).make(("j1", 1))
    monkeypatch.setattr(memory_groups, "parents", lambda name: iter([]))
    with pytest.raises(Unprotected, match="no memory controller of cgroups is mounted"):
        ceilings(tmp_path).make(("j1", 1))


def test_a_group_in_use_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = tmp_path / "parent"
    as_version_2(monkeypatch, parent)
    (parent / "tenure-j1.1").mkdir(parents=True)
    (parent / "tenure-j1.1/somebody").touch()  # rmdir fails, as it does for a group with processes
    with pytest.raises(Unprotected, match="is there already and not empty"):
        ceilings(tmp_path).make(("j1", 1))


def test_a_sweep_removes_the_empty_groups_of_forgotten_attempts_alone(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    for name in ("tenure-known.1", "tenure-gone.1", "tenure-busy.1"):
        (parent / name).mkdir(parents=True)
    (parent / "tenure-busy.1/somebody").touch()
    found = ceilings(tmp_path, attempts=[("known", 1)])
    found.sweep()  # nothing is on record: nothing is touched
    assert len(list(parent.iterdir())) == 3
    record = {"boot": "b1", "version": 2, "parent": str(parent)}
    (tmp_path / "agent/memory-group.json").write_text(json.dumps(record))
    found.sweep()
    assert sorted(group.name for group in parent.iterdir()) == ["tenure-busy.1", "tenure-known.1"]


def test_a_parent_that_does_not_hand_memory_down_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/cgroup.subtree_control").write_text("cpu pids\n")
    monkeypatch.setattr(memory_groups, "parents", lambda name: iter([(2, tmp_path / "own" / name)]))
    with pytest.raises(memory_groups.NoGroup, match="it has no memory controller"):
        memory_groups.make_parent("tenure-a1")  # what was written there did nothing
    assert not (tmp_path / "own/tenure-a1").exists()
