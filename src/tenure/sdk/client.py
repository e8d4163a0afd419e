"""The typed client of the local controller. Standard library only.

from tenure.sdk import Client

with Client.local() as client:
    job = client.submit(["python", "train.py"], select="vram>=40G")
    for event in client.follow(job.id):
        ...
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tenure.sdk import locate
from tenure.sdk.following import NO_OUTPUT, Following
from tenure.sdk.records import Device, Job, Status, read
from tenure.sdk.transport import Transport, query, quote


class Client:
    """One connection; for one thread at a time. Every method raises ``TenureError`` with a code of ``errors.CODES``."""

    def __init__(self, socket_path: str | None = None, *, timeout_s: float = 30.0) -> None:
        self._transport = Transport(socket_path or locate.control_socket(), timeout_s)

    @classmethod
    def local(cls, *, start: bool = True, timeout_s: float = 30.0) -> Client:
        """The client of this user's controller on this machine, started (with its agent) where none answers."""
        client = cls(timeout_s=timeout_s)
        if start:
            from tenure.paths import layout
            from tenure.sdk import embedded

            if embedded.ensure_running(layout()):
                embedded.wait_for_agent(client._transport)
        return client

    def close(self) -> None:
        """Closes the connection."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def status(self) -> Status:
        """How the controller is."""
        return read(Status, self._transport.call("GET", "/v1/status"))

    def devices(self) -> list[Device]:
        """Every device, sorted by name."""
        return [read(Device, body) for body in self._transport.call("GET", "/v1/devices")["devices"]]

    def device(self, name: str) -> Device:
        """One device by its name (``host:gpu0``, or ``gpu0`` where that is unambiguous)."""
        return read(Device, self._transport.call("GET", f"/v1/devices/{quote(name)}"))

    def explain(self, *, device: str | None = None, select: str = "", count: int = 1) -> dict[str, dict[str, str]]:
        """For each device why it would or would not be taken; submits nothing."""
        body = {"device": device, "select": select, "count": count}
        told: dict[str, dict[str, str]] = self._transport.call("POST", "/v1/explain", body)["devices"]
        return told

    def submit(
        self,
        argv: Sequence[str],
        *,
        device: str | None = None,
        select: str = "",
        count: int = 1,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        priority: int = 0,
        queue_timeout_s: float | None = None,
        grace_s: float = 10.0,
        label: str = "",
        window: Mapping[str, float] | None = None,
        needs: Sequence[str] = (),
        keep: bool = False,
        stage: str | os.PathLike[str] | None = None,
        key: str | None = None,
        wait: bool = True,
    ) -> Job:
        """Submits a command and returns once that is durable. ``env`` is the job's whole variable set besides Tenure's
        own (see ``tenure.sdk.caller.variables`` for what a caller passes); without a ``key`` one is made, so that a
        request that had to be repeated is still one job. With ``wait=False`` it starts now or is refused as busy.
        ``needs`` are requirements such as ``tool:cmake>=3.20``: where one is not met on its host, nothing is run.
        ``stage`` is a folder to carry to the job's scratch first, where it then begins (see ``tenure.sdk.staging`` for
        its notes and progress); ``keep`` keeps the scratch after the end.
        """
        tree: Mapping[str, Any] = {}
        if stage is not None:
            from tenure.sdk import staging

            tree = staging.stage(os.fspath(stage), self._transport).stage
        body = {
            "argv": list(argv),
            "device": device,
            "select": select,
            "count": count,
            "cwd": cwd,
            "env": dict(env or {}),
            "priority": priority,
            "queue_timeout_s": queue_timeout_s,
            "grace_s": grace_s,
            "label": label,
            "window": dict(window or {}),
            "needs": list(needs),
            "keep": keep,
            "stage": dict(tree),
            "key": key or os.urandom(16).hex(),
            "wait": wait,
        }
        return Job.of(self._transport.call("POST", "/v1/jobs", body)["job"])

    def jobs(
        self, *, state: str = "", owner: str = "", device: str = "", limit: int = 50, before: float | None = None
    ) -> list[Job]:
        """Jobs, newest first. ``state`` may be ``open``; ``before`` (submission, UTC seconds) pages on."""
        asked = {"state": state, "owner": owner, "device": device, "limit": limit, "before": before}
        return [Job.of(body) for body in self._transport.call("GET", f"/v1/jobs{query(asked)}")["jobs"]]

    def job(self, name: str) -> Job:
        """One job by its id or an unambiguous beginning of it."""
        return Job.of(self._transport.call("GET", f"/v1/jobs/{quote(name)}"))

    def stop(self, name: str, reason: str = "") -> Job:
        """Asks a job to end; returns once that is accepted and durable."""
        return Job.of(self._transport.call("POST", f"/v1/jobs/{quote(name)}/stop", {"reason": reason}))

    def follow(
        self,
        name: str,
        *,
        offset: int = 0,
        since: float | None = None,
        revive: Callable[[], object] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """The job's events from a byte of its output or a UTC time on, until it is over; see ``Following``."""
        return iter(Following(Transport(self._transport.path), job=name, offset=offset, since=since, revive=revive))

    def wait(self, name: str) -> Job:
        """Waits until a job is over, through every break of the connection."""
        following = Following(Transport(self._transport.path), job=name, offset=NO_OUTPUT)
        for _ in following:
            pass
        assert following.record is not None
        return Job.of(following.record)

    def output(self, name: str, *, offset: int = 0, since: float | None = None) -> bytes:
        """The output that is here now, both streams interleaved as read, from ``offset`` on, or from what was read at
        ``since`` (UTC) on."""
        with Transport(self._transport.path) as stream:
            target = f"/v1/jobs/{quote(name)}/output{query({'offset': offset, 'since': since})}"
            return b"".join(decode(event) for event in stream.lines("GET", target) if event.get("type") == "output")


def decode(event: Mapping[str, Any]) -> bytes:
    """The bytes of an ``output`` event as it travels."""
    from binascii import a2b_base64

    return a2b_base64(event["data"])
