"""What lies between agents and controller: frames under way, cuts in either direction, links that break.

It is worse than any TCP: a frame may arrive late, in any order, again, and even after the link it was sent on is
gone. What the system promises must hold all the same, because every instruction and report carries its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tenure.domain import commands as cmd
from tenure.domain.instructions import Instruction

#: An agent that hears nothing for so long (pings are answered even when there is nothing to say) gives its link up.
AGENT_SILENCE_S = 20.0


@dataclass
class SimLink:
    """One agent's link as both ends see it: last heard by the controller, last answered to the agent (monotonic)."""

    heard_at: float
    answered_at: float


@dataclass
class SimNetwork:
    """``to_agent``: (host, instruction); ``to_controller``: (host, report, seq, which agent of that host sent it);
    ``acks``: (host, seq, for which agent of it). An acknowledgement is answered on the link that the report came by,
    so that it never reaches a later agent, which may number its reports anew.

    ``cut_up`` and ``cut_down`` name the hosts whose frames to the controller, or whose frames from it, do not pass:
    neither end notices before its own patience is over. ``links`` are those open at the controller, by host;
    ``closed_at`` when a link ended that was not replaced since.
    """

    to_agent: list[tuple[str, Instruction]] = field(default_factory=list)
    to_controller: list[tuple[str, cmd.Command, int, int]] = field(default_factory=list)
    acks: list[tuple[str, int, int]] = field(default_factory=list)
    cut_up: set[str] = field(default_factory=set)
    cut_down: set[str] = field(default_factory=set)
    links: dict[str, SimLink] = field(default_factory=dict)
    closed_at: dict[str, float] = field(default_factory=dict)

    def passes(self, host: str) -> bool:
        """Whether a new connection can be made: that takes both directions."""
        return host not in self.cut_up and host not in self.cut_down

    def up(self, host: str, now: float) -> None:
        """A link was made."""
        self.links[host] = SimLink(now, now)
        self.closed_at.pop(host, None)

    def hung_up(self, host: str, now: float) -> None:
        """The agent's end closed. The controller learns of it unless the way up is cut; then it is silence."""
        if host in self.links and host not in self.cut_up:
            del self.links[host]
            self.closed_at[host] = now

    def beat(self, host: str, now: float) -> None:
        """The beats and pings of a time in which both ends lived: each direction counts for itself."""
        link = self.links.get(host)
        if link is not None:
            if host not in self.cut_up:
                link.heard_at = now
            if self.passes(host):
                link.answered_at = now

    def gives_up(self, host: str, now: float) -> bool:
        """Whether the agent has heard nothing for too long on its link."""
        link = self.links.get(host)
        return link is None or now - link.answered_at > AGENT_SILENCE_S

    def excuse(self, seconds: float) -> None:
        """The controller was away for so long: nobody's silence in that time counts."""
        for link in self.links.values():
            link.heard_at += seconds
        for host in self.closed_at:
            self.closed_at[host] += seconds

    def lose_frames(self) -> None:
        """The controller's end died: what it had queued and what was on its way to its sockets' answers is gone."""
        self.to_agent.clear()
        self.acks.clear()
        self.links.clear()
        self.closed_at.clear()
