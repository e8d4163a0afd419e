"""How an interrupted job is named. Identities are compared for equality only; one that is not known names nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a host says it is: boot id, PID-namespace identity, the agent's own instance. ``None`` or empty: unknown."""

    boot: str | None
    namespace: str | None
    agent: str | None


def name_end(before: Identity, after: Identity, supervisor_alive: bool | None) -> str:
    """What became of a job that was running when its agent was last heard. ``supervisor_alive`` is ``None`` unseen.

    ``host_rebooted`` (the boot id changed: whatever seemed alive is another process), ``running`` (its supervisor is
    alive: nothing ended), ``worker_restarted`` (same boot, another PID namespace), ``no_contact`` (nothing is known of
    the job: the host has not said who it is, or nobody saw whether the supervisor lives), else
    ``lost_cause_not_established``: the processes are gone and nothing tells why.
    """
    if before.boot and after.boot and before.boot != after.boot:
        return "host_rebooted"
    if supervisor_alive:
        return "running"
    same_boot = bool(before.boot) and before.boot == after.boot
    if same_boot and before.namespace and after.namespace and before.namespace != after.namespace:
        return "worker_restarted"
    return "no_contact" if supervisor_alive is None else "lost_cause_not_established"
