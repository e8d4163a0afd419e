"""The OpenAPI description: FastAPI's account of what comes in, and typed models of what goes out.

The models describe; nothing is validated against them while the controller runs, because that would cost every answer
more than making it. Instead the tests hold real answers against them, with no field more and none fewer. This module is
imported when the page is first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema


class View(BaseModel):
    """Every field is always there; a later version may add some."""

    model_config = ConfigDict(extra="forbid")


class ErrorBody(View):
    """What went wrong: a stable code, one sentence, what to do next, and details for programs."""

    code: str
    message: str
    do: str
    facts: dict[str, Any]


class Error(View):
    """The one shape of every error."""

    error: ErrorBody


class AgentView(View):
    """An agent as it last registered: ``registered_at``. ``lost_at``: since when nothing is heard of it, as far as this
    controller knows (none was heard before it came up). UTC seconds."""

    id: str
    host: str
    user: str
    contact: bool
    boot_id: str
    instance: str
    registered_at: float
    lost_at: float | None


class StatusView(View):
    """The controller, at ``at``. ``devices`` counts them by state. ``retention``: seconds that each kind is kept, null
    for ever.

    ``output_failure`` is what a disk refused last, if it does; ``agent_failure`` the error with which the embedded
    agent did not come up, while none is in contact. ``listen`` are the addresses at which other hosts reach it over
    TLS, and ``certificate`` is the fingerprint that they see there."""

    version: str
    wire: int
    pid: int
    user: str
    home: str
    state_folder: str
    started_at: float
    at: float
    mode: str
    agents: list[AgentView]
    devices: dict[str, int]
    simulated_devices: int
    queued: int
    running: int
    ledger_version: int
    ignored_reports: int
    retention: dict[str, float | None]
    output_failure: str | None
    agent_failure: dict[str, Any] | None
    listen: list[str]
    certificate: str | None


class AgentSelf(View):
    """Whom the caller's token is for (``host``, ``token``), and the controller that says so."""

    controller: str
    user: str
    host: str
    token: str
    version: str
    wire: int


class TokenView(View):
    """A token without its secret. ``state``: ``valid``, ``revoked`` or ``expired``. ``agent`` came in with it first."""

    id: str
    role: str
    host: str
    agent: str
    created_at: float
    created_by: str
    expires_at: float | None
    revoked_at: float | None
    revoked_by: str
    addresses: list[str]
    state: str


class TokenRow(TokenView):
    """``connected``: an agent is here with it now."""

    connected: bool


class TokenList(View):
    """Every token that was ever made here, the oldest first."""

    tokens: list[TokenRow]


class NewToken(View):
    """``file`` is the content of the file to be taken to the host: the only copy of the secret there is."""

    token: TokenView
    file: dict[str, Any]


class RevokedToken(View):
    """``links_ended`` counts the links that came with it."""

    token: TokenView
    links_ended: int


class ConditionView(View):
    """What was last seen on a device outside any lease: ``clear``, ``occupied`` or ``unknown``."""

    outcome: str
    detail: str
    by: list[str]


class ContendedView(View):
    """Who else is on a leased device."""

    detail: str
    by: list[str]


class QuarantineView(View):
    """Why a device may not be leased, and since when (UTC seconds)."""

    cause: str
    detail: str
    since: float
    clears_itself: bool


class DeviceView(View):
    """One device. Only ``free`` ones are; ``words`` is the state with its reason; times are UTC seconds."""

    name: str
    uuid: str
    kind: str
    simulated: bool
    host: str
    agent: str
    state: str
    free: bool
    words: str
    since: float
    contact: bool
    token: int
    lease: str | None
    job: str | None
    holder: str | None
    condition: ConditionView
    contended: ContendedView | None
    quarantine: QuarantineView | None
    recoveries: list[float]
    draining: str | None
    labels: dict[str, Any]
    facts: dict[str, Any]
    version: int


class Operated(View):
    """The device after an operator's act; one that was retired is named, and there no longer."""

    device: DeviceView | None
    retired: str | None


class DeviceList(View):
    """Every device at one version of the fleet; ``at`` is UTC seconds."""

    version: int
    at: float
    devices: list[DeviceView]


