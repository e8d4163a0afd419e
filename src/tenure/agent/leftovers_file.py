"""``leftovers.json``: what is known of this worker, kept so that an agent which takes over goes on from it.

It is replaced whole. ``covered`` are the attempts that its last look settled: the journal says so too, a moment later,
and an agent that died in between must not ask them about what is found after that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenure.agent import records as r
from tenure.domain.leftovers import Leftover, Maker, Part, Worker
from tenure.durable import write_atomic


@dataclass(frozen=True, slots=True)
class Kept:
    """A worker with what it is known by. ``declared``: the word under which its image was declared, if it was."""

    identity: str
    worker: Worker
    declared: str = ""
    covered: frozenset[r.Key] = frozenset()


def load(path: Path) -> Kept | None:
    """What the file says, None where there is none. Raises ``OSError`` or ``ValueError`` where it cannot be read."""
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    try:
        worker = Worker(
            image_at=float(body["image_at"]),
            image_jobs=tuple(body["image_jobs"]),
            parts={name: Part(p["items"], p["blind"], p["never"]) for name, p in body["parts"].items()},
            looked_at=float(body["looked_at"]),
            unsure=body["unsure"],
            leftovers={(each.part, each.item): each for each in map(_leftover, body["leftovers"])},
            closed=tuple(map(_leftover, body["closed"])),
        )
        covered = frozenset((str(job), int(attempt)) for job, attempt in body["covered"])
        return Kept(str(body["identity"]), worker, str(body["declared"]), covered)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it lacks {error}") from error


def save(path: Path, kept: Kept) -> None:
    """Replaces the file, durably."""
    worker = kept.worker
    body = {
        "v": 1,
        "identity": kept.identity,
        "declared": kept.declared,
        "covered": sorted(kept.covered),
        "image_at": worker.image_at,
        "image_jobs": list(worker.image_jobs),
        "looked_at": worker.looked_at,
        "leftovers": [_body(each) for each in worker.leftovers.values()],
        "closed": [_body(each) for each in worker.closed],
        "unsure": worker.unsure,
        "parts": {
            name: {"items": part.items, "blind": part.blind, "never": part.never} for name, part in worker.parts.items()
        },
    }
    write_atomic(path, json.dumps(body, indent=1).encode())


def _body(each: Leftover) -> dict[str, Any]:
    return {
        "part": each.part,
        "item": each.item,
        "image": each.image,
        "now": each.now,
        "by": _maker_body(each.by),
        "since": each.since,
        "found": each.found,
        "earlier": [_maker_body(maker) for maker in each.earlier],
        "gone": each.gone,
        "gone_by": None if each.gone_by is None else _maker_body(each.gone_by),
        "unseen": each.unseen,
    }


def _leftover(body: Mapping[str, Any]) -> Leftover:
    plain = {name: body[name] for name in ("part", "item", "image", "now", "since", "found", "gone", "unseen")}
    gone_by = None if body["gone_by"] is None else _maker(body["gone_by"])
    return Leftover(**plain, by=_maker(body["by"]), earlier=tuple(map(_maker, body["earlier"])), gone_by=gone_by)


def _maker_body(maker: Maker) -> dict[str, Any]:
    return {"kind": maker.kind, "jobs": list(maker.jobs), "more": maker.more, "why": maker.why}


def _maker(body: Mapping[str, Any]) -> Maker:
    return Maker(str(body["kind"]), tuple(body["jobs"]), int(body["more"]), str(body["why"]))
