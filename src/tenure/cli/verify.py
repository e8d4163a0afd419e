"""``rc verify``: what a job really did with its devices, and what that rests on."""

from __future__ import annotations

import sys

from tenure.cli import session, streaming, warned
from tenure.cli.options import Command, Given, Option
from tenure.cli.text import ago, clean, say
from tenure.domain import use as uses
from tenure.domain.names import names
from tenure.errors import TenureError
from tenure.sdk.transport import quote

COMMAND = Command(
    "verify",
    "JOB",
    "Print the verdict of a job's use of its devices, and what it rests on.",
    (Option("-v --verbose", "", "every device by itself, with every instrument and window"),),
    least=1,
    most=1,
    more="Exit status: 0 used; 1 not used, used in part, or a context without work; 2 unknown, or no GPU leased.",
)
UNKNOWN = 2


def main(given: Given) -> int:
    """Exit status 0 used, 1 not used, partial or context idle, 2 unknown, or no verdict to give."""
    job = session.transport().call("GET", f"/v1/jobs/{quote(given.words[0])}")
    use, code = job["use"], UNKNOWN
    lines = ["verdict: unknown", "no verdict was recorded for this job"]
    if use is None and streaming.cpu_only(job):
        lines = ["verdict: not applicable", "no GPU was leased"]
    elif use is None and streaming.not_begun(job):
        lines = ["verdict: not applicable", "nothing of the job was run"]
    elif use is not None:
        try:
            verdict = uses.job_verdict_from_dict(use)
        except ValueError as error:
            raise TenureError(
                "damaged_state", f"the verdict of job {job['id']} cannot be read: {error}", do="look at: rc describe"
            ) from error
        verbose = given.flag("verbose") or given.json
        lines, code = uses.explain(verdict, verbose=verbose, simulated=job["simulated"]), uses.exit_code(verdict)
        lines += [f"trouble: {use['trouble']}"] if use.get("trouble") else []
        lines += [f"{name}: {text}" for name, text in warned.rows(job)]
    if job["state"] != "ended":
        age = f", judged {ago(use['utc'])} ago" if use and use.get("utc") else ""
        lines.append(f"so far: the job is {job['words']}{age}")
    if given.json:
        from json import dumps

        said = {"job": job["id"], "exit": code, "use": use, "lines": lines, "evidence": job["evidence"]}
        sys.stdout.write(dumps({**said, "simulated": job["simulated"], "state": job["state"]}) + "\n")
        return code
    if job["simulated"]:
        lines.insert(1, f"simulated: {names(job['simulated'])} (no GPU is behind any of this)")
    for line in lines:
        say(clean(line))
    if job["evidence"]:
        say(f"samples: {clean(job['evidence'])}")
    return code
