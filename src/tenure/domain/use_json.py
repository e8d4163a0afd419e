"""Records to plain JSON values and back, led by the records' own type hints.

A reader ignores fields it does not know and takes defaults for fields that are missing, so that two neighbouring
versions understand each other. What does not fit the type raises ``ValueError`` with the path to it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin

from tenure.domain.reading import Unavailable, Value

R = TypeVar("R")


def encode(value: object) -> Any:
    """Dataclasses become objects, tuples lists, enums their values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"cannot be written as JSON: {type(value).__name__}")


def decode(kind: type[R], data: Mapping[str, Any]) -> R:
    """The record of type ``kind`` that ``data`` describes."""
    return cast(R, _decode(kind, data, kind.__name__))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(kind: Any, data: Any, path: str) -> Any:
    origin = get_origin(kind)
    if origin is Union or origin is types.UnionType:
        return _union(get_args(kind), data, path)
    if origin is tuple:
        if not isinstance(data, list):
            raise ValueError(f"{path}: a list was expected")
        return tuple(_decode(get_args(kind)[0], item, f"{path}[{i}]") for i, item in enumerate(data))
    record = origin or kind
    if dataclasses.is_dataclass(record):
        return _record(cast(type, record), get_args(kind), data, path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            raise ValueError(f"{path}: {data!r} is not one of {', '.join(str(m.value) for m in kind)}") from None
    return _plain(kind, data, path)


def _plain(kind: Any, data: Any, path: str) -> Any:
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool):
        return float(data)
    if kind in (int, str, bool) and type(data) is kind:
        return data
    raise ValueError(f"{path}: {data!r} is not of type {getattr(kind, '__name__', kind)}")


def _union(kinds: tuple[Any, ...], data: Any, path: str) -> Any:
    if data is None and type(None) in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    if Unavailable in kinds:
        # A reading: the two kinds are told apart by the reason, which only one of them has.
        unavailable = isinstance(data, Mapping) and "reason" in data
        return _decode(next(k for k in kinds if (k is Unavailable) == unavailable), data, path)
    return _decode(kinds[0], data, path)


def _record(kind: type, arguments: tuple[Any, ...], data: Any, path: str) -> Any:
    if not isinstance(data, Mapping):
        raise ValueError(f"{path}: an object was expected")
    hints = _hints(kind)
    if kind is Value:
        # Its own hint is a type variable; what it holds comes from the field that holds it.
        hints = {**hints, "value": arguments[0]}
    fields = {f.name: data[f.name] for f in dataclasses.fields(kind) if f.name in data}
    try:
        return kind(**{name: _decode(hints[name], item, f"{path}.{name}") for name, item in fields.items()})
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from error
