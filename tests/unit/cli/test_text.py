"""Text for people: hostile names, whole tables, lengths of time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.cli import text
from tenure.cli.streaming import end_lines


@given(st.text())
def test_clean_text_is_one_printable_line(hostile: str) -> None:
    assert text.clean(hostile).isprintable()
    if hostile.isprintable():
        assert text.clean(hostile) == hostile


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202eevil", "\\u202eevil"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("\u2028", "\\u2028"),
    ],
)
def test_control_and_format_characters_show_as_escapes(hostile: str, shown: str) -> None:
    assert text.clean(hostile) == shown


@given(st.lists(st.lists(st.text(max_size=12), min_size=3, max_size=3), max_size=6))
def test_a_table_has_one_line_a_row_and_columns_in_line(rows: list[list[str]]) -> None:
    lines = text.table(["A", "B", "C"], [[*row[:2], "|" + row[2]] for row in rows]).rstrip("\n").split("\n")
    assert len(lines) == 1 + len(rows)
    tails = ["|" + text.clean(row[2]).rstrip() for row in rows]
    begins = {text.width(line[: line.rindex(tail)]) for line, tail in zip(lines[1:], tails, strict=True)}
    assert len(begins) <= 1


def test_only_the_last_column_is_cut() -> None:
    name = "a-very-long-host-name-that-differs-at-its-end:gpu"
    page = text.table(["DEVICE", "WORDS"], [[name + "0", "w" * 300], [name + "1", "short"]], last=80)
    first, second = page.splitlines()[1:]
    assert name + "0" in first
    assert name + "1" in second
    assert first.endswith("…")
    assert len(first) == 80
    assert second.endswith("short")


def test_wide_characters_count_twice() -> None:
    lines = text.table(["A", "B"], [["日本", "x"], ["ab", "y"]]).splitlines()
    assert lines[1] == "日本  x"
    assert lines[2] == "ab    y"


@pytest.mark.parametrize(
    ("typed", "seconds"), [("10", 10), ("10s", 10), ("5m", 300), ("2h", 7200), ("1d", 86_400), ("0.5", 0.5), ("0", 0)]
)
def test_lengths_of_time(typed: str, seconds: float) -> None:
    assert text.duration(typed) == seconds


@pytest.mark.parametrize("typed", ["", "s", "-1", "1w", "nan", "inf", "1e400", "1_0", " 1", "1 s", "ten"])
def test_what_is_no_length_of_time(typed: str) -> None:
    with pytest.raises(ValueError, match="10s"):
        text.duration(typed)


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "color_when", "auto")
    monkeypatch.setattr("os.isatty", lambda fd: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert text.paint("ready") == "\x1b[32mready\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert text.paint("ready") == "ready"
    monkeypatch.setattr(text, "color_when", "always")
    assert text.paint("ready") != "ready"
    monkeypatch.setattr(text, "color_when", "never")
    monkeypatch.delenv("NO_COLOR")
    assert text.paint("ready") == "ready"


JOB = {
    "id": "j1",
    "label": "",
    "words": "exited 7",
    "devices": ["h:gpu0", "h:gpu1"],
    "simulated": [],
    "started_at": 10.0,
    "ended_at": 11.2,
    "outcome": {"stats": {"stragglers": 2}},
    "use": {"verdict": "used", "words": "used: all of it"},
}


@pytest.mark.parametrize(
    ("change", "ended", "used"),
    [
        (
            {},
            "job j1 exited 7 after 1.2 s on h:gpu0-1; stragglers: 2 (ended with it)",
            "GPU use: used: all of it",
        ),
        (
            {"simulated": ["h:gpu0", "h:gpu1"], "outcome": None},
            "job j1 exited 7 after 1.2 s on h:gpu0-1 (simulated)",
            "GPU use (simulated): used: all of it",
        ),
        (
            {"simulated": ["h:gpu1"], "outcome": None},
            "job j1 exited 7 after 1.2 s on h:gpu1 (simulated), h:gpu0",
            "GPU use (1 simulated): used: all of it",
        ),
        (
            {"use": None, "outcome": None},
            "job j1 exited 7 after 1.2 s on h:gpu0-1",
            "GPU use: unknown, no verdict was recorded",
        ),
        (
            {"devices": ["h:cpu0"], "use": None, "outcome": {}},
            "job j1 exited 7 after 1.2 s on h:cpu0",
            "no GPU was leased",
        ),
        (
            {"devices": ["h:gpu0"], "use": {"verdict": "not_applicable"}, "outcome": {}},
            "job j1 exited 7 after 1.2 s on h:gpu0",
            "no GPU was leased",
        ),
        (
            {"devices": [], "use": None, "started_at": None, "words": "timed out", "outcome": {}},
            "job j1 timed out",
            "no device was leased",
        ),
    ],
)
def test_the_two_lines_at_the_end(change: dict[str, object], ended: str, used: str) -> None:
    assert end_lines({**JOB, **change}) == (ended, used)


def test_a_narrow_terminal_gets_the_columns_that_say_something() -> None:
    head, rows = ["DEVICE", "JOB", "HOLDER", "STATE"], [["h:gpu0", "-", "-", "ready"], ["h:gpu1", "-", "ann", "busy"]]
    assert text.table(head, rows, last=24).splitlines()[0] == "DEVICE  HOLDER  STATE"
    assert "ann" in text.table(head, rows, last=24)
    assert text.table(head, rows, last=80).splitlines()[0] == "DEVICE  JOB  HOLDER  STATE"
    assert text.table(head, rows).splitlines()[0] == "DEVICE  JOB  HOLDER  STATE"
