"""A job's output on a terminal, looked at on a real pty; and untouched anywhere else."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.cli.terminal import Terminal, on_a_terminal

from tenure.cli.streaming import Screen, unfinished

SMILE = "😀".encode()


def shown(work: Callable[[Screen, int], object]) -> Terminal:
    """What a terminal shows of a screen with both streams on it."""

    def on(fd: int) -> None:
        screen = Screen(fd, fd)
        work(screen, fd)
        screen.flush()

    return on_a_terminal(on)[0]


@pytest.mark.parametrize("text", ["a", "é", "€", "😀", "👩‍👩‍👧", "e\u0301"])
def test_what_is_unfinished_is_known_at_every_cut(text: str) -> None:
    data = text.encode()
    for cut in range(len(data) + 1):
        try:
            data[:cut].decode()
            whole = cut
        except UnicodeDecodeError as error:
            whole = error.start
        assert unfinished(data[:cut]) == cut - whole, cut


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"\x80\x80\x80\x80", b"\xc0", b"\xf8\x88", b"ok\xc3\xa9", b"\xe2\x82\xac"]
)
def test_what_no_byte_can_complete_is_not_held_back(data: bytes) -> None:
    assert unfinished(data) == 0


def test_no_character_is_torn_by_a_cut_or_by_the_other_stream() -> None:
    def work(screen: Screen, fd: int) -> None:
        for byte in SMILE:
            screen.write("stdout", bytes([byte]))
            screen.write("stderr", b"<" + "é".encode()[:1])
            screen.write("stderr", "é".encode()[1:] + b">")

    assert shown(work).lines == ["<é><é><é>😀<é>"]


@pytest.mark.parametrize("seed", range(10))
def test_cut_anywhere_each_stream_reads_as_it_was_written(seed: int) -> None:
    rng = random.Random(seed)
    texts = {"stdout": "".join(rng.choices("abc 1", k=200)), "stderr": "".join(rng.choices("éß€😀漢", k=200))}

    def work(screen: Screen, fd: int) -> None:
        left = {name: text.encode() for name, text in texts.items()}
        while any(left.values()):
            name = rng.choice([name for name, data in left.items() if data])
            size = rng.randint(1, 5)
            screen.write(name, left[name][:size])
            left[name] = left[name][size:]

    line = "".join(shown(work).lines)
    assert "".join(one for one in line if one in "abc 1").rstrip() == texts["stdout"].rstrip()
    assert "".join(one for one in line if one not in "abc 1") == texts["stderr"]


def test_a_bar_is_drawn_in_its_place() -> None:
    def work(screen: Screen, fd: int) -> None:
        for percent in range(101):
            screen.write("stderr", f"\r{percent:3d}% {'█' * (percent // 10)}".encode())
        screen.write("stderr", b"\ndone\n")

    assert shown(work).lines == ["100% ██████████", "done", ""]


@pytest.mark.parametrize("bar", ["\r{}%", "{}%\r"])
def test_a_note_of_ours_stands_on_its_own_line_and_leaves_the_bar(bar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(screen: Screen, fd: int) -> None:
        saved = os.dup(2)
        os.dup2(fd, 2)
        monkeypatch.setattr("tenure.cli.streaming.note", lambda text: os.write(2, f"rc: {text}\n".encode()))
        try:
            screen.write("stdout", bar.format(41).encode())
            screen.gap({"offset": 3, "bytes": 7, "stream": "stdout", "cause": "disk", "why": "full"})
            screen.write("stdout", bar.format(42).encode())
            screen.trouble("gone", None)
            screen.write("stdout", bar.format(43).encode())
            screen.close_line()
        finally:
            os.dup2(saved, 2)
            os.close(saved)

    lines = shown(work).lines
    assert [lines[0], lines[2], lines[4]] == ["41%", "42%", "43%"]
    assert lines[1] == "rc: 7 bytes of stdout are missing here, at byte 3: full"
    assert lines[3].startswith("rc: the controller does not answer (gone)")
    assert lines[5:] == [""]


def test_a_note_after_a_whole_line_or_a_held_piece_leaves_no_empty_line() -> None:
    def work(screen: Screen, fd: int) -> None:
        screen.write("stdout", b"line\n")
        screen.write("stdout", SMILE[:2])
        screen.close_line()
        os.write(fd, b"note\n")
        screen.write("stdout", SMILE[2:] + b"\n")

    assert shown(work).lines == ["line", "note", "😀", ""]


def test_what_is_never_completed_comes_at_the_end() -> None:
    _, raw = on_a_terminal(lambda fd: _written(Screen(fd, fd), b"caf\xe9", b"\xf0\x9f\x98"))
    assert raw == b"caf\xe9\xf0\x9f\x98"


def _written(screen: Screen, *pieces: bytes) -> None:
    for piece in pieces:
        screen.write("stdout", piece)
    screen.flush()


def test_anywhere_else_bytes_go_through_as_they_come(tmp_path: Path) -> None:
    out, err = (os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("out", "err"))
    screen = Screen(out, err)
    for byte in SMILE:
        screen.write("stdout", bytes([byte]))
        assert (tmp_path / "out").read_bytes()[-1:] == bytes([byte])
    screen.write("stderr", b"50%\r\xff\x00")
    screen.close_line()
    assert (tmp_path / "out").read_bytes() == SMILE
    assert (tmp_path / "err").read_bytes() == b"50%\r\xff\x00"
    assert screen.shown == {"stdout": 4, "stderr": 6}
    os.close(out)
    os.close(err)
