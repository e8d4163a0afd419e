"""Names that stay bound to UUIDs, an identity that outlives restarts, and settings that are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenure.agent import identity, options
from tenure.agent.folders import key_of, outcome_of
from tenure.domain.job import Ending
from tenure.errors import TenureError
from tenure.paths import Layout


def test_the_identity_stays_and_the_instance_changes(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    first, second = identity.load(path, host="h"), identity.load(path)
    assert (first.agent, first.host) == (second.agent, second.host) == (first.agent, "h")
    assert first.instance != second.instance
    assert first.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_names_stay_with_their_uuids(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    found = [("GPU-b", "gpu"), ("GPU-a", "gpu"), ("CPU-x", "cpu")]
    assert identity.load(path, host="h").bind(found) == {"GPU-b": "h:gpu0", "GPU-a": "h:gpu1", "CPU-x": "h:cpu0"}
    # A card is gone, another has come, and the driver lists them in another order.
    assert identity.load(path).bind([("GPU-c", "gpu"), ("GPU-a", "gpu")]) == {"GPU-c": "h:gpu2", "GPU-a": "h:gpu1"}
    assert identity.load(path).bind([("GPU-b", "gpu")]) == {"GPU-b": "h:gpu0"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"agent": "a"}', '{"agent": "a", "host": "h", "names": 3}'])
def test_a_damaged_identity_is_refused_and_kept(tmp_path: Path, content: str) -> None:
    path = tmp_path / "identity.json"
    path.write_text(content)
    with pytest.raises(TenureError, match=r"identity\.json") as caught:
        identity.load(path)
    assert caught.value.code == "damaged_state"
    assert path.read_text() == content


def settings(tmp_path: Path, body: object) -> options.Options:
    layout = Layout(tmp_path, "m" * 32)
    layout.root.mkdir(parents=True, exist_ok=True)
    (layout.root / "embedded.json").write_text(json.dumps(body) if not isinstance(body, str) else body)
    return options.load(layout, {})


def test_defaults_hold_where_nothing_is_said(tmp_path: Path) -> None:
    assert options.load(Layout(tmp_path, "m" * 32), {}) == options.Options()
    assert settings(tmp_path, {"sim": None, "from_a_newer_version": 1}) == options.Options()


def test_what_is_said_is_taken(tmp_path: Path) -> None:
    found = settings(
        tmp_path, {"sim": "4xH100", "agent": {"sample_every_s": 0.5, "resting": {"h:gpu0": ["Xorg"]}, "new": 1}}
    )
    assert (found.sim, found.sample_every_s, found.resting) == (True, 0.5, {"h:gpu0": ("Xorg",)})
    bounds = {"default": {"idle_timeout": "2h"}, "gpu0": {"max_runtime": 60}, "h:gpu0": {"max_runtime": 30}}
    bound = settings(tmp_path, {"agent": {"bounds": bounds}})
    for device, limits in (("h:gpu0", (30.0, 7200.0)), ("i:gpu0", (60.0, 7200.0)), ("h:gpu1", (None, 7200.0))):
        ceilings = bound.ceilings_of(device)
        assert ceilings is not None
        assert (ceilings.max_runtime_s, ceilings.idle_timeout_s) == limits
    assert found.ceilings_of("h:gpu0") is None
    named = options.load(Layout(tmp_path, "n" * 32), {options.LIBRARY_DIR_VARIABLE: "/lib/sim"})
    assert named.library_dir == Path("/lib/sim")


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("{", r"embedded\.json"),
        ({"agent": []}, "agent"),
        ({"agent": {"sample_every_s": 0}}, r"agent\.sample_every_s"),
        ({"agent": {"beat_every_s": True}}, r"agent\.beat_every_s"),
        ({"agent": {"host": 3}}, r"agent\.host"),
        ({"agent": {"resting": {"h:gpu0": "Xorg"}}}, r"agent\.resting"),
        ({"agent": {"protect": []}}, r"agent\.protect"),
        ({"agent": {"protect": {"ooms": "reboots"}}}, r"agent\.protect.*needs a reserve"),
        ({"agent": {"bounds": {"gpu0": "2h"}}}, r"agent\.bounds"),
        ({"agent": {"bounds": {"gpu0": {"max_runtime": "soon"}}}}, r"agent\.bounds\.gpu0.*'soon'"),
        ({"agent": {"bounds": {"default": {"max_runtime": 9}, "g": {"max_runtime_ceiling": 5}}}}, r"agent\.bounds\.g"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(tmp_path: Path, body: object, names: str) -> None:
    with pytest.raises(TenureError, match=names) as caught:
        settings(tmp_path, body)
    assert caught.value.code == "invalid_configuration"


def test_exit_records_become_outcomes() -> None:
    record = {"v": 1, "kind": "exited", "code": 7, "signal": None, "error": None, "stopped": False, "stragglers": 2}
    outcome = outcome_of({**record, "output_bytes": 3}, None)
    assert (outcome.ending, outcome.code, outcome.detail) == (Ending.EXITED, 7, "stragglers: 2")
    assert outcome.words == "exited 7 (stragglers: 2)"
    stopped = {**record, "kind": "signaled", "code": None, "signal": 15, "stopped": True, "stragglers": 0}
    assert outcome_of(stopped, "ann asked").words == "ended by signal 15 (ann asked)"
    assert outcome_of({**stopped, "stopped": False}, "ann asked").cause == ""


def test_folders_are_named_after_their_attempt() -> None:
    assert key_of(Path("/x/j-1.a.12")) == ("j-1.a", 12)
    assert key_of(Path("/x/.tmp")) is None
    assert key_of(Path("/x/j1")) is None
