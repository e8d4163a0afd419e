"""Names of devices as people read them: ``h:gpu0-3`` for four in a row. No imports: every command may need it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def names(devices: Iterable[str]) -> str:
    """The names in the order given, with runs of consecutive numbers as one: ``h:gpu0-2, h:gpu5``."""
    runs: list[tuple[str, int | None, int | None]] = []
    for name in devices:
        stem, number = _split(name)
        if number is not None and runs and runs[-1][0] == stem and runs[-1][2] == number - 1:
            runs[-1] = (stem, runs[-1][1], number)
        else:
            runs.append((stem, number, number))
    return ", ".join(map(_words, runs))


def _split(name: str) -> tuple[str, int | None]:
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    # A number that is not written the usual way would come out as another name.
    usual = digits.isascii() and digits and str(int(digits)) == digits
    return (stem, int(digits)) if usual and ":" in stem else (name, None)


def _words(run: tuple[str, int | None, int | None]) -> str:
    stem, first, last = run
    if first is None:
        return stem
    return f"{stem}{first}" if first == last else f"{stem}{first}-{last}"
