"""The controller's settings: what ``embedded.json`` says of it, and a default for everything else."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tenure.controller.stages import LIMIT_BYTES
from tenure.domain.retention import Retention
from tenure.errors import TenureError
from tenure.paths import Layout


@dataclass(frozen=True, slots=True)
class Settings:
    """``stage_limit_bytes``: how large a staged tree may be. ``retention``: how long things are kept."""

    stage_limit_bytes: int = LIMIT_BYTES
    retention: Retention = field(default_factory=Retention)

    @classmethod
    def load(cls, layout: Layout) -> Settings:
        """The settings of this machine; raises ``invalid_configuration`` naming the file and the key at fault."""
        path = layout.root / "embedded.json"
        try:
            body = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return cls()  # there is none; or the agent, which needs more of it, ends and names what is wrong with it
        if not isinstance(body, dict):
            return cls()
        limit, kept = body.get("stage_limit_bytes", LIMIT_BYTES), body.get("retention", {})
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise _bad(layout, f"stage_limit_bytes is {limit!r}, not a number of bytes")
        if not isinstance(kept, dict):
            raise _bad(layout, "retention is no object")
        try:
            return cls(limit, Retention.of(kept))
        except ValueError as error:
            raise _bad(layout, f"retention: {error}") from error


def _bad(layout: Layout, what: str) -> TenureError:
    path = layout.root / "embedded.json"
    return TenureError(
        "invalid_configuration",
        f"{path}: {what}",
        do="correct or remove that key, then: rc up",
        facts={"path": str(path)},
    )
