"""``--strict``: an exit status of 0 becomes the verdict's (C7).

Loaded only where it is asked for: the rules of verdicts are not among what a plain ``rc run`` may spend its start on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.cli.streaming import cpu_only
from tenure.domain import use
from tenure.errors import TenureError

UNKNOWN = 2


def exit_status(job: Mapping[str, Any]) -> tuple[int, str]:
    """(exit status, why) of a job that is over; ``why`` is empty where there is nothing to say.

    Only a 0 is changed: into 1 where a leased GPU was not used, was used in part or held a context without work, into
    2 where that is not known.
    """
    own = int(job["exit_status"])
    if own != 0:
        return own, ""
    told = job.get("use")
    if told is None and (cpu_only(job) or not job.get("devices")):
        return own, "strict: no GPU was leased, so the command's own exit status stands"
    if told is None:
        return UNKNOWN, _changed(UNKNOWN, "no verdict was recorded")
    try:
        verdict = use.job_verdict_from_dict(told)
    except ValueError as error:
        raise TenureError(
            "damaged_state", f"the verdict of job {job['id']} cannot be read: {error}", do="look at: rc describe"
        ) from error
    if verdict.verdict is use.Verdict.NOT_APPLICABLE:
        return own, "strict: no GPU was leased, so the command's own exit status stands"
    code = use.strict_code(own, verdict)
    return code, _changed(code, f"the verdict is {verdict.label.replace('_', ' ')}") if code != own else ""


def _changed(code: int, why: str) -> str:
    return f"strict: exit status {code} in place of the command's 0, because {why}"
