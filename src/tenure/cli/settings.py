"""Settings of the command line: an option wins over the environment, the environment over ``config.toml``.

``color`` (auto, always, never; ``--color``, ``TENURE_COLOR``) and ``window`` (the limits of the verdict of use, as in
``grace=120,span=56,samples=8,period=1``; ``--window``, ``TENURE_WINDOW``; in the file also as a table).
"""

from __future__ import annotations

import os

from tenure.errors import TenureError
from tenure.sdk import locate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

KEYS = ("color", "window")
COLORS = ("auto", "always", "never")
_WINDOW = {"grace": "grace_s", "span": "span_s", "samples": "samples", "period": "period_s"}
_BOUNDS: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "span": (lambda n: n > 0, "a span is longer than 0 seconds"),
    "samples": (lambda n: n >= 2 and n == int(n), "samples are a whole number of 2 or more"),
    "period": (lambda n: 0.1 <= n <= 60, "a period is 0.1 to 60 seconds"),
}


def load(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in force. ``flags`` are the options that were given, already read."""
    found = _from_file()
    for key in KEYS:
        name = f"TENURE_{key.upper()}"
        if os.environ.get(name):
            found[key] = _read(key, os.environ[name], name, name)
        if flags.get(key) is not None:
            found[key] = flags[key]
    return found


def _from_file() -> dict[str, Any]:
    path = locate.home() + "/config.toml"
    try:
        with open(path, "rb") as file:
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise TenureError(
            "not_configured",
            f"{path} cannot be read: {error.strerror}",
            do=f"make it readable, or go by the defaults: mv {_quoted(path)} {_quoted(path + '.aside')}",
            facts={"path": path},
        ) from error
    import tomllib

    try:
        body = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _bad(path, "", f"is not TOML: {error}") from error
    for key in body:
        if key not in KEYS:
            raise _bad(path, key, f"is no setting; there are: {', '.join(KEYS)}")
    return {key: _read(key, value, path, key) for key, value in body.items()}


def _read(key: str, value: object, source: str, name: str) -> Any:
    path = source if source != name else ""
    if key == "color":
        if value not in COLORS:
            raise _bad(path, name, f"is one of {', '.join(COLORS)}, not {value!r}")
        return value
    try:
        if isinstance(value, dict):
            return window(",".join(f"{k}={v}" for k, v in value.items()))
        if isinstance(value, str):
            return window(value)
    except ValueError as error:
        raise _bad(path, name, str(error)) from error
    raise _bad(path, name, f"is text or a table, not {value!r}")


def window(text: str) -> dict[str, float]:
    """The limits in ``grace=0,span=3,samples=3,period=0.5``; each may be left out. Raises ``ValueError`` in words."""
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.strip().partition("=")
        if name not in _WINDOW or not equals:
            raise ValueError(f"{part!r} is none of {', '.join(f'{known}=N' for known in _WINDOW)}")
        try:
            number = float(value.removesuffix("s"))
        except ValueError:
            number = -1.0
        if not 0 <= number <= 1e9:
            raise ValueError(f"{part!r} holds no number of 0 or more")
        # What an agent would not take, and go by the defaults instead, is refused here, before anything ran.
        if name in _BOUNDS and not _BOUNDS[name][0](number):
            raise ValueError(f"{part!r}: {_BOUNDS[name][1]}")
        found[_WINDOW[name]] = number
    return found


def _quoted(path: str) -> str:
    from shlex import quote

    return quote(path)


def _bad(path: str, key: str, what: str) -> TenureError:
    where = f"{path}: {key} " if path and key else f"{path or key} "
    if not path:
        do = f"correct it, or go by the defaults: unset {key}"
    elif key:
        do = "correct that key, or remove it to go by the default"
    else:
        do = f"correct the file, or go by the defaults: mv {_quoted(path)} {_quoted(path + '.aside')}"
    return TenureError(
        "invalid_configuration",
        f"{where}{what}",
        do=do,
        facts={"path": path or None, "key": key or None},
    )
