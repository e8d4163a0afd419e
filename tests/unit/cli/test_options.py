"""The parser of the command line: what it takes, what it refuses, and that its tables fit the commands."""

from __future__ import annotations

from importlib import import_module

import pytest

from tenure.cli import completion
from tenure.cli.main import COMMANDS, main, overview, wants_json
from tenure.cli.options import Command, Option, in_options, parse
from tenure.cli.text import duration, whole
from tenure.errors import TenureError

RUN = Command(
    "try",
    "[OPTIONS] COMMAND",
    "For tests.",
    (
        Option("-d --device", "NAME", "a device"),
        Option("--env", "K=V", "a variable", many=True),
        Option("-q --quiet", "", "a flag"),
        Option("-f --follow", "", "a flag"),
        Option("--count", "N", "a number", read=whole),
        Option("--timeout", "TIME", "a time", read=duration),
    ),
    most=None,
    rest=True,
)
PLAIN = Command("plain", "JOB", "For tests.", (Option("-n --limit", "N", "a number", read=whole),), least=1, most=2)


@pytest.mark.parametrize(
    ("line", "device", "words"),
    [
        (["-d", "a:gpu0", "--", "true", "--help"], "a:gpu0", ["true", "--help"]),
        (["-da:gpu0", "true", "-d", "other"], "a:gpu0", ["true", "-d", "other"]),
        (["--device=a=b", "--", "--", "x"], "a=b", ["--", "x"]),
        (["--device", "-odd", "x"], "-odd", ["x"]),
        (["echo", "--", "x"], "", ["echo", "x"]),
        (["--", "-d"], "", ["-d"]),
        (["-"], "", ["-"]),
    ],
)
def test_options_end_where_the_command_begins(line: list[str], device: str, words: list[str]) -> None:
    given = parse(RUN, line)
    assert (given.text("device"), given.words) == (device, words)


@pytest.mark.parametrize("line", [["--device=", "x"], ["-d", "", "x"], ["--env", "", "x"]])
def test_an_option_that_was_given_nothing_is_not_taken_for_one_left_out(line: list[str]) -> None:
    with pytest.raises(TenureError, match="was given an empty") as caught:
        parse(RUN, line)
    assert caught.value.code == "usage"


def test_an_empty_word_names_no_job_and_is_one_to_a_command_that_is_run() -> None:
    with pytest.raises(TenureError, match="an empty word was given"):
        parse(PLAIN, ["j1", ""])
    assert parse(RUN, ["echo", ""]).words == ["echo", ""]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("max_runtime_s", "--max-runtime: too much"),
        ("queue_timeout_s", "--timeout: too much"),
        ("label", "--as: too much"),
        ("output_quota_bytes", "--output-quota: too much"),
        ("argv.3", "argv.3: too much"),
        ("", "too much"),
    ],
)
def test_a_field_that_is_refused_is_called_by_its_option(field: str, said: str) -> None:
    told = f"{field}: too much" if field else "too much"
    error = TenureError("invalid_request", told, do="see /openapi.json for the fields", facts={"field": field})
    shown = in_options(error, import_module("tenure.cli.run").COMMAND)
    assert (shown.code, shown.message) == ("invalid_request", said)
    assert ("rc run --help" in shown.do) == bool(field)


def test_kept_scratches_take_no_filter_and_a_time_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--kept", "--state", "open"]) == 64
    assert "takes no filter" in capsys.readouterr().err
    for text in ("x", "nan", "inf"):
        assert main(["jobs", "--before", text]) == 64
        assert "seconds since 1970" in capsys.readouterr().err


def test_flags_run_together_and_values_collect() -> None:
    given = parse(RUN, ["-qf", "--env", "A=1", "--env=B=2", "--count", "3", "--timeout", "5m"])
    assert given.flag("quiet")
    assert given.flag("follow")
    assert given.many("env") == ["A=1", "B=2"]
    assert (given.value("count"), given.value("timeout")) == (3, 300.0)
    assert not given.json
    assert parse(RUN, ["-ojson"]).json


@pytest.mark.parametrize(
    ("command", "line", "said"),
    [
        (RUN, ["--devise", "x"], "did you mean --device"),
        (RUN, ["-d"], "needs a value"),
        (RUN, ["--quiet=1"], "takes no value"),
        (RUN, ["-qx"], "'-x'"),
        (RUN, ["--count", "two"], "whole number"),
        (RUN, ["--timeout", "-1"], "5m"),
        (RUN, ["-o", "xml"], "table, json"),
        (PLAIN, [], "missing"),
        (PLAIN, ["a", "b", "c"], "'c'"),
    ],
)
def test_what_is_wrong_is_said_with_how_it_should_look(command: Command, line: list[str], said: str) -> None:
    with pytest.raises(TenureError, match=said) as raised:
        parse(command, line)
    assert raised.value.code == "usage"
    assert command.usage in raised.value.do


def test_help_needs_nothing_else() -> None:
    assert parse(PLAIN, ["--help"]).flag("help")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_page_and_no_option_twice(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command: Command = import_module(f"tenure.cli.{name}").COMMAND
    assert command.name == name
    names = [one for option in command.options for one in option.names]
    assert len(names) == len(set(names))
    assert main([name, "--help"]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"usage: rc {name}")
    assert all(len(line) <= 120 for line in page.splitlines())
    assert name in overview()


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_completions_name_every_command_and_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in COMMANDS:
        assert name in script
    assert "priority" in script


def test_json_is_seen_where_the_line_is_wrong_too() -> None:
    assert wants_json(["ps", "--nonsense", "-o", "json"])
    assert wants_json(["ps", "--output=json"])
    assert not wants_json(["run", "--", "x", "-o", "json"])
    assert not wants_json(["run", "-o"])
