"""One command's way to the controller, and what it may do where none answers or no agent is there yet."""

from __future__ import annotations

import sys
import time

from tenure.cli.text import clean
from tenure.errors import TenureError
from tenure.sdk import locate
from tenure.sdk.transport import Transport, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: Refusals that a fleet may give only because its agent has not come in yet.
EARLY = frozenset({"no_matching_device", "unknown_device", "busy"})
_FRESH_S = 15.0


def transport() -> Transport:
    """The connection to this user's controller on this machine; nothing is started."""
    return Transport(locate.control_socket())


def revive() -> bool:
    """Sees to it that a controller answers and an agent is there; says once what was started for whom."""
    from tenure.paths import layout
    from tenure.sdk import embedded

    paths = layout()
    if not embedded.ensure_running(paths):
        return False
    sys.stderr.write(f"rc: {started_words(str(paths.root), embedded.read_options(paths))}\n")
    sys.stderr.flush()
    with Transport(str(paths.ctl_sock)) as fresh:
        embedded.wait_for_agent(fresh)
    return True


def started_words(folder: str, options: Mapping[str, Any]) -> str:
    """What a first start says."""
    from tenure.mounts import user_name

    simulated = f" with simulated devices {clean(options['sim'])}" if options.get("sim") else ""
    return (
        f"started a controller and an agent for {user_name()}{simulated} (state in {clean(folder)}); "
        "stop them with rc down"
    )


def in_full(error: TenureError, body: dict[str, Any], connection: Transport) -> bool:
    """Whether a refused device was named by what follows its host; the request names it in full then."""
    name = body["device"]
    if error.code != "unknown_device" or not name or ":" in name:
        return False
    try:
        body["device"] = connection.call("GET", f"/v1/devices/{quote(name)}")["name"]
    except TenureError:
        return False  # the refusal that is there already says it
    return True


def came_too_early(error: TenureError, connection: Transport) -> bool:
    """Whether a refusal may be due to an agent that had not come in yet; waits for it then, a bounded time."""
    if error.code not in EARLY:
        return False
    status = connection.call("GET", "/v1/status")
    if any(agent["contact"] for agent in status["agents"]) and time.time() - status["started_at"] > _FRESH_S:
        return False
    from tenure.sdk import embedded

    return embedded.wait_for_agent(connection)
