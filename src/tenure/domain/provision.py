"""What a job took, offered as what to ask for the next time; and whether it ended while memory was exhausted.

Every figure names its instrument and what it is worth: a peak that was sampled, or that speaks of one process, is a
lower bound, and a floor that nobody measured is marked so. All sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Added to a measured peak before it is offered, in per cent of it.
MARGIN = 20
#: Below this share of the host's memory available, or at this share of time in which all tasks waited for memory (per
#: cent over 10 s), memory counts as exhausted.
EXHAUSTED_SHARE = 0.02
EXHAUSTED_PRESSURE = 20.0
#: How long before the end a sample still speaks of it, in seconds.
NEAR_S = 10.0
_STEPS = ((1 << 30, 64 << 20), (16 << 30, 1 << 29))


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that was seen. ``lower``: there may have been more. ``note`` says what the figure leaves open."""

    bytes: int
    instrument: str
    lower: bool
    note: str = ""

    @property
    def words(self) -> str:
        """Such as ``412.0 MiB (sampled resident sizes of the tree; a lower bound)``."""
        parts = [self.instrument, "a lower bound" if self.lower else "", self.note]
        return f"{size(self.bytes)} ({'; '.join(filter(None, parts))})"

    def plain(self) -> dict[str, Any]:
        """As it is stored with the outcome."""
        return {"bytes": self.bytes, "instrument": self.instrument, "lower": self.lower, "note": self.note}


def peak_from(body: Mapping[str, Any]) -> Peak | None:
    """The peak that ``plain`` wrote; None where none was measured."""
    found = body.get("bytes")
    if not isinstance(found, int):
        return None
    return Peak(found, str(body.get("instrument", "")), bool(body.get("lower", True)), str(body.get("note", "")))


def memory_peak(
    group: int | None, group_whole: bool, sampled: int | None, processes: int, largest: int | None
) -> Peak | None:
    """A job's peak memory by the best instrument that answered.

    ``group``: its cgroup's own peak (``group_whole``: read when nothing ran any more, and no ceiling was met);
    ``sampled``: the largest sum of resident sizes over at most ``processes`` processes; ``largest``: the kernel's
    figure for its largest process.
    """
    if group is not None:
        return Peak(group, "peak of its cgroup", not group_whole, "file cache included")
    if sampled is not None and sampled >= (largest or 0):
        note = "pages shared between processes count in each" if processes > 1 else ""
        return Peak(sampled, "resident sizes of its tree, sampled", True, note)
    if largest is not None:
        return Peak(largest, "largest process, by the kernel's account", True)
    return None


def offer(peak: Peak) -> str:
    """What to ask for the next time: the peak and a fifth, rounded up to a size one can say, such as ``512M``."""
    wanted = -(-peak.bytes * (100 + MARGIN) // 100)
    step = next((step for below, step in _STEPS if wanted <= below), 1 << 30)
    rounded = max(step, -(-wanted // step) * step)
    return f"{rounded >> 30}G" if rounded % (1 << 30) == 0 else f"{rounded >> 20}M"


def offered(option: str, peak: Peak | None) -> str:
    """The line that offers it: ``next time: --need-mem 512M (peak and 20 %)``, or that nothing was measured."""
    if peak is None:
        return "not measured"
    return f"{peak.words}; next time: {option} {offer(peak)} (the peak and {MARGIN} %)"


def floor_words(asked: int, peak: Peak | None) -> str:
    """What a floor that was asked for rests on."""
    if peak is None:
        return f"{size(asked)} (not measured: nobody has seen what it takes)"
    enough = "covers" if asked >= peak.bytes else "is less than"
    return f"{size(asked)} ({enough} the measured peak of {size(peak.bytes)})"


def exhausted(last: Sequence[Mapping[str, Any]], ended_utc: float, total: int | None, kills: int | None = None) -> str:
    """Whether memory was exhausted at an end that was no success, in words; empty where nothing showed it.

    ``last`` are the samples before the end (``utc`` and ``v``: name -> value), ``kills`` how many processes the kernel
    ended on the host for want of memory meanwhile. The worst sample near the end is the one that is told.
    """
    near = [s for s in last if -2.0 <= ended_utc - float(s["utc"]) <= NEAR_S]
    found = []
    free = [(s["v"]["memory_available"], s) for s in near if "memory_available" in s["v"]]
    if free and total:
        lowest, sample = min(free, key=lambda pair: float(pair[0]))
        if lowest < EXHAUSTED_SHARE * total:
            found.append(f"MemAvailable {size(lowest)} of {size(total)}, {_before(ended_utc, sample)}")
    waits = [(s["v"]["psi_memory_full"], s) for s in near if "psi_memory_full" in s["v"]]
    if waits:
        highest, sample = max(waits, key=lambda pair: float(pair[0]))
        if highest >= EXHAUSTED_PRESSURE:
            found.append(f"all tasks waited for memory {highest:.0f} % of the time, {_before(ended_utc, sample)}")
    if kills:
        found.append(f"the kernel killed {kills} {'process' if kills == 1 else 'processes'} of this host for memory")
    return f"while memory was exhausted ({'; '.join(found)})" if found else ""


def sample_words(sample: Mapping[str, Any], total: int | None) -> str:
    """The figures of one sample that tell of trouble; what was not read is said."""
    values = sample["v"]
    free = values.get("memory_available")
    parts = ["MemAvailable " + ("not read" if free is None else size(free) + (f" of {size(total)}" if total else ""))]
    full = values.get("psi_memory_full")
    parts.append("memory pressure " + ("not read" if full is None else f"{full:.1f} % (full, 10 s)"))
    parts += [f"load {values['load1']:.2f}"] if "load1" in values else []
    return ", ".join(parts)


def before_reboot(sample: Mapping[str, Any], total: int | None, now: float, booted: float | None) -> str:
    """What the last sample says of a reboot after it. ``booted``: the derived bound on when this boot began (UTC)."""
    said = f"the last sample, {now - float(sample['utc']):.0f} s old now, says {sample_words(sample, total)}"
    if booted is None:
        when = "when this boot began is not known"
    elif booted < float(sample["utc"]):
        when = "the boot time derived from uptime lies before that sample and says nothing"
    else:
        gap = booted - float(sample["utc"])
        when = f"this boot began at most {gap:.0f} s after it (derived from uptime, if the wall clock was right)"
    return f"{said}; {when}; a sampler cannot see a reboot coming"


def _before(ended_utc: float, sample: Mapping[str, Any]) -> str:
    return f"{max(0.0, ended_utc - float(sample['utc'])):.0f} s before the end"


def size(count: float) -> str:
    """Bytes as people read them: ``512 B``, ``41.0 MiB``, ``64.0 GiB``."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{int(count)} B"
