"""A host declared to reboot instead of killing for want of memory: its reserve, judged first, and the ceiling it makes.

The reserve is a floor set by hand, so it is held against the host's own predicted operating point before it is used
(``domain.guard``). What it leaves is the ceiling of all jobs of the host together:

    ceiling = memory of the host - reserve - what others hold

where others hold what is neither available nor the jobs' own. All sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenure.domain.provision import size
from tenure.domain.quantity import comparable

if TYPE_CHECKING:
    from tenure.domain.guard import GuardVerdict

#: A job is not started into less room than this: an interpreter alone takes more.
LEAST_ROOM = 16 << 20
_MIB = 1 << 20
_KEYS = ("ooms", "reserve", "predicted_free", "uncertainty", "ceiling")


@dataclass(frozen=True, slots=True)
class Protection:
    """What a host declares. ``reboots``: it does so instead of killing a process for want of memory.

    ``reserve`` is to stay free of jobs, ``predicted_free`` what the host's configuration predicts to be free in its
    normal running, ``uncertainty`` of that prediction; ``ceiling`` is an upper bound of one job's memory.
    """

    reboots: bool = False
    reserve: int = 0
    predicted_free: int | None = None
    uncertainty: int | None = None
    ceiling: int | None = None

    @property
    def judged(self) -> GuardVerdict | None:
        """Whether the reserve is sound, in MiB; None where there is no reserve."""
        if not self.reserve:
            return None
        from tenure.domain.guard import judge_floor  # exact fractions, which most agents never need

        predicted, spread = (None if n is None else n / _MIB for n in (self.predicted_free, self.uncertainty))
        return judge_floor(self.reserve / _MIB, predicted, spread)

    @property
    def refused(self) -> str:
        """Why the reserve is not used, in words; empty where it may be."""
        judged = self.judged
        if judged is None or judged.verdict != "unsound":
            return ""
        return f"the memory reserve of {size(self.reserve)} is unsound (in MiB: {judged.words})"


@dataclass(frozen=True, slots=True)
class Room:
    """``limit``: what all jobs may hold together; ``others``: what is held beside them."""

    limit: int
    others: int
    words: str


def read(settings: Mapping[str, Any]) -> Protection:
    """The declaration in the agent's settings. Raises ValueError naming the key and what is wrong with it."""
    unknown = sorted(settings.keys() - set(_KEYS))
    if unknown:
        raise ValueError(f"{unknown[0]} is no key of it: there are {', '.join(_KEYS)}")
    ooms = settings.get("ooms", "kills")
    if ooms not in ("kills", "reboots"):
        raise ValueError(f'ooms is {ooms!r}: say "kills" (the kernel ends a process, the default) or "reboots"')
    sizes = {key: _size(key, settings[key]) for key in _KEYS[1:] if key in settings}
    if ooms == "kills":
        if sizes:
            raise ValueError(f'{next(iter(sizes))} is used on a host that reboots: say "ooms": "reboots" as well')
        return Protection()
    if not sizes.get("reserve"):
        raise ValueError('a host with "ooms": "reboots" needs a reserve, such as "8G"')
    return Protection(True, **sizes)


def room(total: int, available: int, held: int, protection: Protection) -> Room:
    """The ceiling of all jobs together. ``held`` is what they hold now and the kernel cannot take back."""
    others = max(0, total - available - held)
    limit = max(0, total - protection.reserve - others)
    words = f"{size(total)} of memory less {size(protection.reserve)} reserve less {size(others)} held by others"
    return Room(limit, others, f"{words} is {size(limit)}")


def breach(limit: int, peak: int | None, kills: int, common: bool, reserve_is: str = "sound") -> str:
    """The reason of an end at the ceiling. A guard that nothing established is the first to be looked at."""
    reached = "peak not told" if peak is None else f"peak {size(peak)}"
    whose = "the ceiling of all jobs of this host together" if common else f"limit {size(limit)}"
    killed = f"{kills} {'process' if kills == 1 else 'processes'} killed by the kernel"
    doubt = "; the reserve is not established: evidence about the guard until it is"
    return f"memory ceiling: {whose}, {reached}, {killed}{doubt if reserve_is == 'not_established' else ''}"


def _size(key: str, value: Any) -> int:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    number = comparable(text).number if isinstance(text, str) else None
    if number is None or number < 0:
        raise ValueError(f'{key} is {value!r}: give bytes, or a size such as "8G"')
    return int(number // 10**12)
