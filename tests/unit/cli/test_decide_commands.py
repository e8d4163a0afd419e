"""The commands that decide from files, through ``main``: exit status, table, JSON, and what they say of bad files."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.domain.test_clock_files import csv_of

from tenure.cli.main import COMMANDS, main
from tenure.testing.replay import replay_file

CASES = Path(__file__).parents[2] / "cases"


class Shell:
    """Runs ``rc`` in this process, in a folder of its own."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capture = folder, capture

    def file(self, name: str, body: Any) -> str:
        path = self.folder / name
        path.write_bytes(
            body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        )
        return str(path)

    def rc(self, *words: str) -> tuple[int, str, str]:
        code = main(list(words))
        said = self.capture.readouterr()
        return code, said.out, said.err

    def json(self, *words: str) -> tuple[int, Any]:
        code, out, err = self.rc(*words, "-o", "json")
        assert not err
        return code, json.loads(out)


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


def cases(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((CASES / f"{name}.json").read_text())["cases"]
    return found


# -- groups ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["grid", "bench", "baseline"])
def test_a_group_lists_its_commands(shell: Shell, group: str) -> None:
    assert group in COMMANDS
    code, out, err = shell.rc(group)
    assert (code, err) == (64, "")
    assert shell.rc(group, "--help") == (0, out, "")
    for name in (line.split()[0] for line in out.splitlines() if line.startswith("  ")):
        code, page, _ = shell.rc("help", group, name)
        assert code == 0
        assert page.startswith(f"usage: rc {group} {name} ")
        assert "Exit status: " in page
    code, _, err = shell.rc(group, "comparee", "-o", "json")
    assert code == 64
    assert json.loads(err)["error"]["code"] == "usage"


def test_a_command_that_is_almost_right_is_guessed(shell: Shell) -> None:
    assert "did you mean rc bench judge?" in shell.rc("bench", "jugde")[2]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_knows_the_groups(shell: Shell, name: str) -> None:
    code, out, _ = shell.rc("completion", name)
    assert code == 0
    for word in ("judge", "decide", "compare"):
        assert word in out
    assert "uncertainty" in out


# -- rc grid decide ----------------------------------------------------------------------------------------------------


def test_decide_says_what_the_replay_says(shell: Shell) -> None:
    for case, right in zip(cases("width"), replay_file(CASES / "width.json"), strict=True):
        _, told = shell.json("grid", "decide", shell.file("c.json", case)) if decidable(case) else (0, None)
        if told is None:
            continue
        assert told["action"] == right.got["action"]
        assert told["width_evaluation"] == right.got.get("width_evaluation")
        assert (told["deviation"] or {}).get("ratio") == right.got.get("ratio")
        if "accepted" in right.got:
            assert told["proposal"]["accepted"] is right.got["accepted"]
        if "wall_h" in right.got:
            assert [c["wall_h"] for c in told["candidates"]] == list(right.got["wall_h"].values())
            assert told["saved_h"] == right.got["saved_h"]


def decidable(case: dict[str, Any]) -> bool:
    return bool({"ratio", "planned_wall_h", "candidate_sets", "proposed"} & set(case))


TOML = """
planned_wall_h = 5
projected_wall_h = 12.84
telemetry = { gpu_busy = 0.97, utilisation = 0.95, units_per_launch = 64 }
units_remaining = 112
unit_cost_h_measured = 0.40125
relaunch_under_way = true
width = 4
candidates = [8, 12]
"""


def test_decide_reads_toml_and_tells_what_it_assumed(shell: Shell) -> None:
    path = shell.file("grid.toml", TOML)
    code, out, err = shell.rc("grid", "decide", path)
    assert (code, err) == (0, "")
    for said in ("2.568 x the plan", "flop_bound (device busy 97%", "width: mandatory", "action: reshard_width_12"):
        assert said in out
    assert "assumed, because the file does not say: units_independent: true; overhead_h.stay: 0 h" in out
    told = shell.json("grid", "decide", path)[1]
    assert told["signature"] == "flop_bound"
    assert told["exit"] == 0


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        ('proposed = "continue_as_is"', 1, "proposal: REFUSED: the arithmetic does not show"),
        ('proposed = "continue_as_is"\nmax_width = 4', 0, "proposal: accepted"),
        ('proposed = "reshard_width_16"\nmax_width = 12', 1, "over the stated maximum of 12"),
        ('proposed = "auto_descope_to_64"\nratio_after = 1.4', 0, "brings the ratio to 1.4"),
        ('proposed = "pray"', 1, "is none of vectorize_fix_round"),
    ],
)
def test_decide_rules_on_a_proposal(shell: Shell, more: str, code: int, said: str) -> None:
    found = shell.rc("grid", "decide", shell.file("g", TOML + more))
    assert found[0] == code
    assert said in found[1]


