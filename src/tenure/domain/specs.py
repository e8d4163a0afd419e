"""Records to plain JSON-able values and back: the shapes in which jobs and outcomes are stored and sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tenure.domain.device import Condition
from tenure.domain.job import Ending, JobSpec, Outcome

_SPEC_FIELDS = tuple(f.name for f in dataclasses.fields(JobSpec))


def spec_to(spec: JobSpec) -> dict[str, Any]:
    """A job's specification as plain values."""
    body = {name: getattr(spec, name) for name in _SPEC_FIELDS}
    mappings = {"env": dict(spec.env), "window": dict(spec.window), "stage": dict(spec.stage)}
    lists = {"argv": list(spec.argv), "needs": list(spec.needs), "passed": list(spec.passed)}
    return {**body, **lists, **mappings}


def spec_from(body: Mapping[str, Any]) -> JobSpec:
    """The specification that ``spec_to`` wrote; fields of a newer version are ignored."""
    known = {name: body[name] for name in _SPEC_FIELDS if name in body}
    tuples = {name: tuple(body.get(name, ())) for name in ("argv", "needs", "passed")}
    return JobSpec(**{**known, **tuples})


def outcome_to(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain values."""
    return {
        "ending": str(outcome.ending),
        "code": outcome.code,
        "signal": outcome.signal,
        "cause": outcome.cause,
        "detail": outcome.detail,
        "stats": dict(outcome.stats),
    }


def outcome_from(body: Mapping[str, Any]) -> Outcome:
    """The outcome that ``outcome_to`` wrote."""
    return Outcome(
        ending=Ending(body["ending"]),
        code=body.get("code"),
        signal=body.get("signal"),
        cause=body.get("cause", ""),
        detail=body.get("detail", ""),
        stats=body.get("stats") or {},
    )


def condition_to(condition: Condition) -> dict[str, Any]:
    """A condition of a device as plain values."""
    return {"outcome": condition.outcome, "detail": condition.detail, "by": list(condition.by)}


def condition_from(body: Mapping[str, Any]) -> Condition:
    """The condition that ``condition_to`` wrote."""
    return Condition(str(body["outcome"]), str(body.get("detail", "")), tuple(body.get("by", ())))
