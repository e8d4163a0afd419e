"""Text for people: what others named is made harmless, tables stay whole, lengths of time are read and said."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_COLORS = {
    "ready": "32",
    "busy": "33",
    "ending": "33",
    "running": "32",
    "queued": "36",
    "occupied": "35",
    "unknown": "35",
    "unhealthy": "31",
    "draining": "35",
}
#: What ``--color`` said; empty where it was not given, and the settings hold.
color_when = ""


def clean(text: object) -> str:
    """Text on one line that a terminal only shows: control and format characters as escapes, spaces as spaces.

    Format characters include those that turn the direction of writing; a surrogate stands for a byte that was no text.
    """
    said = str(text)
    if said.isprintable():
        return said
    return "".join(one if one.isprintable() else _escape(one) for one in said)


def _escape(one: str) -> str:
    code = ord(one)
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return named.get(one) or (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65_536 else f"\\U{code:08x}"
    )


def width(text: str) -> int:
    """How many columns of a terminal a clean text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, last: int | None = None) -> str:
    """A table with every cell on one line. Only the last column may be cut, to ``last`` columns of the terminal in all:
    it is for free text. Columns with names are never cut, wherever they differ; where they do not fit, those in which
    no row has anything are left out."""
    cells = [[clean(cell) for cell in row] for row in rows]
    if (
        last is not None
        and sum(max(width(row[at]) for row in [list(head), *cells]) + 2 for at in range(len(head))) > last
    ):
        kept = [at for at in range(len(head)) if at == len(head) - 1 or any(row[at] not in ("-", "") for row in cells)]
        head, cells = [head[at] for at in kept], [[row[at] for at in kept] for row in cells]
    wide = [max(width(row[at]) for row in [list(head), *cells]) for at in range(len(head))]
    lines = []
    for row in [list(head), *cells]:
        parts = [cell + " " * (size - width(cell)) for cell, size in zip(row[:-1], wide, strict=False)]
        left = "  ".join(parts)
        tail = row[-1]
        if last is not None:
            tail = cut(tail, max(last - width(left) - 2, 12))
        line = f"{left}  {tail}" if parts else tail
        lines.append(line.rstrip())
    return "\n".join(lines) + "\n"


def cut(text: str, columns: int) -> str:
    """Free text in at most so many columns, with an ellipsis where something was left out."""
    if width(text) <= columns:
        return text
    kept = ""
    for one in text:
        if width(kept) + width(one) > columns - 1:
            break
        kept += one
    return kept + "…"


def terminal_columns() -> int | None:
    """The width of the terminal that standard output is; ``None`` where it is none (nothing is cut then)."""
    try:
        return os.get_terminal_size(1).columns or None if os.isatty(1) else None
    except OSError:
        return None


def colored() -> bool:
    """Whether standard output gets colours: by the option or the setting; ``auto`` is a terminal without NO_COLOR."""
    when = color_when or _color_setting()
    if when != "auto":
        return when == "always"
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and os.isatty(1)


def _color_setting() -> str:
    """The setting. A table is shown without colours, not refused, where the settings cannot be used: it says so."""
    global color_when
    from tenure.cli import settings
    from tenure.errors import TenureError

    try:
        color_when = str(settings.load({}).get("color", "auto"))
    except TenureError as error:
        note(f"{error.message}; colours are left out: {error.do}")
        color_when = "never"
    return color_when


def paint(page: str) -> str:
    """The words of states, coloured where colours are shown: where a column begins, or behind a count. Applied last: it
    changes no width."""
    if not colored():
        return page
    out = []
    for line in page.split("\n"):
        words = line.split(" ")
        before = ["", *words]
        out.append(" ".join(map(_painted, words, before)))
    return "\n".join(out)


def _painted(word: str, before: str) -> str:
    shown = word in _COLORS and (not before or before.isdigit())
    return f"\x1b[{_COLORS[word]}m{word}\x1b[0m" if shown else word


def say(text: str) -> None:
    """One page on standard output."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def note(text: str) -> None:
    """One line on standard error, after whatever was written there before."""
    sys.stderr.write(f"rc: {clean(text)}\n")
    sys.stderr.flush()


def let_go(text: str) -> None:
    """``note`` after a Ctrl-C, which a terminal shows as ``^C`` on the line where the cursor was."""
    if os.isatty(2):
        sys.stderr.write("\n")
    note(text)


def span(seconds: float) -> str:
    """A length of time as people say it: ``0.4 s``, ``12 s``, ``3 min``, ``2.5 h``, ``3 d``."""
    seconds = max(seconds, 0.0)
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def ago(at: float | None, now: float | None = None) -> str:
    """How long ago a UTC time was; ``-`` where there is none."""
    return "-" if at is None else span((now or time.time()) - at)


def duration(text: str) -> float:
    """Seconds in a text such as ``10``, ``10s``, ``1.5m``, ``2h``, ``1d``. Raises ``ValueError`` with what is wrong."""
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf") or "_" in number or number != number.strip():
        raise ValueError("a length of time reads 10, 10s, 5m, 2h or 1d")
    return seconds


def size(text: str) -> int:
    """Bytes in a text such as ``500``, ``10k``, ``5M``, ``2G``, ``1T`` (1024 each). Raises ``ValueError``."""
    power = "kmgt".find(text[-1:].lower()) + 1 if text else 0
    digits = text[:-1] if power else text
    if not digits.isascii() or not digits.isdigit() or not int(digits):
        raise ValueError("a size reads 500, 10k, 5M or 2G, and is above 0")
    return int(digits) << 10 * power


def moment(text: str) -> float:
    """A UTC time in seconds: so long ago (``10m``), or as ``2026-11-30T23:24:05`` (UTC unless it names an offset).
    Raises ``ValueError`` with what is wrong."""
    try:
        return max(0.0, time.time() - duration(text))
    except ValueError:
        from datetime import UTC, datetime
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("a time reads 10m (so long ago) or 2026-11-30T23:24:05 (UTC)") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def whole(text: str) -> int:
    """A whole number; raises ``ValueError`` in words."""
    if not text.lstrip("-").isascii() or not text.removeprefix("-").isdigit():
        raise ValueError("a whole number is needed")
    return int(text)


def number(text: str) -> float:
    """A finite number; raises ``ValueError`` in words."""
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not abs(found) < 1e300 or "_" in text:
        raise ValueError("a number is needed")
    return found


def command_line(argv: Sequence[str]) -> str:
    """A command as one would type it."""
    from shlex import join

    return join(argv)