def test_decide_says_that_nothing_is_established(shell: Shell) -> None:
    code, out, _ = shell.rc("grid", "decide", shell.file("g", {"planned_wall_h": "about a day"}))
    assert code == 2
    assert "tripwire disabled: the budget 'about a day' cannot be read" in out


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{", "neither a JSON object nor TOML"),
        ("[1, 2]", "neither a JSON object nor TOML"),
        ("planned_wall_h 5", "neither a JSON object nor TOML"),
        ("{" * 50_000, "neither a JSON object nor TOML"),
        (b"\xff\xfe", "no UTF-8 text: byte 0 is 0xff"),
        ("", "nothing to decide on"),
        ({"name": "x"}, "nothing to decide on"),
        ({"candidates": [4], "planned_unit_cost_h": 0.1}, "unit_cost_h_measured"),
        ({"ratio": 3, "signature": "slow"}, "signature 'slow' is none of overhead_bound, flop_bound, ambiguous"),
    ],
)
def test_decide_names_the_file_and_what_is_wrong(shell: Shell, body: Any, said: str) -> None:
    path = shell.file("g", body)
    code, out, err = shell.rc("grid", "decide", path)
    assert (code, out) == (64, "")
    assert err.startswith(f"rc: {path}: ")
    assert said in err
    assert len(err.splitlines()) == 2  # what happened, and what to do


def test_decide_says_that_a_file_is_not_there(shell: Shell) -> None:
    code, _, err = shell.rc("grid", "decide", "/nowhere/g.toml")
    assert code == 74
    assert "/nowhere/g.toml: No such file or directory" in err


def test_decide_reads_standard_input(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"ratio": 2.0}')))
    code, out, _ = shell.rc("grid", "decide", "-")
    assert code == 0
    assert "action: vectorize_fix_round" in out


# -- rc grid status ----------------------------------------------------------------------------------------------------


def test_status_says_what_the_replay_says(shell: Shell) -> None:
    for case, right in zip(cases("tracker"), replay_file(CASES / "tracker.json"), strict=True):
        path = shell.file("events", "# a comment\n\n" + "\n".join(case["events"]) + "\n")
        workers = [word for name in case.get("registered", ()) for word in ("--worker", name)]
        code, told = shell.json("grid", "status", "--replay", path, *workers)
        for key in ("workers", "units", "ignored", "reported"):
            assert told[key] == right.got[key]
        assert code == (1 if right.got["reported"] else 0)
        assert told["file_age_s"] >= 0


def test_status_shows_units_that_wait(shell: Shell) -> None:
    path = shell.file("events", "start a#1 w0\ngpu a#1\n")
    code, out, _ = shell.rc("grid", "status", "--replay", path, "--unit", "a", "--unit", "b")
    assert code == 0
    assert out.startswith("2 units: 1 pending, 1 gpu (after 2 events, 0 ignored; the file was last written ")


def test_status_names_the_line_that_is_no_event(shell: Shell) -> None:
    path = shell.file("events", "start a#1 w0\n\nbegan a#1\n")
    code, _, err = shell.rc("grid", "status", "--replay", path)
    assert code == 64
    assert f"{path}: line 3: no unit event: 'began a#1'" in err
    assert shell.rc("grid", "status")[0] == 64


def test_status_makes_names_harmless(shell: Shell) -> None:
    path = shell.file("events", "start \x1b[31mred#1 w\x07\n")
    out = shell.rc("grid", "status", "--replay", path, "--worker", "w0")[1]
    assert "\x1b" not in out
    assert "\x07" not in out


# -- rc bench ----------------------------------------------------------------------------------------------------------

PAIRS = [case for case in cases("clocks") if "arms" in case]


@pytest.mark.parametrize("case", PAIRS, ids=[case["name"] for case in PAIRS])
def test_judge_says_what_the_case_says(shell: Shell, case: dict[str, Any]) -> None:
    paths = [shell.file(f"{number}.json", arm) for number, arm in enumerate(case["arms"])]
    waive = [word for reason in case.get("waive", ()) for word in ("--waive", reason)]
    code, told = shell.json("bench", "judge", *paths, *waive, "--a", "3", "--b", "2")
    right = case["right"]
    assert told["verdict"] == right["verdict"]
    assert code == (0 if right["verdict"] == "PAIR" else 1)
    assert sorted(told["reasons"]) == sorted(right.get("reasons", []))
    assert told["caveats"] == right.get("caveats", [])
    assert told["ratio"] == (1.5 if code == 0 else None)
    text = shell.rc("bench", "judge", *paths, *waive)[1]
    assert all(reason in text for reason in told["reasons"] + told["caveats"])


