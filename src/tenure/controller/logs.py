"""The controller's log: one JSON object a line on stderr, which the embedded mode keeps in ``controller.log``.

Built on ``logging`` alone, so that what the ledger, the server and the routes say comes out in one form, and because
a logging library costs a tenth of the time that the whole controller may take to come up.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any


class JsonLines(logging.Formatter):
    """``{"at", "level", "logger", "event", ...facts}``; an error's traceback is in ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        body: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        body.update(getattr(record, "facts", {}))
        if record.exc_info:
            body["exception"] = self.formatException(record.exc_info)
        return json.dumps(body, default=repr)


class Log:
    """A logger whose events carry facts: ``log.info("agent_gone", code=1)``."""

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(name)

    def info(self, event: str, **facts: Any) -> None:
        """Something worth knowing later."""
        self._log.info("%s", event, extra={"facts": facts})

    def warning(self, event: str, **facts: Any) -> None:
        """Something that was not as it should be, and was dealt with."""
        self._log.warning("%s", event, extra={"facts": facts})

    def error(self, event: str, *, error: BaseException | None = None, **facts: Any) -> None:
        """Something that failed; with ``error`` its traceback is told too."""
        self._log.error("%s", event, exc_info=error, extra={"facts": facts})


def configure() -> None:
    """Sends everything from ``info`` up to stderr; of the server's own chatter only what went wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for chatty in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
