"""What is on record of a staged tree: its hash, what was packed, and where it came from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Each field of ``JobSpec.stage`` with its type. ``bytes`` is the size of the stream, ``size`` that of the files in it.
FIELDS: Mapping[str, type] = {
    "hash": str,
    "bytes": int,
    "size": int,
    "entries": int,
    "source": str,
    "commit": str,
    "dirty": bool,
    "cwd": str,
}
_HASH = re.compile(r"[0-9a-f]{64}")
#: The folder of a job's scratch in which a staged tree lies.
TREE = "tree"


def checked_stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a tree, empty for none. Raises ``ValueError`` in words.

    ``dirty`` is absent where there is no commit to compare with; ``cwd`` is a folder of the tree.
    """
    if not stage:
        return {}
    for name, value in stage.items():
        kind = FIELDS.get(name)
        if kind is None:
            raise ValueError(f"a staged tree has {', '.join(FIELDS)}, not {name[:40]!r}")
        if type(value) is not kind or (isinstance(value, str) and len(value) > 4096):
            raise ValueError(f"{name} of a staged tree is of another type")
    if not _HASH.fullmatch(str(stage.get("hash", ""))):
        raise ValueError("the hash of a staged tree is 64 hexadecimal digits")
    parts = str(stage.get("cwd", "")).split("/")
    if ".." in parts or str(stage.get("cwd", "")).startswith("/") or any("\0" in part for part in parts):
        raise ValueError("the working directory in a staged tree is a folder of it")
    return dict(stage)


def words(stage: Mapping[str, Any]) -> str:
    """One line for people: which tree it is and where it came from."""
    said = f"{str(stage.get('hash', ''))[:12]} of {stage.get('source') or 'an unnamed folder'}"
    if stage.get("commit"):
        said += f", commit {str(stage['commit'])[:12]}"
        said += ", with changes that are not committed" if stage.get("dirty") else ", nothing changed since"
    if "entries" in stage:
        said += f"; {stage['entries']} entries, {stage.get('size', 0)} bytes"
    return said
