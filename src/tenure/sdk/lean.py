"""What the everyday commands need of json, socket and signal, without importing those three.

They are Python files around C modules, and drag in re, enum, functools, collections and selectors: together as long as
the interpreter takes to start (21 of 42 ms of processor on a busy machine), in a program that is to cost little more.
The C modules are private to CPython; where one is missing, its public face is imported instead and all is as usual.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any
else:
    try:
        import _socket as socket
    except ImportError:
        import socket
    try:
        import _signal as signal
    except ImportError:
        import signal

__all__ = ["dumps", "loads", "signal", "socket"]

_BLANKS = " \t\n\r"


class _Rules:
    """The settings of json's own decoder, by the names under which the scanner looks for them."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def _tools() -> tuple[Any, Any]:
    try:
        import _json

        scan: Any = vars(_json)["make_scanner"](_Rules)
        quoted = vars(_json)["encode_basestring_ascii"]
        pieces: Any = vars(_json)["make_encoder"](None, _refuse, quoted, None, ":", ",", False, False, True)
    except (ImportError, KeyError, TypeError):
        return None, None
    return scan, pieces


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is no JSON")


_scan, _pieces = _tools()


def loads(data: str | bytes) -> Any:
    """The value of a JSON text in UTF-8. Raises ``ValueError``."""
    text = data if isinstance(data, str) else data.decode("utf-8")
    if _scan is None:
        import json

        return json.loads(text)
    text = text.strip(_BLANKS)
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("no JSON value begins here") from None
    if end != len(text):
        raise ValueError(f"something follows the JSON value at character {end}")
    return value


def dumps(value: Any) -> str:
    """Compact JSON text in ASCII. Raises ``TypeError`` for what JSON cannot say."""
    if _pieces is None:
        import json

        return json.dumps(value, separators=(",", ":"))
    return "".join(_pieces(value, 0))
