"""What a job took of its host, as ``rc describe`` shows it: peaks and what to ask for next, the host, the ceiling."""

from __future__ import annotations

from tenure.domain import provision
from tenure.domain.quantity import comparable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


def rows(stats: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The lines that an outcome's ``stats`` give; what was not measured is said to be so."""
    host, told = stats.get("host") or {}, []
    if host or "peak_memory" in stats:
        told.append(("peak memory", _peak(stats.get("peak_memory"), "--need-mem")))
        told.append(("peak disk", _peak(stats.get("peak_disk"), "--need-disk")))
    if host.get("samples"):
        told.append(("host", _host(host)))
    if host.get("trouble"):
        told.append(("host samples", str(host["trouble"])))
    if host.get("log"):
        told.append(("host log", str(host["log"])))
    if stats.get("ceiling"):
        told.append(("memory ceiling", _ceiling(stats["ceiling"])))
    return told


def floors(stats: Mapping[str, Any], needs: Sequence[str]) -> list[tuple[str, str]]:
    """What each floor of memory or disk that a job asked for rests on."""
    told = []
    for text in needs:
        kind, _, asked = text.partition(">=")
        number = comparable(asked).number
        if kind in ("memory", "disk") and number is not None:
            body = stats.get(f"peak_{kind}")
            peak = provision.peak_from(body) if body else None
            told.append((f"{kind} floor", provision.floor_words(number // 10**12, peak)))
    return told


def _peak(body: Mapping[str, Any] | None, option: str) -> str:
    return provision.offered(option, provision.peak_from(body) if body else None)


def _host(host: Mapping[str, Any]) -> str:
    total, lowest, highest = host.get("memory_total"), host.get("lowest", {}), host.get("highest", {})
    free = lowest.get("memory_available")
    parts = ["lowest MemAvailable " + ("not read" if free is None else provision.size(free))]
    parts[0] += f" of {provision.size(total)}" if free is not None and total else ""
    for name, what in (("psi_memory_full", "memory"), ("psi_cpu_some", "CPU"), ("psi_io_full", "I/O")):
        if name in highest:
            parts.append(f"highest {what} pressure {highest[name]:.1f} %")
        else:
            parts.append(f"{what} pressure not read ({host.get('unavailable', {}).get(name, 'no sample')})")
    swap = {kind: highest.get(f"swap_{kind}", 0) for kind in ("zram", "partition", "file")}
    parts += [f"swap on {_SWAP[kind]} {provision.size(used)}" for kind, used in swap.items() if used]
    samples = int(host["samples"])
    gap = f", largest gap {host['largest_gap_s']:.1f} s" if samples > 1 else ""
    return f"{'; '.join(parts)} ({samples} {'sample' if samples == 1 else 'samples'}{gap})"


_SWAP = {"zram": "zram (memory itself)", "partition": "a partition", "file": "a file"}


def _ceiling(ceiling: Mapping[str, Any]) -> str:
    reached = "not told" if ceiling.get("peak") is None else provision.size(ceiling["peak"])
    kills = f"; {ceiling['kills']} killed by the kernel" if ceiling.get("kills") else ""
    reserve = f"reserve {provision.size(ceiling['reserve'])}, {ceiling['reserve_is']}"
    return f"{provision.size(ceiling['limit'])}, peak {reached}{kills} ({reserve}; {ceiling['words']})"
