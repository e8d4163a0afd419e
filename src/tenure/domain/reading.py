"""What an instrument answered: a value, or unavailable with a reason. There is no third kind.

A ``Reading`` never does arithmetic: whoever wants a number must first ask which of the two it is. That is on
purpose; monitoring tools that let an "unknown" take part in sums are how ``[N/A]`` became zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Reason(StrEnum):
    """Why an instrument could not answer. The list is closed: a new reason is a change of the wire."""

    NOT_SUPPORTED = "not_supported"
    NO_PERMISSION = "no_permission"
    FOREIGN_NAMESPACE = "foreign_namespace"
    SHARED_DEVICE = "shared_device"
    LIBRARY_MISSING = "library_missing"
    FUNCTION_MISSING = "function_missing"
    GPU_LOST = "gpu_lost"
    VERSION_MISMATCH = "version_mismatch"
    TIMEOUT = "timeout"
    OUT_OF_RANGE = "out_of_range"
    CONFLICT = "conflict"
    SAMPLING_GAP = "sampling_gap"
    WINDOW_TOO_SHORT = "window_too_short"
    UNPARSEABLE = "unparseable"
    BASELINE_UNKNOWN = "baseline_unknown"


class Scope(StrEnum):
    """What a reading speaks of. A device-wide figure says nothing of one process, and the other way round."""

    PROCESS = "process"
    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Value(Generic[T_co]):
    """An instrument answered.

    ``at`` is seconds on the host's monotonic clock (comparable only within one boot of one host).
    """

    value: T_co
    at: float
    instrument: str
    scope: Scope


@dataclass(frozen=True, slots=True)
class Unavailable:
    """An instrument could not answer; ``reason`` says why, ``detail`` keeps its own words as evidence."""

    reason: Reason
    at: float
    instrument: str
    scope: Scope
    detail: str = ""


Reading: TypeAlias = Value[T_co] | Unavailable
