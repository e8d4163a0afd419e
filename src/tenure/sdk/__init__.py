"""The typed client: a standard-library core over the local socket.

Names are loaded when they are first used: the command line imports the light parts alone.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tenure.sdk.client import Client
    from tenure.sdk.records import Device, Job, Outcome, Status

__all__ = ["Client", "Device", "Job", "Outcome", "Status"]


def __getattr__(name: str) -> object:
    if name == "Client":
        from tenure.sdk.client import Client

        return Client
    if name in __all__:
        from tenure.sdk import records

        return getattr(records, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
