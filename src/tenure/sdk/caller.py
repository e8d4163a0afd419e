"""What of the caller goes with a job to the same machine: the listed variables and the mask of file modes."""

from __future__ import annotations

import os

from tenure.agent.environment import CALLER_VARIABLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of the caller's variables that pass, by the list in ``tenure.agent.environment``.

    The same rule as its ``from_caller``, without compiling a pattern for every entry of the list on every start.
    A variable that is not text in UTF-8 cannot travel, and is left out.
    """
    names = frozenset(name for name in CALLER_VARIABLES if not name.endswith("*"))
    beginnings = tuple(name[:-1] for name in CALLER_VARIABLES if name.endswith("*"))
    return {
        name: value for name, value in environ.items() if (name in names or name.startswith(beginnings)) and text(value)
    }


def text(value: str) -> bool:
    """Whether a string from the system is text in UTF-8, which is all that JSON can carry."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def umask() -> int:
    """The mask of this process. It can only be read by setting it; this program has one thread."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
