"""Where this user's controller answers on this machine, found with ``os`` alone.

``tenure.paths`` is the one authority on paths, and imports what it needs for making folders safely; that takes longer
than a whole command may. Here the ordinary case is spelt out once more (a test holds the two equal), and anything out
of the ordinary is handed to ``tenure.paths``.
"""

from __future__ import annotations

import os
import sys

_HEX = frozenset("0123456789abcdef")


def home() -> str:
    """The folder of all state; it need not exist. Raises as ``tenure.paths.tenure_home`` does."""
    given = os.environ.get("TENURE_HOME", "")
    if given.startswith("/"):
        return os.path.normpath(given)
    login = os.environ.get("HOME", "")
    if not given and sys.platform == "linux" and login.startswith("/") and not os.environ.get("XDG_DATA_HOME"):
        return os.path.normpath(login) + "/.local/share/tenure"
    from tenure.paths import tenure_home

    return str(tenure_home())


def machine_folder() -> str:
    """This machine's folder under the home."""
    base = home()
    try:
        fd = os.open("/etc/machine-id", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        text = ""
    else:
        try:
            text = os.read(fd, 64).decode("ascii", "replace").strip()
        finally:
            os.close(fd)
    if len(text) == 32 and _HEX.issuperset(text) and text != "0" * 32:
        return f"{base}/machines/{text}"
    from pathlib import Path

    from tenure.paths import layout

    return str(layout(Path(base)).root)


def control_socket() -> str:
    """The path of the controller's socket; nothing need be there."""
    return machine_folder() + "/run/ctl.sock"
