"""One NVML call as the child reported it, read: the value in its range, or why there is none. Pure.

The child sends, for each call, ``{"v": value}`` or ``{"e": code, "m": words}`` (an NVML error) or ``{"x": words}``
(something else went wrong while it was asked). 2^64-1 and 2^32-1 are the driver's "not available" and never numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value

Calls: TypeAlias = Mapping[str, Any]

ALL_ONES_32 = 0xFFFFFFFF
ALL_ONES_64 = 0xFFFFFFFFFFFFFFFF
PID_MAX = 1 << 22  # the kernel's own limit (PID_MAX_LIMIT on 64 bit)

_REASON_OF_CODE: Mapping[int, Reason] = {
    2: Reason.NOT_SUPPORTED,  # INVALID_ARGUMENT: what some drivers say of a question that a MIG handle cannot answer
    3: Reason.NOT_SUPPORTED,
    4: Reason.NO_PERMISSION,
    6: Reason.GPU_LOST,  # NOT_FOUND, of a handle; calls for which it means "none" treat it before they come here
    9: Reason.LIBRARY_MISSING,  # DRIVER_NOT_LOADED
    10: Reason.TIMEOUT,
    11: Reason.GPU_LOST,  # IRQ_ISSUE
    12: Reason.LIBRARY_MISSING,
    13: Reason.FUNCTION_MISSING,
    15: Reason.GPU_LOST,
    16: Reason.GPU_LOST,  # RESET_REQUIRED
    17: Reason.NO_PERMISSION,  # OPERATING_SYSTEM: "has blocked the request"
    18: Reason.VERSION_MISMATCH,
    19: Reason.CONFLICT,  # IN_USE
    21: Reason.SAMPLING_GAP,  # NO_DATA
    25: Reason.FUNCTION_MISSING,  # ARGUMENT_VERSION_MISMATCH: the driver does not know this version of the call
    26: Reason.NOT_SUPPORTED,  # DEPRECATED
    27: Reason.SAMPLING_GAP,  # NOT_READY
    28: Reason.GPU_LOST,  # GPU_NOT_FOUND
}
NOT_FOUND = 6
UNKNOWN = 999


def reason_of(code: int, *, handle: bool = False) -> Reason:
    """The reason that fits an NVML return code. An unknown error while a handle is opened means the card is gone."""
    if handle and code == UNKNOWN:
        return Reason.GPU_LOST
    return _REASON_OF_CODE.get(code, Reason.UNPARSEABLE)


def failure(call: Any, at: float, instrument: str, *, handle: bool = False) -> Unavailable | None:
    """Why this call gave no value, or None where it gave one. A missing or malformed report is a sampling gap."""
    scope = Scope.DEVICE
    if not isinstance(call, Mapping):
        return Unavailable(Reason.SAMPLING_GAP, at, instrument, scope, "the child did not report this call")
    if isinstance(call.get("u"), Unavailable):  # put there by the client, for a call that was never answered
        why: Unavailable = call["u"]
        return Unavailable(why.reason, at, instrument, scope, why.detail)
    if "e" in call:
        code = call["e"]
        if not isinstance(code, int):
            return Unavailable(Reason.UNPARSEABLE, at, instrument, scope, repr(call)[:200])
        words = f"{call.get('m', '')} ({code})".strip()
        return Unavailable(reason_of(code, handle=handle), at, instrument, scope, words)
    if "x" in call:
        return Unavailable(Reason.UNPARSEABLE, at, instrument, scope, str(call["x"])[:200])
    if "v" not in call:
        return Unavailable(Reason.UNPARSEABLE, at, instrument, scope, repr(call)[:200])
    return None


def number(
    raw: Any, at: float, instrument: str, *, low: int = 0, high: int = ALL_ONES_64 - 1, scope: Scope = Scope.DEVICE
) -> Reading[int]:
    """A whole number inside its possible range. All ones of 32 or 64 bits are out of range whatever the bounds."""
    if isinstance(raw, bool) or not isinstance(raw, int):
        return Unavailable(Reason.UNPARSEABLE, at, instrument, scope, repr(raw)[:100])
    if raw in (ALL_ONES_32, ALL_ONES_64) or not low <= raw <= high:
        return Unavailable(Reason.OUT_OF_RANGE, at, instrument, scope, str(raw))
    return Value(raw, at, instrument, scope)


def one(calls: Calls, function: str, at: float, *, high: int, low: int = 0) -> Reading[int]:
    """The whole number that one call gave."""
    instrument = f"nvml.{function}"
    bad = failure(calls.get(function), at, instrument)
    return bad if bad is not None else number(calls[function]["v"], at, instrument, low=low, high=high)


def text(calls: Calls, function: str, at: float) -> Reading[str]:
    """The text that one call gave; blank text is none."""
    instrument = f"nvml.{function}"
    bad = failure(calls.get(function), at, instrument)
    if bad is not None:
        return bad
    raw = calls[function]["v"]
    if not isinstance(raw, str) or not raw.strip():
        return Unavailable(Reason.UNPARSEABLE, at, instrument, Scope.DEVICE, repr(raw)[:100])
    return Value(raw.strip(), at, instrument, Scope.DEVICE)


def flag(calls: Calls, function: str, at: float) -> Reading[bool]:
    """What one call said of a switch: 0 or 1, and nothing else."""
    got = one(calls, function, at, high=1)
    return got if isinstance(got, Unavailable) else Value(bool(got.value), at, got.instrument, got.scope)


def first(calls: Calls, functions: Iterable[str], at: float, notes: list[str]) -> tuple[str, Unavailable | None]:
    """The newest of several versions of one call that answered; what the newer ones said is noted.

    Where none answered, the failure is the most telling one: the oldest call's, unless that is merely missing.
    """
    asked = [name for name in functions if name in calls] or list(functions)[:1]
    failures: list[tuple[str, Unavailable]] = []
    for name in asked:
        bad = failure(calls.get(name), at, f"nvml.{name}")
        if bad is None:
            notes.extend(f"{n}: {f.reason} ({f.detail})" for n, f in failures)
            return name, None
        failures.append((name, bad))
    telling = [f for f in failures if f[1].reason is not Reason.FUNCTION_MISSING]
    return (telling or failures)[-1]
