"""Parsers of captured nvidia-smi output (and of the DCGM fields that people paste beside it). Pure.

Tenure itself asks NVML; these read what other people's tools printed: captures, reports, hosts where only the tool
is allowed. ``[N/A]``, ``ERR!``, blanks, 2^64-1 and decimal commas are never numbers.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Container
from dataclasses import dataclass

from tenure.domain.label import unknown_reason
from tenure.domain.reading import Reading, Reason, Scope, Unavailable, Value

INSTRUMENT = "nvidia-smi"
ALL_ONES = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
DCGM_BLANKS = {  # the value says "blank", the next three say why
    base + offset: reason
    for base in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 140737488355328)
    for offset, reason in enumerate(
        (Reason.OUT_OF_RANGE, Reason.OUT_OF_RANGE, Reason.NOT_SUPPORTED, Reason.NO_PERMISSION)
    )
}
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?:\s*(%|MiB|GiB|KiB|MHz|W|C))?")
_ERRORS = (  # first match wins; the words are nvidia-smi's and NVML's own
    (r"version mismatch", Reason.VERSION_MISMATCH),
    (r"GPU is lost|fallen off the bus|Unable to determine the device handle", Reason.GPU_LOST),
    (r"requires (?:restart|reset)", Reason.GPU_LOST),
    (r"Insufficient Permissions|Permission denied|blocked the request", Reason.NO_PERMISSION),
    (r"couldn't communicate with the NVIDIA driver|Driver Not Loaded|Shared Library Not Found", Reason.LIBRARY_MISSING),
    (r"command not found|No such file", Reason.LIBRARY_MISSING),
    (r"Function Not Found", Reason.FUNCTION_MISSING),
    (r"Not Supported", Reason.NOT_SUPPORTED),
    (r"Timeout|timed out", Reason.TIMEOUT),
)


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """One row of the process table. ``memory_mb`` is None where the column held no number."""

    pid: int
    kind: str
    name: str
    memory_mb: int | None


def _why(text: str) -> Reason | None:
    """Why a field holds no value, None where it holds one."""
    if "Function Not Found" in text:
        return Reason.FUNCTION_MISSING
    if re.fullmatch(r"\[?Requires (?:reset|restart)\]?", text.strip(), re.IGNORECASE):
        return Reason.GPU_LOST
    reason = unknown_reason(text)
    return None if reason is None else Reason(reason)


def text_field(raw: str, at: float, *, scope: Scope = Scope.DEVICE) -> Reading[str]:
    """One field as text."""
    why = _why(raw)
    return Value(raw.strip(), at, INSTRUMENT, scope) if why is None else Unavailable(why, at, INSTRUMENT, scope, raw)


def number_field(raw: str, at: float, *, scope: Scope = Scope.DEVICE) -> Reading[float]:
    """One field as a number in the unit its header names. A unit behind it is allowed, anything else is not."""
    why = _why(raw)
    if why is not None:
        return Unavailable(why, at, INSTRUMENT, scope, raw)
    found = _NUMBER.fullmatch(raw.strip())
    if found is None:
        return Unavailable(Reason.UNPARSEABLE, at, INSTRUMENT, scope, raw)
    value = float(found[1])
    if value in ALL_ONES or value < -273:
        return Unavailable(Reason.OUT_OF_RANGE, at, INSTRUMENT, scope, raw)
    return Value(value, at, INSTRUMENT, scope)


def header(raw: str) -> str:
    """The plain name of a queried field: without its unit, and under the newer of its two spellings."""
    name = re.sub(r"\s*\[[^\]]*\]$", "", raw.strip())
    return re.sub(r"^clocks_throttle_reasons\.", "clocks_event_reasons.", name)


def throttle_reason(raw: str) -> str | None:
    """The bare reason of a clocks_event_reasons or clocks_throttle_reasons header, None for any other header."""
    found = re.fullmatch(r"clocks_event_reasons\.(\w+)", header(raw))
    return found[1] if found else None


def rows(text: str) -> list[list[str]]:
    """The fields of each non-empty line; a quoted field keeps its comma."""
    return [[cell.strip() for cell in row] for row in csv.reader(text.splitlines(), skipinitialspace=True) if row]


def query_csv(text: str, at: float) -> list[dict[str, Reading[float]]]:
    """``nvidia-smi --query-gpu=... --format=csv``: one record of numbers a device, keyed by plain header."""
    table = rows(text)
    if not table:
        return []
    names = [header(cell) for cell in table[0]]
    short = Unavailable(Reason.UNPARSEABLE, at, INSTRUMENT, Scope.DEVICE, "the row has fewer fields than the header")
    return [
        {name: number_field(row[i], at) if i < len(row) else short for i, name in enumerate(names)} for row in table[1:]
    ]


def compute_app(line: str, at: float, here: Container[int]) -> Reading[tuple[str, int, Reading[float]]]:
    """(GPU UUID, pid, memory in MiB) of a ``--query-compute-apps`` line.

    A pid that does not exist in this PID namespace belongs to nobody that could be named: foreign_namespace.
    """
    cells = rows(line)[0] if line.strip() else []
    if len(cells) < 2 or not cells[1].isdigit():
        return Unavailable(Reason.UNPARSEABLE, at, INSTRUMENT, Scope.PROCESS, line)
    pid = int(cells[1])
    if pid not in here:
        return Unavailable(Reason.FOREIGN_NAMESPACE, at, INSTRUMENT, Scope.PROCESS, f"pid {pid} is not found here")
    memory = number_field(cells[2] if len(cells) > 2 else "", at, scope=Scope.PROCESS)
    return Value((cells[0], pid, memory), at, INSTRUMENT, Scope.PROCESS)


_ROW = re.compile(r"^\|\s*\d+\s+(?:\S+\s+\S+\s+)?(\d+)\s+(C\+G|M\+C|[CGM])\s+(.*?)\s+(\d+MiB|N/A|\[N/A\])?\s*\|$")


def process_table(text: str, at: float) -> Reading[tuple[ListedProcess, ...]]:
    """The process table at the end of plain ``nvidia-smi``.

    A table that lists nobody and does not say "No running processes found" hides processes of another namespace.
    """
    found: list[ListedProcess] = []
    for line in text.splitlines():
        row = _ROW.match(line.strip())
        if row is not None:
            memory = int(row[4][:-3]) if row[4] and row[4].endswith("MiB") else None
            found.append(ListedProcess(int(row[1]), row[2], row[3], memory))
    if found or re.search(r"No running (?:compute )?processes found", text):
        return Value(tuple(found), at, INSTRUMENT, Scope.DEVICE)
    if not re.search(r"^\|?=+", text.strip(), re.MULTILINE):
        return Unavailable(Reason.UNPARSEABLE, at, INSTRUMENT, Scope.DEVICE, text[:200])
    detail = "the table is empty and does not say that nothing runs"
    return Unavailable(Reason.FOREIGN_NAMESPACE, at, INSTRUMENT, Scope.DEVICE, detail)


def error(text: str, at: float) -> Unavailable:
    """What an error message of nvidia-smi means. Words nobody knows stay as they are, as unparseable."""
    reason = next((reason for words, reason in _ERRORS if re.search(words, text, re.IGNORECASE)), Reason.UNPARSEABLE)
    return Unavailable(reason, at, INSTRUMENT, Scope.DEVICE, text.strip()[:300])


def lost_address(text: str) -> str | None:
    """The PCI address that an error message names, as NVML writes it (eight digits of domain)."""
    found = re.search(r"\b([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])\b", text)
    return f"{int(found[1], 16):08X}:{found[2].upper()}:{found[3].upper()}.{found[4]}" if found else None


def dcgm_field(line: str, at: float) -> Reading[float]:
    """``name value`` as dcgmi prints it. DCGM's blanks are numbers that mean "no number"."""
    words = line.split()
    got = number_field(words[-1] if len(words) > 1 else "", at)
    if isinstance(got, Value) and got.value >= min(DCGM_BLANKS):
        # as floats the largest blanks run into one another: then the plainest of them, "blank"
        reason = next((r for blank, r in DCGM_BLANKS.items() if float(blank) == got.value), Reason.OUT_OF_RANGE)
        return Unavailable(reason, at, "dcgm", Scope.DEVICE, line)
    return got
