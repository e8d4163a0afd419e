"""Leftovers in words: one thing on a line, many things in a phrase. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tenure.domain.leftovers import Leftover, Worker, left_by

#: Names that a phrase gives before it counts the rest.
NAMED = 3
#: Leftovers, jobs and reasons that are told of a worker; the whole list stays in the host's file.
MAX_TOLD = 100

_KINDS = (("cuda", "CUDA toolkit"), ("tools", "tool"), ("packages", "package"), ("mounts", "mount"))


def kind_of(part: str) -> str:
    """The kind of thing a part holds: ``cuda``, ``tools``, ``packages`` or ``mounts``."""
    return part.partition(":")[0]


def thing(each: Leftover, versions: Mapping[str, str]) -> str:
    """What it is: ``nvcc 12.4 (/usr/local/bin/nvcc)``, ``CUDA toolkit /opt/cuda (partial: nvcc; no headers)``."""
    what = each.now if each.now is not None else each.image or ""
    name = each.item.rpartition("/")[2] or each.item
    match kind_of(each.part):
        case "tools":
            version = versions.get(each.item, "") if each.now is not None else ""
            text = f"{name} {version}".strip() + f" ({each.item})"
        case "cuda":
            text = f"CUDA toolkit {each.item} ({toolkit(what)})"
        case "packages":
            text = f"{name} {what}"
        case _:
            text = f"{each.item} ({what})"
    return text if each.how == "added" else f"{each.how}: {text}"


def toolkit(identity: str) -> str:
    """A toolkit's parts in words: whole, partial with what is missing, or a link to another."""
    if identity.startswith("->"):
        return f"a link to {identity[2:].strip()}"
    there, _, missing = identity.partition(";")
    if not missing:
        return "whole: " + there.replace(",", ", ")
    absent = f"no {missing.replace(',', ', no ')}"
    return f"partial: {there.replace(',', ', ')}; {absent}" if there else f"a folder and nothing of it: {absent}"


def phrase(found: Sequence[Leftover], versions: Mapping[str, str]) -> str:
    """Many in a phrase: toolkits and tools by name as far as there is room, the rest by number."""
    pieces: list[str] = []
    for kind, one in _KINDS:
        of_kind = sorted(
            (each for each in found if kind_of(each.part) == kind), key=lambda e: (e.item not in versions, e.item)
        )
        room = 1 if kind in ("packages", "mounts") else NAMED
        if len(of_kind) <= room:
            pieces += [thing(each, versions) for each in of_kind]
        elif kind in ("packages", "mounts"):
            pieces.append(f"{len(of_kind)} {one}s")
        else:
            pieces += [thing(each, versions) for each in of_kind[:room]]
            rest = len(of_kind) - room
            pieces.append(f"{rest} more {one}{'s' if rest > 1 else ''}")
    return ", ".join(pieces)


def left_words(worker: Worker, job: str, versions: Mapping[str, str]) -> str:
    """What a job left, for its record; empty where nothing is known to be left of it."""
    found = left_by(worker, job)
    sure = [each for each in found if each.by.kind == "job" and each.by.jobs == (job,)]
    unsure = [each for each in found if each not in sure]
    parts = [f"left: {phrase(sure, versions)}"] if sure else []
    if unsure:
        others = sorted({other for each in unsure for other in each.jobs if other != job})
        beside = ", ".join(others[:NAMED]) + (f" and {len(others) - NAMED} more" if len(others) > NAMED else "")
        parts.append(f"left by it or by {beside}: {phrase(unsure, versions)}")
    return "; ".join(parts)


def start_words(found: Sequence[Leftover], versions: Mapping[str, str], pending: Sequence[str]) -> str:
    """What was there when a job started that no image had; empty where nothing was known to be.

    ``pending`` are jobs after which nobody had looked yet. Of them alone nothing is said: where one job follows the
    other that is so for each of them.
    """
    if not found:
        return ""
    makers: dict[str, list[Leftover]] = {}
    for each in found:
        makers.setdefault(each.by.words, []).append(each)
    told = [f"{phrase(group, versions)} ({_from(words)})" for words, group in list(makers.items())[:NAMED]]
    rest = len(makers) - NAMED
    more = f"; and of {rest} more" if rest > 0 else ""
    count = f"{len(found)} leftover{'s' if len(found) > 1 else ''}"
    parts = [f"{count} on this worker at its start, where it differs from its image: {'; '.join(told)}{more}"]
    if pending:
        named = ", ".join(pending[:NAMED]) + (f" and {len(pending) - NAMED} more" if len(pending) > NAMED else "")
        parts.append(f"what {named} left was not looked at yet")
    return "; ".join(parts)


def _from(words: str) -> str:
    return words if words.startswith(("outside", "unknown")) else f"from {words}"


def body_of(each: Leftover, versions: Mapping[str, str]) -> dict[str, Any]:
    """One leftover as plain values, with its words."""
    return {
        "part": each.part,
        "item": each.item,
        "how": each.how,
        "words": thing(each, versions),
        "image": each.image,
        "now": each.now,
        "by": {"kind": each.by.kind, "jobs": list(each.by.jobs), "more": each.by.more, "words": each.by.words},
        "earlier": [maker.words for maker in each.earlier],
        "since": each.since,
        "found": each.found,
        "gone": each.gone,
        "unseen": each.unseen,
    }


def told(worker: Worker, versions: Mapping[str, str], file: str) -> dict[str, Any]:
    """What the controller is told of a worker: capped, with how much more there is, and the file that has all."""
    found = sorted(worker.leftovers.values(), key=lambda e: (_rank(e.part), e.item not in versions, e.item))
    jobs = list(dict.fromkeys(job for each in sorted(found, key=lambda e: -e.found) for job in each.jobs))
    left = {
        job: {"words": left_words(worker, job, versions), "count": len(left_by(worker, job))} for job in jobs[:MAX_TOLD]
    }
    unsure = [
        {"part": part, "under": prefix, "why": why}
        for part, prefixes in worker.unsure.items()
        for prefix, why in prefixes.items()
    ]
    unread = [
        {"part": name, "under": prefix, "why": why}
        for name, part in worker.parts.items()
        for prefix, why in part.blind.items()
    ]
    return {
        "image": {
            "at": worker.image_at,
            "jobs_before": list(worker.image_jobs)[:MAX_TOLD],
            "counts": image_counts(worker),
        },
        "looked_at": worker.looked_at,
        "count": len(found),
        "leftovers": [body_of(each, versions) for each in found[:MAX_TOLD]],
        "and_more": max(0, len(found) - MAX_TOLD),
        "jobs": left,
        "gone": [body_of(each, versions) for each in worker.closed[-NAMED * 4 :]],
        "unsure": unsure[:MAX_TOLD],
        "unread": unread[:MAX_TOLD],
        "file": file,
    }


def image_counts(worker: Worker) -> dict[str, int]:
    """How many things of each kind the image has."""
    counts: dict[str, int] = {}
    for name, part in worker.parts.items():
        counts[kind_of(name)] = counts.get(kind_of(name), 0) + len(part.items)
    for each in worker.leftovers.values():  # what was added is not the image's, and what was removed is
        counts[kind_of(each.part)] += {"added": -1, "removed": 1}.get(each.how, 0)
    return counts


def _rank(part: str) -> int:
    kinds: Iterable[str] = (kind for kind, _ in _KINDS)
    return next((place for place, kind in enumerate(kinds) if kind == kind_of(part)), len(_KINDS))
