"""What a supervisor is told of an attempt: the command, where, with which environment, how long it may take to end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.agent import environment
from tenure.agent import records as r
from tenure.domain.job import JobSpec
from tenure.domain.stage import TREE

if TYPE_CHECKING:
    from tenure.agent.shell import Shell


def output_quota(shell: Shell, attempt: r.Attempt) -> int:
    """Bytes of an attempt's output that are stored: the host's bound, or the job's own where that is lower."""
    own = attempt.spec.output_quota_bytes if attempt.spec is not None else None
    return min(shell.options.output_quota_bytes, own or shell.options.output_quota_bytes)


def spec_of(shell: Shell, attempt: r.Attempt, scratch: Path) -> dict[str, Any]:
    """The content of spec.json. Without a working directory of its own the command runs in its scratch, or in the tree
    that is staged there.

    The bounds are in it for a later agent: a default that is changed while a job runs is one for jobs that start later.
    """
    assert attempt.spec is not None, "an attempt that was declined is never launched"
    spec = attempt.spec
    named = []
    for grant in attempt.grants:
        device = shell.devices.by_uuid.get(grant.uuid)
        kind = device.found.kind if device is not None else ""
        named.append((grant.device, grant.uuid, kind, grant.lease, grant.token))
    env = environment.job_environment(
        _given(shell, spec),
        job=attempt.job,
        attempt=attempt.attempt,
        devices=named,
        scratch=str(scratch),
        controller=shell.reach.shown,
        scenario=shell.scenario,
    )
    said: dict[str, Any] = {
        "v": 1,
        "job": attempt.job,
        "attempt": attempt.attempt,
        "argv": list(spec.argv),
        "cwd": spec.cwd or str(_begin_in(spec, scratch)),
        "env": env,
        "grace_s": spec.grace_s,
        "umask": spec.umask,
        "control": shell.control.kind,
        "cgroup_parent": shell.control.parent,
        "nudge": str(shell.layout.nudge_sock),
        "output_quota": output_quota(shell, attempt),
    }
    if spec.max_runtime_s or spec.idle_timeout_s or shell.options.bounds:
        from tenure.agent.bounds import limits_at_start  # only where there are any

        said["bounds"] = limits_at_start(shell, attempt)
    return said


def _begin_in(spec: JobSpec, scratch: Path) -> Path:
    return scratch / TREE / str(spec.stage.get("cwd", "")) if spec.stage else scratch


def _given(shell: Shell, spec: JobSpec) -> dict[str, str]:
    """The variables that came with a job, without those that mean something on its caller's machine alone where that is
    another one. Here the local socket says that it is this one."""
    apart = frozenset() if shell.reach.local else frozenset(spec.passed)
    return {name: value for name, value in spec.env.items() if name not in apart}
