"""When silence means that contact is lost: pure arithmetic on one monotonic clock, the controller's own (A3, I14).

A link that is open and silent counts from the last frame heard on it; one that was closed counts from its end, and
sooner, because an agent that lives dials again at once. Time in which the controller itself did not look (it was
stopped, starved or asleep) counts against nobody: it heard nobody because it did not listen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Nothing heard for so long on an open link, and so long after a link was closed, in seconds.
SILENT_S, CLOSED_S = 15.0, 1.5
#: How often it is looked, and how late a look may be before the controller was away.
PERIOD_S, LATE_S = 0.25, 1.0


@dataclass(frozen=True, slots=True)
class ContactRule:
    """The limits, in seconds; see the module's own constants for what each means."""

    silent_s: float = SILENT_S
    closed_s: float = CLOSED_S
    period_s: float = PERIOD_S
    late_s: float = LATE_S

    def away(self, looked: float, now: float) -> float:
        """How long the controller did not listen between two looks; 0 where the look was in time."""
        late = now - looked - self.period_s
        return late if late > self.late_s else 0.0

    def silent(self, heard: Mapping[str, float], now: float) -> dict[str, float]:
        """The agents whose open link has been silent for too long, each with how long (last heard -> now)."""
        return {agent: now - at for agent, at in heard.items() if now - at > self.silent_s}

    def closed(self, ended: Mapping[str, float], now: float) -> dict[str, float]:
        """The agents that did not dial again in time after their link was closed, each with how long ago that was."""
        return {agent: now - at for agent, at in ended.items() if now - at > self.closed_s}