def test_judge_reads_csv(shell: Shell) -> None:
    one, other = PAIRS[0]["arms"]
    paths = [shell.file("a.csv", csv_of(one)), shell.file("b.csv", csv_of(other))]
    code, told = shell.json("bench", "judge", *paths)
    assert (code, told["verdict"]) == (0, "PAIR")
    assert told["arms"][0]["median_of_maximum_pct"] == pytest.approx(69.38, abs=0.01)
    assert told["arms"][0]["assumed"] == ["contended: no", "period: the median gap of 1 s"]
    assert shell.json("bench", "judge", *paths, "--period", "0.4")[1]["reasons"] == ["coverage"]


@pytest.mark.parametrize("body", ["", "at,clock\n1,2\n", "{}", "[]", "{", "[" * 50_000, b"\xff", {"sm_mhz": ["x"]}])
def test_judge_exits_with_2_where_it_cannot_judge(shell: Shell, body: Any) -> None:
    good = shell.file("a.json", PAIRS[0]["arms"][0])
    path = shell.file("b", body)
    code, out, err = shell.rc("bench", "judge", good, path)
    assert (code, out) == (2, "")
    assert err.startswith(f"rc: {path}: ")
    assert shell.rc("bench", "judge", good, str(shell.folder / "none"))[0] == 2
    assert json.loads(shell.rc("bench", "judge", good, path, "-o", "json")[2])["error"]["exit"] == 2


def test_judge_waives_the_boot_alone(shell: Shell) -> None:
    code, _, err = shell.rc("bench", "judge", "a", "b", "--waive", "spread")
    assert code == 64
    assert "--waive is one of boot" in err


@pytest.mark.parametrize(
    ("words", "code", "verdict"),
    [
        (["--floor", "12000", "--predicted", "12223", "--uncertainty", "306"], 1, "unsound"),
        (["--floor", "5000", "--predicted", "12223", "--uncertainty", "306"], 0, "sound"),
        (["--floor", "9600", "--predicted", "10000"], 1, "unsound"),
        (["--floor", "12000"], 2, "not_established"),
    ],
)
def test_guard(shell: Shell, words: list[str], code: int, verdict: str) -> None:
    found, told = shell.json("bench", "guard", *words)
    assert (found, told["verdict"]) == (code, verdict)
    assert shell.rc("bench", "guard", *words)[1].startswith(verdict.replace("_", " ") + ": ")


@pytest.mark.parametrize(
    "words",
    [
        ["guard"],
        ["guard", "--floor", "nan"],
        ["guard", "--floor", "low"],
        ["guard", "--floor", "1", "--uncertainty", "1"],
        ["guard", "--floor", "1", "--predicted", "2", "--uncertainty", "-1"],
        ["plan"],
        ["plan", "--p-event", "1.5"],
        ["plan", "--p-event", "0.5", "--events", "1", "--of", "2"],
        ["plan", "--p-event", "0.5", "--of", "2"],
        ["plan", "--events", "3", "--of", "2"],
        ["plan", "--events", "3"],
        ["plan", "--p-event", "0.5", "--at-least", "0"],
        ["judge", "a", "b", "--a", "inf"],
        ["judge", "a", "b", "--period", "0"],
        ["judge", "a"],
    ],
)
def test_a_malformed_command_line_exits_with_64(shell: Shell, words: list[str]) -> None:
    code, out, err = shell.rc("bench", *words)
    assert (code, out) == (64, "")
    assert f"rc bench {words[0]} " in err


def test_plan(shell: Shell) -> None:
    assert shell.json("bench", "plan", "--p-event", "0.1", "--at-least", "0.81")[1]["items"] == 2
    code, told = shell.json("bench", "plan", "--p-event", "0.476", "--at-least", "0.9")
    assert (code, told["items"], told["assumed"]) == (1, 0, ["events are independent"])
    code, told = shell.json("bench", "plan", "--p-event", "0")
    assert (code, told["items"]) == (0, None)


def test_a_pilot_without_events_shows_no_more_than_it_saw(shell: Shell) -> None:
    code, told = shell.json("bench", "plan", "--events", "0", "--of", "20", "--at-least", "0.9")
    assert (code, told["items"], told["items_at_upper_95"]) == (1, None, 0)
    assert (
        "a window can hold 0 work items"
        in shell.rc("bench", "plan", "--events", "0", "--of", "20", "--at-least", "0.9")[1]
    )


# -- rc baseline compare -----------------------------------------------------------------------------------------------


def junit(**modes: str) -> str:
    inner = {"passed": "", "skipped": "<skipped/>", "failed": "<failure message='m'/>", "crash": "<error message='e'/>"}
    tests = "".join(f"<testcase name='{name}'>{inner[mode]}</testcase>" for name, mode in modes.items())
    return f"<testsuite>{tests}</testsuite>"


