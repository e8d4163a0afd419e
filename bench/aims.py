"""What Tenure is to reach, printed beside what was measured. Nothing here decides whether a run succeeds.

A figure of one machine under one load is no test of a program; an aim says where to look.
"""

from __future__ import annotations

from bench.stats import figure

#: measure, the beginning of the client's name, the aim in words.
AIMS: tuple[tuple[str, str, str], ...] = (
    ("rate", "SDK, 1 client; 4 ", ">= 150, stretch 220"),
    ("rate", "SDK, 8 clients; 4 ", ">= 150, stretch 220"),
    ("command", "rc run", "<= 60"),
    ("cold", "rc run", "<= 2,500"),
    ("ledger", "4 devices", ">= 2,000"),
    ("ledger", "256 devices", ">= 8,000"),
    ("cancel", "SDK", "<= 0.3"),
    ("watch", "8 jobs x 4 processes; standing", "< 0.5"),
    ("watch", "8 jobs x 25 processes; standing", "<= 2"),
)
START_MS, START_SYNCS = 8.0, 3


def aim(measure: str, product: str, client: str, fdatasync_ms: float) -> str:
    """The aim of a row in its own unit; empty where there is none."""
    if product != "tenure":
        return ""
    if measure == "start" and client.startswith("SDK"):
        total = START_MS + START_SYNCS * fdatasync_ms
        return f"<= {figure(total)} ({START_MS:g} + {START_SYNCS} fdatasync)"
    return next((words for key, begin, words in AIMS if key == measure and client.startswith(begin)), "")