class ReasonView(View):
    """Whether a device matches, or the first condition that fails; and how it is now."""

    reason: str
    state: str
    words: str


class ExplainView(View):
    """One line for each device."""

    version: int
    select: str
    count: int
    devices: dict[str, ReasonView]


class LeaseView(View):
    """One device lent to one attempt under a fencing token: ``held``, ``ending`` or ``released``."""

    id: str
    device: str
    uuid: str
    token: int
    state: str


class OutcomeView(View):
    """How a job ended; ``stats`` is what its supervisor measured."""

    ending: str
    code: int | None
    signal: int | None
    cause: str
    detail: str
    stats: dict[str, Any]


class SpecView(View):
    """What was asked for."""

    argv: list[str]
    cwd: str | None
    env: dict[str, str]
    device: str | None
    select: str
    count: int
    priority: int
    queue_timeout_s: float | None
    grace_s: float
    label: str
    umask: int | None
    window: dict[str, float]
    max_runtime_s: float | None
    idle_timeout_s: float | None
    idle_signal: str
    needs: list[str]
    keep: bool
    stage: dict[str, Any]
    output_quota_bytes: int | None
    passed: list[str]


class JobView(View):
    """One job. ``position`` and ``reason`` are there while it waits; ``simulated`` names its simulated devices."""

    id: str
    owner: str
    label: str
    state: str
    words: str
    argv: list[str]
    cwd: str | None
    spec: SpecView
    attempt: int
    devices: list[str]
    leases: list[LeaseView]
    simulated: list[str]
    submitted_at: float
    granted_at: float | None
    started_at: float | None
    ended_at: float | None
    pid: int | None
    stop: str | None
    outcome: OutcomeView | None
    exit_status: int | None
    output_bytes: int | None
    use: dict[str, Any] | None
    evidence: str
    notices: list[dict[str, Any]]
    left: dict[str, Any] | None
    position: int | None
    reason: str | None
    key: str | None
    version: int


class LeftoversView(View):
    """What jobs left on an agent's host: ``told`` is its agent's own account, null where it gave none yet."""

    agent: str
    host: str
    contact: bool
    told: dict[str, Any] | None


class Submitted(View):
    """The job that a submission stands for."""

    job: JobView


class JobList(View):
    """Jobs, newest first, at one version of the fleet."""

    version: int
    jobs: list[JobView]


class Line(BaseModel):
    """One line of a job's stream: ``job``, ``output`` (``data`` is base64), ``gap``, ``beat``, ``ended``, ``error``; of
    the output as it is now ``end``. ``cause`` of a gap: disk, quota, not_arrived, let_go,
    unknown; ``held``: bytes here."""

    type: str
    job: JobView | None = None
    offset: int | None = None
    stream: str | None = None
    at: float | None = None
    data: str | None = None
    bytes: int | None = None
    cause: str | None = None
    why: str | None = None
    held: int | None = None
    error: ErrorBody | None = None


class StageView(View):
    """A staged tree: ``bytes`` of its stream where it is here; ``limit_bytes`` is how large one may be."""

    hash: str
    bytes: int | None
    limit_bytes: int


class UploadView(View):
    """How many bytes of an upload have arrived."""

    upload: str
    received: int


class ScratchView(View):
    """One scratch folder on a host: ``bytes`` on its disk, null where that was not told in time; times are UTC."""

    job: str
    attempt: int | None
    path: str
    bytes: int | None
    ended_at: float | None


class LeftView(View):
    """Something that was not removed, and why."""

    path: str
    why: str


class HostScratchView(View):
    """What one agent told: the kept ones, or what was removed and left. ``why`` says why it told nothing."""

    agent: str
    host: str
    answered: bool
    why: str
    kept: list[ScratchView]
    removed: list[ScratchView]
    left: list[LeftView]


class ScratchList(View):
    """Every agent's answer, at ``at`` (UTC)."""

    at: float
    dry_run: bool
    hosts: list[HostScratchView]


class Going(View):
    """What is left behind by a controller that goes."""

    left_running: list[str]
    left_queued: list[str]
    pid: int


NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
OCTETS = "application/octet-stream"
#: (method, path) -> (status, {media type: model or None}, the refusals that may be answered besides the usual).
ANSWERS: Mapping[tuple[str, str], tuple[int, Mapping[str, type[BaseModel] | None], tuple[int, ...]]] = {
    ("get", "/v1/status"): (200, {"application/json": StatusView}, ()),
    ("post", "/v1/shutdown"): (202, {"application/json": Going}, (409,)),
    ("get", "/v1/devices"): (200, {"application/json": DeviceList}, ()),
    ("get", "/v1/devices/{name}"): (200, {"application/json": DeviceView}, (404,)),
    ("post", "/v1/devices/{name}/operate"): (200, {"application/json": Operated}, (403, 404, 409, 507)),
    ("get", "/v1/leftovers/{agent}"): (200, {"application/json": LeftoversView}, ()),
    ("post", "/v1/explain"): (200, {"application/json": ExplainView}, ()),
    ("post", "/v1/jobs"): (201, {"application/json": Submitted, NDJSON: Line}, (404, 409, 507)),
    ("get", "/v1/jobs"): (200, {"application/json": JobList}, ()),
    ("get", "/v1/jobs/{job_id}"): (200, {"application/json": JobView}, (404, 409)),
    ("get", "/v1/jobs/{job_id}/follow"): (200, {NDJSON: Line}, (404, 409)),
    ("get", "/v1/jobs/{job_id}/output"): (200, {NDJSON: Line}, (404, 409)),
    ("post", "/v1/jobs/{job_id}/stop"): (202, {"application/json": JobView}, (404, 409, 507)),
    ("get", "/v1/stages/{tree}"): (200, {"application/json": StageView}, (507,)),
    ("get", "/v1/stages/{tree}/stream"): (200, {OCTETS: None}, ()),
    ("get", "/v1/uploads/{upload}"): (200, {"application/json": UploadView}, ()),
    ("put", "/v1/uploads/{upload}"): (200, {"application/json": UploadView}, (507,)),
    ("post", "/v1/uploads/{upload}/finish"): (200, {"application/json": StageView}, (507,)),
    ("get", "/v1/scratch"): (200, {"application/json": ScratchList}, ()),
    ("post", "/v1/scratch/clean"): (200, {"application/json": ScratchList}, ()),
    ("get", "/v1/events"): (200, {SSE: None}, (409,)),
    ("get", "/v1/agent"): (200, {"application/json": AgentSelf}, ()),
    ("post", "/v1/tokens"): (201, {"application/json": NewToken}, (409, 507)),
    ("get", "/v1/tokens"): (200, {"application/json": TokenList}, ()),
    ("post", "/v1/tokens/{token_id}/revoke"): (200, {"application/json": RevokedToken}, (507,)),
}
_USUAL = (401, 403, 422, 500)
_SENT = (400, 408, 413)
_WORDS = {
    400: "no such request",
    401: "the caller is not who may talk to this controller",
    403: "the caller may not do this",
    404: "there is no such thing",
    408: "the body did not arrive in time",
    409: "the state of things does not allow it",
    413: "the body is too large",
    422: "a field is not acceptable",
    500: "a defect, or a disk that failed",
    507: "a disk is full",
}


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the application."""
    spec = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    models = {model for _, media, _ in ANSWERS.values() for model in media.values() if model is not None} | {Error}
    wanted: list[tuple[type[BaseModel], Any]] = [(m, "serialization") for m in sorted(models, key=lambda m: m.__name__)]
    references, definitions = models_json_schema(wanted, ref_template="#/components/schemas/{model}")
    schemas = spec.setdefault("components", {}).setdefault("schemas", {})
    schemas |= definitions["$defs"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    error = {"application/json": {"schema": references[(Error, "serialization")]}}
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            status, media, refusals = ANSWERS[(method, path)]
            content = {
                kind: {"schema": {"type": "string"} if model is None else references[(model, "serialization")]}
                for kind, model in media.items()
            }
            told = {str(status): {"description": "done" if status < 202 else "accepted", "content": content}}
            for code in sorted({*_USUAL, *refusals, *(_SENT if method in ("post", "put") else ())}):
                told[str(code)] = {"description": _WORDS[code], "content": error}
            operation["responses"] = told
    return spec
