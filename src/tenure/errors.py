"""One root for every failure Tenure can name, with one code from the store to the shell.

The domain returns a ``Refusal`` (it knows nobody); everything above raises a ``TenureError``. Both carry the same
code, and the table below gives each code its exit status (sysexits.h where one fits, 124 as timeout(1) does) and its
HTTP status. A message says what happened; ``do`` says what to type or change next; ``facts`` are for programs.

Every command imports this file, so it leaves out what it can: dataclasses and typing alone would take as long as a
whole ``rc run`` may.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from tenure.domain.refusal import Refusal


class Code:
    """What one code means at the shell (exit status) and over HTTP."""

    __slots__ = ("exit", "http", "meaning")

    def __init__(self, exit: int, http: int, meaning: str) -> None:
        self.exit = exit
        self.http = http
        self.meaning = meaning


CODES: Mapping[str, Code] = {
    "internal": Code(70, 500, "a defect of Tenure itself"),
    "usage": Code(64, 400, "the command line or request is malformed"),
    "invalid_request": Code(64, 422, "a field of the request is not acceptable"),
    "invalid_selector": Code(64, 422, "the selector cannot be parsed"),
    "not_configured": Code(78, 500, "a setting or configuration file is missing or unreadable"),
    "invalid_configuration": Code(78, 500, "a setting or configuration file holds something that cannot be used"),
    "network_file_system": Code(78, 500, "state was asked to live on a network file system"),
    "controller_unreachable": Code(69, 503, "no controller answers"),
    "controller_starting": Code(69, 503, "the controller is not ready yet"),
    "already_running": Code(73, 409, "a controller for this home is running already"),
    "jobs_running": Code(73, 409, "jobs are running and would be cut off"),
    "authentication_refused": Code(77, 401, "the caller is not who may talk to this controller"),
    "not_permitted": Code(77, 403, "the caller may not do this"),
    "unknown_device": Code(68, 404, "no device of that name"),
    "unknown_job": Code(68, 404, "no job of that name"),
    "ambiguous_job": Code(68, 409, "more than one job begins like that"),
    "no_matching_device": Code(67, 422, "no device of the fleet can ever satisfy the request"),
    "busy": Code(75, 409, "every device that would fit is taken, and waiting was ruled out"),
    "timed_out": Code(124, 408, "the time allowed ran out"),
    "key_reused": Code(65, 409, "an idempotency key was used before for something else"),
    "job_lost": Code(71, 500, "the job's end was not observed"),
    "start_refused": Code(71, 500, "the agent refused to start the job"),
    "conflict": Code(65, 409, "the thing is not in a state that allows this"),
    "disk_full": Code(74, 507, "a disk that must be written is full"),
    "io_error": Code(74, 500, "a file could not be read or written"),
    "damaged_state": Code(74, 500, "a state file is damaged"),
    "library_missing": Code(69, 500, "a library or tool that is needed is not there"),
    "bound_refused": Code(67, 422, "a bound of the job is one that the device does not allow"),
    "requirement_not_met": Code(72, 422, "the device's host lacks what the job requires"),
    "stage_failed": Code(74, 500, "a tree could not be staged"),
    "wire_version": Code(76, 409, "the two sides speak versions too far apart"),
}


class TenureError(Exception):
    """Something went wrong that Tenure can name.

    ``code`` is one of ``CODES``; ``message`` is one sentence on what happened, naming the file, key or device at
    fault; ``do`` is the next thing to type or change; ``facts`` are JSON-able details.
    """

    def __init__(self, code: str, message: str, *, do: str = "", facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code if code in CODES else "internal"
        self.message = message
        self.do = do
        self.facts: Mapping[str, Any] = dict(facts or {})

    @classmethod
    def from_refusal(cls, refusal: Refusal) -> TenureError:
        """The error that says what the domain refused."""
        return cls(refusal.code, refusal.message, do=refusal.do, facts=refusal.facts)

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> TenureError:
        """Rebuilds the error that another process sent with ``to_dict``."""
        return cls(
            str(body.get("code", "internal")),
            str(body.get("message", "the other side gave no message")),
            do=str(body.get("do", "")),
            facts=body.get("facts") or {},
        )

    def to_dict(self) -> dict[str, Any]:
        """The error as it travels: code, message, do, facts."""
        return {"code": self.code, "message": self.message, "do": self.do, "facts": dict(self.facts)}

    @property
    def exit_code(self) -> int:
        """The exit status a command ends with."""
        return CODES[self.code].exit

    @property
    def http_status(self) -> int:
        """The HTTP status a route answers with."""
        return CODES[self.code].http

    def __str__(self) -> str:
        return f"{self.message} {self.do}".strip() if self.do else self.message
