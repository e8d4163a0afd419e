"""Jobs: submit, look, stop."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field, field_validator

from tenure.controller.auth import Caller, Reader
from tenure.controller.follow import NDJSON, follow_job, output_now
from tenure.controller.replies import Stream, reply
from tenure.controller.routes import Service
from tenure.controller.service import Controller
from tenure.controller.views import job_view
from tenure.domain import commands as cmd
from tenure.domain import requirement as requirements
from tenure.domain import selector as selectors
from tenure.domain.job import Job, JobSpec
from tenure.domain.specs import spec_to
from tenure.domain.stage import checked_stage
from tenure.errors import TenureError

router = APIRouter(prefix="/v1", tags=["jobs"])

_ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_job_id() -> str:
    """A fresh id: ``j`` and ten digits of base 32 (50 bits), without letters that look like digits."""
    bits = secrets.randbits(50)
    return "j" + "".join(_ID_ALPHABET[bits >> shift & 31] for shift in range(0, 50, 5))


def canonical_selector(text: str) -> str:
    """A selector's canonical text; raises ``invalid_selector`` with the place where it breaks."""
    try:
        return selectors.parse(text).canonical
    except selectors.SelectorError as error:
        raise TenureError(
            "invalid_selector",
            str(error),
            do="for example: --select 'vram>=40G,class=train'",
            facts={"select": text[:200]},
        ) from error


def canonical_needs(texts: list[str]) -> tuple[str, ...]:
    """The canonical texts of requirements; raises ``invalid_request`` with the place where one breaks."""
    try:
        return requirements.canonical(texts)
    except requirements.RequirementError as error:
        raise TenureError(
            "invalid_request", str(error), do=f"for example: --need '{error.example}'", facts={"needs": texts[:20]}
        ) from error


