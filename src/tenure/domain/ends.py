"""How an interrupted job is named. Identities are compared for equality only; one that is not known names nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a host says it is: boot id, PID-namespace identity, the agent's own instance. ``None``: not known."""

    boot: str | None
    namespace: str | None
    agent: str | None


def name_end(before: Identity, after: Identity, supervisor_alive: bool | None) -> str:
    """What became of a job that was running when its agent was last heard.

    ``running`` (its supervisor is alive: nothing ended), ``host_rebooted`` (the boot id changed), ``worker_restarted``
    (same boot, another PID namespace), ``no_contact`` (the host has not said who it is), else
    ``lost_cause_not_established``: the processes are gone and nothing tells why.
    """
    if after.boot is None and supervisor_alive is None:
        return "no_contact"
    if supervisor_alive:
        return "running"
    if before.boot is not None and after.boot is not None and before.boot != after.boot:
        return "host_rebooted"
    same_boot = before.boot is not None and before.boot == after.boot
    if same_boot and None not in (before.namespace, after.namespace) and before.namespace != after.namespace:
        return "worker_restarted"
    return "lost_cause_not_established"
