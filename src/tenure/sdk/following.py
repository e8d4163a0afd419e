"""A job followed to its end through every break of the connection: no byte twice, none left out.

The controller's stream counts bytes of the whole output. What is known here is the offset after the last byte handed
out; after a break the stream is asked for from there on. A submission that broke before its answer is sent again with
the same key, which makes it the same job.
"""

from __future__ import annotations

import time
from binascii import a2b_base64

from tenure.errors import TenureError
from tenure.sdk.transport import Transport, Unanswered, query, quote, unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from typing import Any

#: An offset beyond any output: follows the states of a job and none of its bytes.
NO_OUTPUT = 1 << 62
PATIENCE_S = 90.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


class Following:
    """Iterate it for events: ``job``, ``output`` (``data`` is bytes), ``gap``, ``beat``, and ``ended`` as the last.

    It begins at byte ``offset``, or with ``since`` at the first byte that was read at that UTC time or later. ``body``
    submits a new job; else ``job`` names one. ``revive`` is called when nobody answers, to start a controller where
    that is possible; before the first contact only a submission calls it, and anything else raises at once.
    ``trouble`` is told once per break, with words and the job if it is known, and again when it is over (no words).
    ``patience_s`` bounds each break; a break that lasts longer raises ``controller_unreachable``.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        job: str | None = None,
        body: Mapping[str, Any] | None = None,
        offset: int = 0,
        since: float | None = None,
        revive: Callable[[], object] | None = None,
        trouble: Callable[[str | None, str | None], object] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        assert (job is None) != (body is None)
        self.job = job
        self.offset = offset
        self._since = since
        self._gaps: list[tuple[object, ...]] = []
        self.record: dict[str, Any] | None = None
        self._transport = transport
        self._body = body
        self._revive = revive
        self._trouble = trouble or (lambda words, job: None)
        self._patience_s = patience_s

    @property
    def submits(self) -> bool:
        """Whether this began with a submission, not with a job that was there already."""
        return self._body is not None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        broken_since: float | None = None
        told = False
        pause = _FIRST_PAUSE_S
        while True:
            why = "the stream ended before the job did"
            stream = self._stream()
            try:
                for event in stream:
                    if told:
                        self._trouble(None, self.job)
                    broken_since, told, pause = None, False, _FIRST_PAUSE_S
                    if event["type"] == "output" and not (event := self._new_part(event)):
                        continue
                    if event["type"] == "gap" and self._told(event):
                        continue
                    yield event
                    if event["type"] == "ended":
                        return
            except Unanswered as error:
                why = str(error)
            finally:
                stream.close()  # now: it closes the connection, which must not be the next one
            now = time.monotonic()
            first = broken_since is None
            broken_since = now if broken_since is None else broken_since
            if now - broken_since > self._patience_s or (self.record is None and self._body is None):
                raise unreachable(self._transport.path, why)
            # That nobody answers a first submission is how every first run begins: nothing to tell yet.
            if not told and not (first and self.record is None):
                told = True
                self._trouble(why, self.job)
            if self._revive is not None:
                self._start_one()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _start_one(self) -> None:
        assert self._revive is not None
        try:
            self._revive()
        except TenureError as error:
            # One that went again right after it was started is a break like any other, once there is a job to follow.
            if self.record is None or error.code not in ("controller_unreachable", "controller_starting"):
                raise

    def _stream(self) -> Generator[dict[str, Any], None, None]:
        if self.job is None:
            lines = self._transport.lines("POST", "/v1/jobs?follow=true", self._body)
        else:
            target = f"/v1/jobs/{quote(self.job)}/follow{query({'offset': self.offset, 'since': self._since})}"
            lines = self._transport.lines("GET", target)
        for event in lines:
            kind = event.get("type")
            if kind == "error":
                raise TenureError.from_dict(event.get("error") or {})
            if kind in ("job", "ended"):
                self.record = event["job"]
                self.job = event["job"]["id"]
            if kind is not None:
                yield event

    def _new_part(self, event: dict[str, Any]) -> dict[str, Any]:
        """The event with those of its bytes that were not handed out yet; empty where there is none."""
        data = a2b_base64(event["data"])
        begin = int(event["offset"])
        self._begin(begin)
        if begin > self.offset:
            raise Unanswered(f"the stream skipped from byte {self.offset} to {begin}")
        fresh = data[self.offset - begin :]
        if not fresh:
            return {}
        event = {**event, "offset": self.offset, "data": fresh}
        self.offset += len(fresh)
        return event

    def _begin(self, offset: int) -> None:
        """The first bytes since a time say where that is; from there on it goes by their offsets."""
        if self._since is not None:
            self.offset, self._since = max(offset, self.offset), None

    def _told(self, event: dict[str, Any]) -> bool:
        """Whether a gap was handed out before: a stream that begins again at a gap tells of it again."""
        self._begin(int(event["offset"]))
        gap = tuple(event.get(name) for name in ("offset", "stream", "cause", "bytes"))
        if gap in self._gaps:
            return True
        self._gaps = [*(one for one in self._gaps if one[0] == gap[0]), gap]
        return False
