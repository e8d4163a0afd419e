"""Ends of interrupted jobs: a table over every combination of identities."""

from __future__ import annotations

import itertools

import pytest

from tenure.domain.ends import Identity, name_end

SAME, CHANGED, UNKNOWN = "same", "changed", "unknown"
PAIRS: dict[str, list[tuple[str | None, str | None]]] = {
    SAME: [("x", "x")],
    CHANGED: [("x", "y")],
    UNKNOWN: [(None, None), ("x", None), (None, "x"), ("", "x"), ("x", ""), ("", "")],
}

# (boot, namespace, supervisor alive) -> name; whichever agent reports.
TABLE = {
    (CHANGED, SAME, True): "host_rebooted",  # no process outlives a boot: what seems alive is another one
    (CHANGED, SAME, False): "host_rebooted",
    (CHANGED, SAME, None): "host_rebooted",
    (CHANGED, CHANGED, True): "host_rebooted",
    (CHANGED, CHANGED, False): "host_rebooted",
    (CHANGED, CHANGED, None): "host_rebooted",
    (CHANGED, UNKNOWN, True): "host_rebooted",
    (CHANGED, UNKNOWN, False): "host_rebooted",
    (CHANGED, UNKNOWN, None): "host_rebooted",
    (SAME, SAME, True): "running",
    (SAME, SAME, False): "lost_cause_not_established",
    (SAME, SAME, None): "no_contact",
    (SAME, CHANGED, True): "running",
    (SAME, CHANGED, False): "worker_restarted",
    (SAME, CHANGED, None): "worker_restarted",
    (SAME, UNKNOWN, True): "running",
    (SAME, UNKNOWN, False): "lost_cause_not_established",
    (SAME, UNKNOWN, None): "no_contact",
    (UNKNOWN, SAME, True): "running",
    (UNKNOWN, SAME, False): "lost_cause_not_established",
    (UNKNOWN, SAME, None): "no_contact",
    (UNKNOWN, CHANGED, True): "running",
    (UNKNOWN, CHANGED, False): "lost_cause_not_established",  # another namespace of who knows which boot
    (UNKNOWN, CHANGED, None): "no_contact",
    (UNKNOWN, UNKNOWN, True): "running",
    (UNKNOWN, UNKNOWN, False): "lost_cause_not_established",
    (UNKNOWN, UNKNOWN, None): "no_contact",
}


@pytest.mark.parametrize("key", list(itertools.product(PAIRS, PAIRS, (True, False, None))))
def test_every_combination(key: tuple[str, str, bool | None]) -> None:
    boot, namespace, alive = key
    for boots, spaces, kind in itertools.product(PAIRS[boot], PAIRS[namespace], PAIRS):
        for agents in PAIRS[kind]:
            before, after = (Identity(boots[n], spaces[n], agents[n]) for n in (0, 1))
            assert name_end(before, after, alive) == TABLE[key]
