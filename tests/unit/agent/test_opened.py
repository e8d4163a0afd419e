"""A GPU without a list of contexts is empty only where every process of the machine could be looked into."""

from __future__ import annotations

from tenure.agent import opened
from tenure.domain.device import Condition
from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value
from tenure.probes.proc import Handles, Vanished, parse_links

Found = dict[int, Reading[Handles] | Vanished]
PEOPLE = {7: ("ann", "python"), 9: ("root", "Xorg")}


def has(*files: str) -> Value[Handles]:
    names, kinds = parse_links(files)
    return Value(Handles(names, (), kinds), 0.0, "proc.handles", Scope.PROCESS)


NOBODY: Found = {1: has("/dev/null"), 2: Vanished(2, 0.0), 3: has()}


def judge(found: Found, *, everybody: bool = True, resting: tuple[str, ...] = ()) -> Condition:
    return opened.judge(found, everybody=everybody, resting=resting, describe=lambda pid: PEOPLE.get(pid, ("", "")))


def test_nobody_has_it_open() -> None:
    assert judge(NOBODY).outcome == "clear"


def test_whoever_has_it_open_is_somebody() -> None:
    for file in ("/dev/nvhost-gpu", "/dev/nvhost-as-gpu", "/dev/nvmap", "/dev/nvgpu/igpu0/ctrl"):
        assert judge({**NOBODY, 7: has(file)}).by == ("pid 7 (ann): python",)


def test_a_declared_desktop_rests() -> None:
    found: Found = {**NOBODY, 9: has("/dev/nvmap")}
    assert judge(found).outcome == "occupied"
    assert judge(found, resting=("Xorg",)).outcome == "clear"


def test_one_process_that_cannot_be_read_leaves_it_unknown_and_says_what_helps() -> None:
    denied = Unavailable(Reason.NO_PERMISSION, 0.0, "proc.handles", Scope.PROCESS, "4: Permission denied")
    seen = judge({**NOBODY, 4: denied})
    assert seen.outcome == "unknown"
    assert "runs as root" in seen.detail
    stuck = Unavailable(Reason.TIMEOUT, 0.0, "proc.handles", Scope.PROCESS)
    assert judge({**NOBODY, 4: stuck}).outcome == "unknown"


def test_nobody_in_another_namespace_is_not_nobody_on_the_machine() -> None:
    assert judge(NOBODY, everybody=False).outcome == "unknown"
    assert judge({**NOBODY, 7: has("/dev/nvmap")}, everybody=False).outcome == "occupied"


def test_no_answer_at_all_is_no_look() -> None:
    assert judge({}).outcome == "unknown"
    assert judge({2: Vanished(2, 0.0)}).outcome == "unknown"
