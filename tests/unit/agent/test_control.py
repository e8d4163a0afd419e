"""Which kind of control is taken: the one asked for where it works, else the best that does, and it is said."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tenure.agent.control import KINDS, PROBES, Control, Kind, Tried, choose
from tenure.agent.options import load
from tenure.errors import TenureError
from tenure.paths import Layout

NO = Tried(False, "not here")


def host(*working: Kind) -> Mapping[Kind, Callable[[], Tried]]:
    """A host on which these kinds work."""
    worked = {kind: Tried(True, "works", "/parent" if kind in ("cgroup2", "freezer") else None) for kind in KINDS}
    return {kind: (lambda kind=kind: worked[kind] if kind in working else NO) for kind in KINDS}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("working", "taken"),
    [
        (KINDS, "cgroup2"),
        (("freezer", "pidns", "subreaper"), "freezer"),
        (("pidns", "subreaper"), "subreaper"),  # a namespace changes what a job sees: never by itself
        (("subreaper",), "subreaper"),
    ],
)
def test_the_best_that_works_is_taken_by_itself(working: tuple[Kind, ...], taken: Kind) -> None:
    found = choose("auto", host(*working))
    assert (found.kind, found.fell_back) == (taken, "")
    assert found.parent == ("/parent" if taken in ("cgroup2", "freezer") else None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_that_is_asked_for_and_works_is_taken(kind: Kind) -> None:
    found = choose(kind, host(*KINDS))
    assert (found.kind, found.fell_back, found.reason.count(";")) == (kind, "", 0)


def test_where_the_kind_asked_for_does_not_work_the_next_best_is_taken_and_why_is_said() -> None:
    found = choose("pidns", host("freezer", "subreaper"))
    assert found == Control(
        "freezer", "/parent", "pidns: not here; cgroup2: not here; freezer: works", "pidns: not here"
    )
    assert choose("cgroup2", host("subreaper")).fell_back == "cgroup2: not here"


def test_every_kind_is_tried_here_and_leaves_nothing_behind() -> None:
    for kind in KINDS:
        tried = PROBES[kind]()
        assert tried.reason
        if tried.parent is not None:
            assert not (Path(tried.parent) / f"probe-{os.getpid()}").exists()
    assert PROBES["subreaper"]().works


def test_a_kind_that_there_is_not_is_refused_by_name(tmp_path: Path) -> None:
    layout = Layout(tmp_path, "m")
    layout.root.mkdir(parents=True)
    for written, wanted in (('"pidns"', "pidns"), ('"auto"', "auto"), ('"docker"', None), ("1", None)):
        (layout.root / "embedded.json").write_text(f'{{"agent": {{"control": {written}}}}}')
        if wanted is not None:
            assert load(layout, {}).control == wanted
            continue
        with pytest.raises(TenureError, match=r"agent\.control is") as refused:
            load(layout, {})
        assert refused.value.code == "invalid_configuration"
