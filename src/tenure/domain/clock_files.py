"""Clock windows as files hold them: a JSON object, or CSV with a header as the monitoring tools write it.

What a file does not state is not made up: the reader lists every field it had to assume, for whoever judges the window
to say so. A cell such as ``[N/A]`` is a reading that did not come, and stays one.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenure.domain.clocks import ClockSample, ClockWindow, coverage_of

#: As many samples as five days at 1 Hz and more; a file that repeats a cycle more often than that is none of ours.
MAX_SAMPLES = 500_000


@dataclass(frozen=True, slots=True)
class WindowFile:
    """A window and the fields that its file left out, each with what was taken instead."""

    window: ClockWindow
    assumed: tuple[str, ...]


def samples_from_dict(arm: Mapping[str, Any]) -> tuple[ClockSample, ...]:
    """The samples of a JSON window. Raises ValueError with what is wrong.

    ``sm_mhz`` is a list of clocks in MHz (``null``: did not read), or ``[[clocks], times]``: the cycle repeated.
    ``throttle_bits`` is every sample's mask unless ``throttle_bits_at`` gives another by index; ``busy_cycle`` is
    repeated over the samples, which are all busy without it.
    """
    given = arm.get("sm_mhz")
    if not isinstance(given, list):
        raise ValueError("sm_mhz has to be a list of clocks in MHz")
    if given and isinstance(given[0], list):
        if len(given) != 2 or not _is_int(given[1]) or not 0 <= given[1] * len(given[0]) <= MAX_SAMPLES:
            raise ValueError(f"sm_mhz [[clocks], times] needs a number of times, {MAX_SAMPLES} samples at most")
        given = given[0] * given[1]
    cycle = arm.get("busy_cycle", [True])
    if not isinstance(cycle, list) or not cycle or not all(one is None or isinstance(one, bool) for one in cycle):
        raise ValueError("busy_cycle has to be a list of true, false or null")
    at = arm.get("throttle_bits_at", {})
    if not isinstance(at, Mapping) or not all(str(key).isascii() and str(key).isdigit() for key in at):
        raise ValueError("throttle_bits_at maps the index of a sample to its bits")
    special = {int(index): _bits(bits) for index, bits in at.items()}
    if any(index >= len(given) for index in special):
        raise ValueError(f"throttle_bits_at names sample {max(special)}, and there are {len(given)}")
    everywhere = _bits(arm.get("throttle_bits", 0))
    return tuple(
        ClockSample(_number(value, "sm_mhz"), special.get(index, everywhere), busy)
        for index, (value, busy) in enumerate(zip(given, itertools.cycle(cycle), strict=False))
    )


def window_from_dict(arm: object) -> WindowFile:
    """The window of a JSON object. Raises ValueError with what is wrong."""
    if not isinstance(arm, Mapping):
        raise ValueError("a clock window is a JSON object")
    samples = samples_from_dict(arm)
    assumed = []
    if "throttle_bits" not in arm:
        assumed.append("throttle_bits: none set")
    if "busy_cycle" not in arm:
        assumed.append("busy_cycle: busy in every sample")
    coverage = _number(arm.get("coverage", 1.0), "coverage")
    if "coverage" not in arm:
        assumed.append("coverage: the whole span")
    if "contended" not in arm:
        assumed.append("contended: no")
    contended = arm.get("contended", False)
    if contended is not None and not isinstance(contended, bool):
        raise ValueError(f"contended {contended!r} is neither true nor false")
    persistence = arm.get("persistence", "")
    if isinstance(persistence, bool):
        persistence = "Enabled" if persistence else "Disabled"
    window = ClockWindow(
        samples=samples,
        name=_text(arm, "name"),
        driver=_text(arm, "driver"),
        boot_id=_text(arm, "boot_id"),
        persistence=str(persistence or ""),
        coverage=coverage,
        contended=contended,
        **{key: _number(arm.get(key), key) for key in ("max_sm_mhz", "max_mem_mhz", "app_sm_mhz", "app_mem_mhz")},
    )
    return WindowFile(window, tuple(assumed))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object, what: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise ValueError(f"{what} {value!r} is no number")
    return value


def _bits(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", value):
        return int(value, 16)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
        raise ValueError(f"throttle bits {value!r} are no mask")
    return value


def _text(arm: Mapping[str, Any], key: str) -> str:
    value = arm.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} {value!r} is no text")
    return value or ""


# -- CSV ---------------------------------------------------------------------------------------------------------------

#: What a column may be called, units in brackets left out: our own names, then those of ``nvidia-smi --query-gpu``.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "at": ("at", "at_s", "time_s"),
    "sm_mhz": ("sm_mhz", "clocks.current.sm", "clocks.sm"),
    "mem_mhz": ("mem_mhz", "clocks.current.memory", "clocks.mem"),
    "throttle_bits": ("throttle_bits", "clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    "busy": ("busy",),
    "utilisation": ("utilisation", "utilization.gpu"),
    "pstate": ("pstate",),
    "temperature_c": ("temperature_c", "temperature.gpu"),
    "power_w": ("power_w", "power.draw"),
    "power_limit_w": ("power_limit_w", "power.limit"),
    "name": ("name",),
    "driver": ("driver", "driver_version"),
    "boot_id": ("boot_id",),
    "persistence": ("persistence", "persistence_mode"),
    "max_sm_mhz": ("max_sm_mhz", "clocks.max.sm"),
    "max_mem_mhz": ("max_mem_mhz", "clocks.max.memory", "clocks.max.mem"),
    "app_sm_mhz": ("app_sm_mhz", "clocks.applications.graphics"),
    "app_mem_mhz": ("app_mem_mhz", "clocks.applications.memory"),
    "contended": ("contended",),
}
_FLOATS = ("sm_mhz", "mem_mhz", "utilisation", "temperature_c", "power_w", "power_limit_w")
_STATIC_TEXT = ("name", "driver", "boot_id", "persistence")
_STATIC_FLOATS = ("max_sm_mhz", "max_mem_mhz", "app_sm_mhz", "app_mem_mhz")


def window_from_csv(text: str, *, period: float | None = None) -> WindowFile:
    """The window of CSV text: a header with names of ``COLUMNS`` (others are left alone), then a row a sample.

    ``sm_mhz`` and ``throttle_bits`` have to be there, and ``busy`` or ``utilisation``; ``at`` is in seconds. Coverage
    is worked out from ``at`` and the period (seconds; the median gap where none is given). Raises ValueError with the
    row that is wrong, or where a field that must not change within a window does.
    """
    rows = list(itertools.islice(csv.reader(io.StringIO(text), skipinitialspace=True), MAX_SAMPLES + 2))
    rows = [row for row in rows if row]
    if len(rows) > MAX_SAMPLES + 1:
        raise ValueError(f"more than {MAX_SAMPLES} samples")
    if not rows:
        raise ValueError("there is no header")
    head = [re.sub(r"\s*\[.*\]$", "", cell.strip().lower()) for cell in rows[0]]
    at = {key: next((head.index(n) for n in names if n in head), None) for key, names in COLUMNS.items()}
    lacking = [key for key in ("sm_mhz", "throttle_bits") if at[key] is None]
    lacking += ["busy or utilisation"] if at["busy"] is None and at["utilisation"] is None else []
    if lacking:
        raise ValueError(f"the header lacks {', '.join(lacking)}; it has: {', '.join(head)}")

    table: dict[str, list[str]] = {key: [] for key, place in at.items() if place is not None}
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(head):
            raise ValueError(f"row {number} has {len(row)} cells, the header {len(head)}")
        for key, cells in table.items():
            cells.append(row[at[key] or 0].strip())
    return _from_table(table, len(rows) - 1, period)


def _from_table(table: Mapping[str, Sequence[str]], count: int, period: float | None) -> WindowFile:
    floats = {key: [_cell(key, cell) for cell in table[key]] for key in (*_FLOATS, "at") if key in table}
    busy: Sequence[bool | None]
    if "busy" in table:
        busy = [_yes_no(cell) for cell in table["busy"]]
    else:
        busy = [None if value is None else value > 0 for value in floats["utilisation"]]
    samples = []
    for index in range(count):
        told = {key: values[index] for key, values in floats.items()}
        bits = _mask(table["throttle_bits"][index])
        state = table["pstate"][index] if "pstate" in table else None
        samples.append(ClockSample(throttle_bits=bits, busy=busy[index], pstate=state, **told))
    static = {key: _one(key, table.get(key, ())) for key in (*_STATIC_TEXT, *_STATIC_FLOATS)}
    assumed = []
    if "contended" not in table:
        assumed.append("contended: no")
    window = ClockWindow(
        samples=tuple(samples),
        name=static["name"],
        driver=static["driver"],
        boot_id=static["boot_id"],
        persistence=static["persistence"],
        max_sm_mhz=_cell("max_sm_mhz", static["max_sm_mhz"]),
        max_mem_mhz=_cell("max_mem_mhz", static["max_mem_mhz"]),
        app_sm_mhz=_cell("app_sm_mhz", static["app_sm_mhz"]),
        app_mem_mhz=_cell("app_mem_mhz", static["app_mem_mhz"]),
        coverage=_coverage(floats.get("at", []), period, assumed),
        contended=_any([_yes_no(cell) for cell in table.get("contended", ())]),
    )
    return WindowFile(window, tuple(assumed))


def _coverage(times: Sequence[float | None], period: float | None, assumed: list[str]) -> float | None:
    known = [time for time in times if time is not None]
    if not known or len(known) < len(times):
        return None
    if period is None and len(known) > 1:
        period = statistics.median(abs(b - a) for a, b in itertools.pairwise(known))
        assumed.append(f"period: the median gap of {period:g} s")
    return coverage_of(known, period) if period else None


def _any(told: Sequence[bool | None]) -> bool | None:
    return True if True in told else None if None in told else False


def _one(key: str, cells: Sequence[str]) -> str:
    found = sorted({cell for cell in cells if _tells(cell)})
    if len(found) > 1:
        raise ValueError(f"{key} changes within the window: {', '.join(found[:4])}")
    told = bool(found) and all(_tells(cell) for cell in cells)
    return found[0] if told else ""


def _tells(cell: str) -> bool:
    return bool(cell) and not re.fullmatch(r"\[.*\]|err!?|n/a|not supported|unknown", cell.lower())


def _cell(key: str, cell: str) -> float | None:
    if not _tells(cell):
        return None
    found = re.fullmatch(r"(-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)(?:\s*(?:MHz|W|%|C|s))?", cell)
    value = float(found[1]) if found else math.nan
    if not abs(value) < 1e15:
        raise ValueError(f"{key} {cell!r} is no number")
    return value


def _mask(cell: str) -> int | None:
    if not _tells(cell):
        return None
    if not re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}", cell):
        raise ValueError(f"throttle_bits {cell!r} are no mask")
    return int(cell, 0) if cell[:2].lower() == "0x" else int(cell)


def _yes_no(cell: str) -> bool | None:
    said = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(cell.lower())
    if said is None and _tells(cell):
        raise ValueError(f"{cell!r} is neither yes nor no")
    return said
