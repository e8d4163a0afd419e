"""Files that commands decide from: read whole and bounded, as JSON or TOML, with errors that name the file."""

from __future__ import annotations

import sys

from tenure.errors import TenureError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 64 << 20


class NotJudged(TenureError):
    """The files do not allow an answer: exit status 2, as every command here has it that answers with 0 or 1."""

    @property
    def exit_code(self) -> int:
        """Always 2."""
        return 2


def read_text(path: str, *, errors: str = "strict") -> str:
    """A file's text, of standard input for ``-``. Raises OSError, or ``invalid_request`` for what is no UTF-8 text."""
    if path == "-":
        data = sys.stdin.buffer.read(MOST + 1)
    else:
        with open(path, "rb") as file:
            data = file.read(MOST + 1)
    if len(data) > MOST:
        raise bad(path, f"more than {MOST >> 20} MiB", "give a smaller file")
    try:
        return data.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise bad(path, f"no UTF-8 text: byte {error.start} is {data[error.start]:#04x}", "give a text file") from error


def read_object(path: str) -> dict[str, Any]:
    """The JSON object or TOML document of a file: no TOML begins with a brace."""
    text = read_text(path)
    try:
        if text.lstrip().startswith("{"):
            import json

            body = json.loads(text)
        else:
            import tomllib

            body = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad(path, f"neither a JSON object nor TOML: {error}", "correct the file") from error
    return dict(body)


def bad(path: str, what: str, do: str) -> TenureError:
    """A file that cannot be used, and why."""
    return TenureError("invalid_request", f"{path}: {what}", do=do, facts={"path": path})


def one_word(given: list[str], where: str) -> dict[str, str]:
    """Options such as ``NAME=VALUE`` as a mapping; raises ``usage`` for one without an equals sign."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise TenureError("usage", f"{where} {text!r} is not NAME=VALUE", do=f"write {where} NAME=VALUE")
        found[name] = value
    return found