@pytest.mark.parametrize(
    ("old", "new", "absent", "code", "where"),
    [
        ({"a": "passed"}, {"a": "passed"}, (), 0, None),
        ({"a": "passed"}, {"a": "failed"}, (), 1, "mode_worse"),
        ({"a": "passed"}, {"a": "skipped"}, (), 1, "mode_worse"),
        ({"a": "failed"}, {"a": "crash"}, (), 1, "mode_worse"),
        ({"a": "crash"}, {"a": "failed"}, (), 0, "mode_improved"),
        ({"a": "failed"}, {"a": "passed"}, (), 0, "departures_seen_passed"),
        ({"a": "failed"}, {"a": "skipped"}, (), 0, "stopped_being_measured"),
        ({"a": "failed", "b": "passed"}, {"b": "passed"}, (), 0, "unexplained_departures"),
        ({"b": "passed"}, {"a": "failed", "b": "passed"}, (), 1, "arrivals"),
        ({"b": "passed"}, {"a": "passed", "b": "passed"}, (), 0, None),
        ({"a": "passed"}, {"a": "failed"}, ("a=shellcheck",), 2, "absent_instrument"),
    ],
)
def test_compare(
    shell: Shell, old: dict[str, str], new: dict[str, str], absent: tuple[str, ...], code: int, where: str | None
) -> None:
    words = [shell.file("old.xml", junit(**old)), shell.file("new.xml", junit(**new))]
    words += [word for one in absent for word in ("--absent", one)]
    found, told = shell.json("baseline", "compare", *words)
    assert (found, told["exit"]) == (code, code)
    lists = {key: [row["name"] for row in told[key]] for key in told if isinstance(told[key], list)}
    assert lists == {key: ["a"] if key == where else [] for key in lists}
    text = shell.rc("baseline", "compare", *words)
    assert text[0] == code
    assert text[1].splitlines()[-1].startswith("regression: " if code == 1 else "no regression: ")


def test_compare_shows_what_is_known_of_a_test(shell: Shell) -> None:
    words = [shell.file("old.xml", junit(a="passed")), shell.file("new.xml", junit(a="crash"))]
    entries = shell.file("e.toml", '[a]\nowner = "ana"\nowner_closed = true\nunrun = ["b", "c"]\n')
    told = shell.json("baseline", "compare", *words, "--entries", entries)[1]
    (row,) = told["mode_worse"]
    assert (row["before"], row["after"]) == ("passed", "crash")
    assert row["notes"] == [
        "e",
        "owner: ana (CLOSED, and it still does not pass)",
        "2 cases behind it were not run: b, c",
    ]


def test_compare_tells_of_skips_without_names(shell: Shell) -> None:
    old = shell.file("old", "PASSED t.py::test_a\nPASSED t.py::test_b\n")
    new = shell.file("new", "PASSED t.py::test_a\nSKIPPED [1] t.py:9: no data\n")
    code, out, _ = shell.rc("baseline", "compare", old, new)
    assert code == 0
    assert "not seen any more  t.py::test_b" in out
    assert "NEW counts 1 skipped test" in out


@pytest.mark.parametrize(
    ("old", "new", "words", "said"),
    [
        (junit(a="passed"), "", (), "no named test result"),
        (junit(a="passed"), "<testsuite/>", (), "no test result"),
        (junit(a="passed"), "<!DOCTYPE x><testsuite/>", (), "document type"),
        (junit(a="passed"), junit(b="passed"), (), "no name of "),
        (junit(a="passed"), junit(a="passed"), ("--absent", "a"), "not NAME=VALUE"),
        (junit(a="passed"), junit(a="passed"), ("--absent", "z=tool"), "in neither file"),
    ],
)
def test_compare_names_what_it_cannot_use(shell: Shell, old: str, new: str, words: tuple[str, ...], said: str) -> None:
    code, out, err = shell.rc("baseline", "compare", shell.file("old", old), shell.file("new", new), *words)
    assert (code, out) == (64, "")
    assert said in err


def test_compare_names_the_entry_that_is_wrong(shell: Shell) -> None:
    words = [shell.file("old.xml", junit(a="passed")), shell.file("new.xml", junit(a="crash"))]
    code, _, err = shell.rc("baseline", "compare", *words, "--entries", shell.file("e.toml", "[a]\nowners = 3\n"))
    assert code == 64
    assert "'owners'" in err


def test_these_commands_import_nothing_heavy() -> None:
    import subprocess

    code = (
        "import sys\n"
        "from tenure.cli.main import main\n"
        f"assert main(['grid', 'decide', {str(CASES / 'guard.json')!r}]) == 64\n"
        "assert main(['bench', 'guard', '--floor', '1']) == 2\n"
        "heavy = {'pydantic', 'httpx', 'rich', 'typer', 'sqlalchemy', 'asyncio', 'tenure.testing', 'tenure.agent'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
