"""``rc admin``: what an operator does, each act with its reason on record."""

from __future__ import annotations

from tenure.cli.options import Group

COMMAND = Group(
    "admin",
    "What an operator does to devices, to what jobs left behind, and for agents on other hosts.",
    {
        "drain": "take devices out of service; what runs there runs on",
        "resume": "put drained devices back into service",
        "quarantine": "take devices out of service until they are cleared by hand",
        "clear": "end a quarantine by hand",
        "retire": "take devices off the books that no host offers any more",
        "clean": "remove scratch folders that no job needs",
        "token": "make, list and revoke the tokens of agents on other hosts",
    },
)