class SubmitBody(BaseModel):
    """A job to run. ``key`` makes the submission idempotent: the same key and body is the same job."""

    model_config = ConfigDict(extra="forbid")

    argv: list[str] = Field(min_length=1, max_length=10_000)
    cwd: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    device: str | None = None
    select: str = ""
    count: int = Field(1, ge=1, le=1024)
    priority: int = Field(0, ge=-10, le=10)
    queue_timeout_s: float | None = Field(None, ge=0, le=10 * 365 * 86_400, allow_inf_nan=False)
    grace_s: float = Field(10.0, ge=0, le=3_600, allow_inf_nan=False)
    label: str = Field("", max_length=200)
    umask: int | None = Field(None, ge=0, le=0o777)
    window: dict[str, Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]] = Field(default_factory=dict)
    max_runtime_s: float | None = Field(None, ge=0, le=10 * 365 * 86_400, allow_inf_nan=False)
    idle_timeout_s: float | None = Field(None, ge=0, le=10 * 365 * 86_400, allow_inf_nan=False)
    idle_signal: str = Field("work", pattern="^(work|output)$")
    needs: list[Annotated[str, Field(min_length=1, max_length=500)]] = Field(default_factory=list, max_length=200)
    keep: bool = False
    stage: dict[str, Any] = Field(default_factory=dict)
    output_quota_bytes: int | None = Field(None, ge=1, le=1 << 62)
    passed: list[str] = Field(default_factory=list, max_length=10_000)
    key: str | None = Field(None, min_length=1, max_length=200)
    wait: bool = True

    @field_validator("argv")
    @classmethod
    def _no_nul(cls, argv: list[str]) -> list[str]:
        if not argv[0] or any("\0" in word for word in argv):
            raise ValueError("a command has a name, and no word of it holds a NUL")
        return argv

    @field_validator("env")
    @classmethod
    def _names(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(f"{name[:40]!r} cannot be the name of an environment variable")
        return env

    @field_validator("key")
    @classmethod
    def _text(cls, key: str | None) -> str | None:
        if key is not None and any("\ud800" <= char <= "\udfff" for char in key):
            raise ValueError("a key is text that UTF-8 can hold")
        return key

    @field_validator("window")
    @classmethod
    def _window(cls, window: dict[str, float]) -> dict[str, float]:
        unknown = set(window) - {"grace_s", "span_s", "samples", "period_s"}
        if unknown:
            raise ValueError(f"a window has grace_s, span_s, samples and period_s, not {sorted(unknown)[0][:40]!r}")
        return window

    @field_validator("stage")
    @classmethod
    def _stage(cls, stage: dict[str, Any]) -> dict[str, Any]:
        return checked_stage(stage)

    @field_validator("cwd")
    @classmethod
    def _absolute(cls, cwd: str | None) -> str | None:
        if cwd is not None and (not cwd.startswith("/") or "\0" in cwd):
            raise ValueError("the working directory is an absolute path")
        return cwd

    def spec(self) -> JobSpec:
        """The specification to be run."""
        return JobSpec(
            argv=tuple(self.argv),
            cwd=self.cwd,
            env=self.env,
            device=self.device,
            select=canonical_selector(self.select),
            count=self.count,
            priority=self.priority,
            queue_timeout_s=self.queue_timeout_s,
            grace_s=self.grace_s,
            label=self.label,
            umask=self.umask,
            window=self.window,
            max_runtime_s=self.max_runtime_s,
            idle_timeout_s=self.idle_timeout_s,
            idle_signal=self.idle_signal,
            needs=canonical_needs(self.needs),
            keep=self.keep,
            stage=self.stage,
            output_quota_bytes=self.output_quota_bytes,
            passed=tuple(sorted(set(self.passed) & set(self.env))),
        )


Offset = Annotated[int, Query(ge=0, le=1 << 63, description="bytes of the whole output, both streams")]
Since = Annotated[
    float | None,
    Query(ge=0, allow_inf_nan=False, description="begin with the first byte read at or after this time, UTC seconds"),
]
Tagged = Annotated[str, Query(pattern="^(both|stdout|stderr)$", description="which stream's bytes are wanted")]


@router.post("/jobs", status_code=201)
async def submit(body: SubmitBody, caller: Caller, service: Service, follow: bool = False) -> Response:
    """Accepts a job. With ``follow`` the answer is a stream of its output that ends with its record."""
    spec = body.spec()
    await _staged(service, spec, caller.name, body.key)
    digest = hashlib.sha256(json.dumps(spec_to(spec), sort_keys=True).encode()).hexdigest()
    result = await service.decide(cmd.Submit(new_job_id(), caller.name, spec, body.key, digest, body.wait))
    assert result.job is not None
    if follow:
        return Stream(follow_job(service, result.job, 0), NDJSON, 201)
    job = await service.job(result.job)
    return reply({"job": _view(service, job)}, 201)


def _view(service: Controller, job: Job) -> dict[str, Any]:
    return job_view(service.state, job, service.leases(job), service.left.of_job(job.id))


@router.get("/jobs")
async def list_jobs(
    caller: Reader,
    service: Service,
    state: Annotated[str, Query(pattern="^(|open|queued|starting|running|stopping|ended)$")] = "",
    owner: Annotated[str, Query(max_length=200)] = "",
    device: Annotated[str, Query(max_length=200)] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    before: Annotated[float | None, Query(allow_inf_nan=False)] = None,
) -> Response:
    """Jobs, newest first; ``before`` (UTC seconds of submission) pages on."""
    found = await asyncio.to_thread(
        lambda: service.ledger.jobs(state=state, owner=owner, device=device, limit=limit, before=before)
    )
    await service.writer.settled()
    shown = [_view(service, service.state.jobs.get(job.id, job)) for job in found]
    return reply({"version": service.state.version, "jobs": shown})


async def _staged(service: Controller, spec: JobSpec, owner: str, key: str | None) -> None:
    """Refuses a job whose tree is not here, unless it is one that was accepted before and may have used it up."""
    tree = spec.stage.get("hash")
    if tree is None or await asyncio.to_thread(service.stages.size, tree) is not None:
        return
    if key is not None and await asyncio.to_thread(service.ledger.key_lookup, owner, key) is not None:
        return
    raise TenureError(
        "stage_failed", f"the tree {tree} is not here (any more)", do="send it again", facts={"hash": tree}
    )


@router.get("/jobs/{job_id}")
async def show_job(job_id: str, caller: Reader, service: Service) -> Response:
    """One job, by its id or an unambiguous beginning of it."""
    return reply(_view(service, await service.job(job_id)))


@router.get("/jobs/{job_id}/follow")
async def follow(
    job_id: str,
    caller: Reader,
    service: Service,
    offset: Offset = 0,
    stream: Tagged = "both",
    since: Since = None,
) -> Response:
    """The job's output from ``offset`` on and every change of its state, until it is over."""
    job = await service.job(job_id)
    return Stream(follow_job(service, job.id, offset, stream=stream, since=since), NDJSON)


@router.get("/jobs/{job_id}/output")
async def output(
    job_id: str,
    caller: Reader,
    service: Service,
    offset: Offset = 0,
    stream: Tagged = "both",
    since: Since = None,
    follow: bool = False,
) -> Response:
    """The output that is here now, from ``offset`` on, after the job's record; with ``follow`` what comes too."""
    job = await service.job(job_id)
    lines = follow_job if follow else output_now
    return Stream(lines(service, job.id, offset, stream=stream, since=since), NDJSON)


class StopBody(BaseModel):
    """Why a job is to end."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field("", max_length=500)


@router.post("/jobs/{job_id}/stop", status_code=202)
async def stop(job_id: str, body: StopBody, caller: Caller, service: Service) -> Response:
    """Ends a job: at once where it waits; TERM, its grace, then KILL for the whole tree where it runs."""
    job = await service.job(job_id)
    if job.owner != caller.name and not caller.is_admin:
        raise TenureError("not_permitted", f"job {job.id} belongs to {job.owner}", do="ask its owner or an admin")
    await service.execute(cmd.Cancel(job.id, caller.name, body.reason))
    return reply(_view(service, await service.job(job.id)), 202)
