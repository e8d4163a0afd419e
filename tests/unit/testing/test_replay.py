"""Field cases through the product, and unseen files of their shapes with answers from naive second readings."""

from __future__ import annotations

import copy
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from tests.unit.domain import clocks_naive, tracker_naive
from tests.unit.domain.test_baseline import naive as naive_baseline

from tenure.domain.tracker import parse_event
from tenure.testing.replay import __main__ as program
from tenure.testing.replay import replay_file

CASES = Path(__file__).parents[2] / "cases"
FILES = sorted(CASES.glob("*.json"))
Body = dict[str, Any]


def write(folder: Path, body: Any, name: str = "x.txt") -> Path:
    path = folder / name
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


def load(name: str) -> Body:
    body: Body = json.loads((CASES / f"{name}.json").read_text())
    return body


def wrong(path: Path) -> list[Any]:
    return [(case.name, case.right, case.got, case.missing) for case in replay_file(path) if not case.passed]


def test_the_field_cases_are_right_through_the_program() -> None:
    assert len(FILES) == 9
    command = [sys.executable, "-m", "tenure.testing.replay", *map(str, FILES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    said = done.stdout.splitlines()
    assert said[-1] == "111 right, 0 wrong, 0 not built"
    assert said[0].startswith("right  ")
    assert said[1].lstrip().startswith("right ")
    assert said[2].lstrip().startswith("got ")


# -- recognition -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_a_shape_is_known_by_its_content_alone(name: str, tmp_path: Path) -> None:
    body = load(name)
    body.pop("about", None)
    body["a key nobody knows"] = {"x": [1]}
    for number, case in enumerate(body.get("cases", ())):
        case["note of mine"] = number
        if number % 2:
            case["name"] = f"renamed {number}"
        else:
            case.pop("name", None)
    draw = random.Random(3)
    draw.shuffle(body.get("cases", []))
    assert not wrong(write(tmp_path, body, "tracker.json"))


@pytest.mark.parametrize("name", [path.stem for path in FILES if "cases" in json.loads(path.read_text())])
def test_one_case_alone_is_known_too(name: str, tmp_path: Path) -> None:
    for case in load(name)["cases"]:
        assert not wrong(write(tmp_path, {"cases": [case]})), case


@pytest.mark.parametrize(
    "case",
    [
        {"proposed": "continue_as_is", "right": {"accepted": False}},
        {"proposed": "reshard_width_8", "right": {"accepted": True}},
        {"ratio": 6, "proposed": "auto_descope_to_64", "ratio_after": 1.5, "right": {"accepted": True}},
        {"ratio": 2.0, "right": {"deviation": True}},
        {"unit_cost_h_measured": 1, "right": {"unit_cost_h_used": 1}},
        {"p_event_per_item": 0.5, "items": [0, 1, 2], "right": {"p_clean": [1.0, 0.5, 0.25]}},
        {"p_event_per_item": 0.1, "at_least": 0.81, "right": {"items": 2}},
        {"summary_of": {"sm_mhz": [3, 1, 2]}, "right": {"count": 3, "min": 1, "median": 2, "max": 3, "mean": 2}},
        {"floor_mb": 1, "right": "not_established"},
        {"supervisor_alive": True, "right": "running"},
        {"boot": ["a", "b"], "right": "host_rebooted"},
        {"events": [], "right": {"workers": {}, "units": {}, "ignored": 0, "reported": []}},
        {"registered": [], "events": ["start a#1 w"], "right": {"reported": ["unregistered worker w"]}},
        {"before": {"a": "passed"}, "after": {"a": "timeout"}, "right": {"regression": True, "mode_worse": ["a"]}},
    ],
)
def test_small_cases_without_a_name(case: Body, tmp_path: Path) -> None:
    assert not wrong(write(tmp_path, {"cases": [case]}))


def test_a_file_may_mix_its_shapes(tmp_path: Path) -> None:
    mixed = [case for name in ("clocks", "width", "guard", "tracker", "ends") for case in load(name)["cases"]]
    random.Random(1).shuffle(mixed)
    assert not wrong(write(tmp_path, {"cases": mixed}))


# -- unseen files ------------------------------------------------------------------------------------------------------


def test_unseen_trackers(tmp_path: Path) -> None:
    draw = random.Random(41)
    cases = []
    for number in range(150):
        known = draw.choice(load("tracker")["cases"])
        events = [text.replace("u1", f"grid-{number}") for text in known["events"]]
        events += draw.choices(events, k=draw.randint(0, 3))
        draw.shuffle(events)
        events = events[: draw.randint(1, len(events))]
        registered = draw.choice([None, ["w0"], ["w0", "w1"]])
        arrived = [parse_event(text) for text in events]
        right: Body = {
            "workers": tracker_naive.workers(arrived, set(registered or ())),
            "units": tracker_naive.units(arrived),
            "ignored": tracker_naive.ignored(arrived),
        }
        told = tracker_naive.reported(arrived, None if registered is None else set(registered))
        if len(told) < 2:
            right["reported"] = sorted(told)
        cases.append({"events": events, "right": right, **({} if registered is None else {"registered": registered})})
    assert not wrong(write(tmp_path, {"cases": cases}))


def test_unseen_widths(tmp_path: Path) -> None:
    draw = random.Random(43)
    cases = []
    for number in range(200):
        total, cost = draw.randint(1, 400), draw.randint(1, 999) / 1000
        done, present = draw.randint(0, total), draw.choice([1, 2, 4, 8])
        planned, projected = draw.randint(1, 99) / 10, draw.randint(1, 400) / 10
        stay, widen = draw.randint(0, 20) / 100, {"provision": draw.randint(0, 99) / 100, "stage": 0.1, "restore": 0.05}
        widths = sorted({present, *draw.sample([1, 2, 3, 4, 6, 8, 12, 16], 3)})
        most = draw.choice([None, present, 8, 16])
        exact = {
            w: math.ceil(Fraction(total - done, w)) * Fraction(str(cost))
            + (Fraction(str(stay)) if w == present else sum(Fraction(str(v)) for v in widen.values()))
            for w in widths
        }
        allowed = [w for w in widths if w == present or most is None or w <= most]
        best = min(allowed, key=lambda w: (exact[w], w))
        tripped = Fraction(str(projected)) >= 2 * Fraction(str(planned))
        right = {
            "wall_h": {str(w): float(exact[w]) for w in widths},
            "action": "continue_as_is" if best == present else f"reshard_width_{best}",
            "saved_h": float(exact[present] - exact[best]),
            "deviation": tripped,
            "ratio": projected / planned,
            "unit_cost_h_used": cost,
        }
        if tripped:
            right["width_evaluation"] = "mandatory"
        case = {
            "name": f"grid {number}",
            "units_total": total,
            "units_done": done,
            "width": present,
            "planned_wall_h": planned,
            "projected_wall_h": projected,
            "planned_unit_cost_h": cost / 3,
            "unit_cost_h_measured": cost,
            "signature": "flop_bound",
            "relaunch_under_way": True,
            "overhead_h": {"stay": stay, "widen": widen},
            "candidates": draw.sample(widths, len(widths)),
            "right": right,
        }
        cases.append(case if most is None else {**case, "max_width": most})
    assert not wrong(write(tmp_path, {"cases": cases}))


def test_unseen_clocks(tmp_path: Path) -> None:
    draw = random.Random(47)
    pairs = [case for case in load("clocks")["cases"] if "arms" in case]
    cases = []
    for _ in range(120):
        case = copy.deepcopy(draw.choice(pairs))
        for arm in case["arms"]:
            values, times = arm["sm_mhz"]
            shift = draw.choice([0, 0, 0, 15, 21, 40])
            arm["sm_mhz"] = [[value + shift + draw.choice([0, 0, 0, 1, 104]) for value in values], times]
            if draw.random() < 0.1:
                arm["contended"] = draw.choice([True, False])
            if draw.random() < 0.1:
                arm["throttle_bits"] = 1 << draw.randint(0, 20)
        if draw.random() < 0.2:
            case["waive"] = ["boot"]
        one, other = case["arms"]
        case["right"] = clocks_naive.judge(one, other, case.get("waive", []))
        case["right"]["spread_pct"] = [float(clocks_naive.spread(arm)) for arm in case["arms"]]
        cases.append(case)
    assert {case["right"]["verdict"] for case in cases} == {"PAIR", "DISCARD"}
    assert not wrong(write(tmp_path, {"cases": cases}))


def test_unseen_baselines(tmp_path: Path) -> None:
    draw = random.Random(53)
    from tenure.domain.baseline import Mode

    words = {"passed": Mode.PASSED, "skipped": Mode.SKIPPED, "failed": Mode.FAILED, "crash": Mode.CRASH}
    names = ["t_" + "".join(draw.choices("abcdef", k=4)) for _ in range(12)]
    more = []
    for number in range(80):
        before, after = ({n: draw.choice(list(words)) for n in names if draw.random() < 0.5} for _ in (0, 1))
        absent = {name: "tool" for name in names if draw.random() < 0.05}
        sets = naive_baseline(
            {n: words[w] for n, w in before.items()}, {n: words[w] for n, w in after.items()}, set(absent)
        )
        regression = bool(sets["arrivals"] or sets["mode_worse"])
        right: Body = {key: draw.sample(sorted(found), len(found)) for key, found in sets.items()}
        right |= {"regression": regression, "exit": 1 if regression else 2 if sets["absent_instrument"] else 0}
        more.append(
            {"name": f"m{number}", "before": before, "after": after, "absent_instrument": absent, "right": right}
        )
    body = load("baseline")
    swap = {name: f"renamed::{name}" for name in {**body["before"]["not_passed"], **body["after"]["not_passed"]}}
    text = json.dumps({**body, "more": more})
    for old, new in swap.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    assert not wrong(write(tmp_path, text))


def test_unseen_guards(tmp_path: Path) -> None:
    draw = random.Random(59)
    cases = []
    for _ in range(200):
        case: Body = {"floor_mb": draw.randint(9000, 10000)}
        low = None
        if draw.random() < 0.9:
            case["predicted_free_mb"] = draw.randint(9000, 11000)
            low = Fraction(case["predicted_free_mb"] * 95, 100)
            if draw.random() < 0.5:
                case["uncertainty_mb"] = draw.randint(0, 1000)
                low = Fraction(case["predicted_free_mb"] - case["uncertainty_mb"])
        case["right"] = "not_established" if low is None else "sound" if low > case["floor_mb"] else "unsound"
        cases.append(case)
    assert not wrong(write(tmp_path, {"cases": cases}))


# -- what is not right -------------------------------------------------------------------------------------------------


def spoil_tracker(body: Body) -> None:
    body["cases"][0]["right"]["workers"]["w0"] = []


def spoil_width(body: Body) -> None:
    body["cases"][0]["right"]["wall_h"]["12"] = 4.5126


def spoil_clocks(body: Body) -> None:
    body["cases"][1]["right"]["reasons"].pop()


def spoil_guard(body: Body) -> None:
    body["cases"][0]["right"] = "sound"


def spoil_baseline(body: Body) -> None:
    body["right"]["arrivals"].append("t_new")


def spoil_ends(body: Body) -> None:
    body["cases"][4]["device"] = "known"


@pytest.mark.parametrize(
    "spoil",
    [spoil_tracker, spoil_width, spoil_clocks, spoil_guard, spoil_baseline, spoil_ends],
    ids=lambda f: f.__name__,
)
def test_a_wrong_answer_exits_with_1(
    spoil: Callable[[Body], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = load(spoil.__name__.removeprefix("spoil_"))
    spoil(body)
    assert program.main(["-q", str(write(tmp_path, body))]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("WRONG  ")
    assert said[-1].endswith(" right, 1 wrong, 0 not built")


def test_a_part_that_is_not_built_exits_with_2_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = load("instruments")
    body["cases"].insert(1, {"name": "from the future", "kind": "xpu_table", "input": "x", "right": 1})
    path = write(tmp_path, body)
    assert program.main(["-q", str(path)]) == 2
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{path}: from the future: not built yet: a reader of 'xpu_table'"
    # The others are replayed all the same, and one that is wrong weighs more.
    assert said[-1] == f"{len(body['cases']) - 1} right, 0 wrong, 1 not built"
    assert program.main(["-q", str(path), str(tmp_path / "none.json")]) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value"),
        ("{", "Expecting"),
        ("[]", "a case file is a JSON object"),
        ("{}", "no case file"),
        ('{"cases": []}', "it holds no case"),
        ('{"cases": {}}', "no case file: it has neither cases nor"),
        ('{"cases": [3]}', "case 1 is no JSON object"),
        ('{"cases": [{"color": "red", "right": 1}]}', "no known shape has the keys of case 1: color, right"),
        ('{"hosts": [], "version": 3}', "hosts, version"),
        ('{"cases": [{"events": ["began u1"], "right": {}}]}', "case 1 (case 1) cannot be read: no unit event"),
        ('{"cases": [{"name": "n", "events": []}]}', "case 1 (n) lacks 'right'"),
        ('{"cases": [{"arms": [1], "right": {}}]}', "case 1 (case 1) cannot be read"),
        ('{"cases": [{"floor_mb": "low", "right": "sound"}]}', "case 1 (case 1) cannot be read"),
        ('{"before": {"a": "perhaps"}, "after": {}, "right": {}}', "'perhaps' is no mode"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_none_is_named_with_the_reason(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, text)
    assert program.main([str(path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{path}: cannot be replayed: ")
    assert said in out
    assert out.endswith("0 right, 1 wrong, 0 not built\n")


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "b"
    binary.write_bytes(b"\xff\xfe\x00")
    assert program.main([str(tmp_path / "none"), str(tmp_path), str(binary)]) == 1
    assert capsys.readouterr().out.count("cannot be replayed: ") == 3


@pytest.mark.parametrize(
    ("right", "got", "same"),
    [
        (0.29, 0.2881, True),
        (0.29, 0.2951, False),
        (15.0, 15.04, True),
        (15.0, 15.06, False),
        (15, 15.000000000000002, True),
        (15, 15.01, False),
        (1e-07, 1.4e-07, True),
        (True, 1, False),
        (1, True, False),
        (None, 0, False),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {}, False),
        ({"a": 1}, [1], False),
        ("1", 1, False),
    ],
)
def test_what_counts_as_the_same_answer(right: Any, got: Any, same: bool) -> None:
    from tenure.testing.replay.cases import agrees

    assert agrees(right, got) is same
