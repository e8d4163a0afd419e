"""Warnings about a job's use of its GPUs, as a command that follows the job shows them: each once, when it is made.

Loaded only where there is one. What was made before the command began to follow is on record, and is only named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.cli.text import ago, note


def announced(job: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The announcements on a job's record, in the order in which they were made."""
    return list((job.get("use") or {}).get("announcements") or ())


def kinds(job: Mapping[str, Any]) -> set[str]:
    """Which kinds of announcement are on record."""
    return {str(one.get("kind")) for one in announced(job)}


def tell(job: Mapping[str, Any], said: set[str]) -> None:
    """Shows what is not among ``said`` yet, with what to do now."""
    for one in announced(job):
        kind = str(one.get("kind"))
        if kind not in said:
            note(f"{_head(kind, job)}: {one.get('words')}")
            note(str(one.get("procedure")))


def point(job: Mapping[str, Any]) -> None:
    """Says that something is on record, and where to read it; does not say it again."""
    found = " and ".join(sorted(kinds(job)))
    note(f"on record of this job, about its use of GPUs: {found}; read it with: rc verify {job['id']}")


def rows(job: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(heading, text) of every announcement, for the pages that show a job's record."""
    said: list[tuple[str, str]] = []
    for one in announced(job):
        said.append((_head(str(one.get("kind")), job), f"{_when(one, job)}{one.get('words')}"))
        said.append(("procedure", str(one.get("procedure"))))
    return said


def _head(kind: str, job: Mapping[str, Any]) -> str:
    return f"{kind} (simulated)" if job.get("simulated") else kind


def _when(one: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    devices = (job.get("use") or {}).get("devices") or ()
    starts = [device["started_at"] for device in devices if "started_at" in device]
    parts = [f"{ago(one['utc'])} ago"] if one.get("utc") else []
    if starts and isinstance(one.get("at"), int | float):
        parts.append(f"{one['at'] - min(starts):.0f} s after the start")
    return f"{', '.join(parts)}: " if parts else ""
