"""Which packages a worker has, read from the files in which dpkg, rpm and Python keep it. Standard library only.

No package manager is run: it may hang, take a lock, or be one that a job left. Answers as in ``fingerprint_look``.
"""

from __future__ import annotations

import os
import re
import sqlite3
import struct
from collections.abc import Iterable, Sequence

from tenure.probes.fingerprint_look import ABSENT, Found, expand, expand_all, names_in, why


def signature(paths: Iterable[str]) -> str:
    """What tells whether files are the ones read before; empty where one cannot be looked at."""
    told = []
    for path in paths:
        try:
            found = os.stat(path)  # noqa: PTH116
        except ABSENT:
            continue
        except OSError:
            return ""
        told.append(f"{path}:{found.st_size}:{found.st_mtime_ns}:{found.st_ino}")
    return ";".join(told)


def dpkg(path: str) -> Found:
    """Installed packages of a dpkg status file: ``name`` (``name:arch`` where foreign) -> version."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except ABSENT:
        return {}, {}
    except OSError as error:
        return {}, {"": why(error)}
    return parse_dpkg(text), {}


def parse_dpkg(text: str) -> dict[str, str]:
    """See ``dpkg``. The same name of two architectures is told apart by it."""
    items: dict[str, str] = {}
    for stanza in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version|Architecture): (.*)$", stanza, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed") and {"Package", "Version"} <= fields.keys():
            name = fields["Package"]
            items[name if name not in items else f"{name}:{fields.get('Architecture', '')}"] = fields["Version"]
    return items


def rpm(folders: Sequence[str]) -> Found:
    """Installed packages of an rpm database kept in SQLite: ``name.arch`` -> version-release."""
    for folder in folders:
        path = f"{folder}/rpmdb.sqlite"
        try:
            os.stat(path)  # noqa: PTH116
        except ABSENT:
            if any(os.path.exists(f"{folder}/{old}") for old in ("Packages", "Packages.db")):  # noqa: PTH110
                return {}, {"": f"not_supported: {folder} is an rpm database of an older kind"}
            continue
        except OSError as error:
            return {}, {"": why(error)}
        try:
            return _rpm_rows(path), {}
        except (sqlite3.Error, struct.error, IndexError, ValueError) as error:
            return {}, {"": f"unparseable: {path}: {error}"}
    return {}, {}


def _rpm_rows(path: str) -> dict[str, str]:
    items: dict[str, str] = {}
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        for (blob,) in database.execute("SELECT blob FROM Packages"):
            name, version, release, arch = rpm_header(blob)
            at = f"{name}.{arch}" if arch else name
            told = f"{version}-{release}"
            items[at] = told if at not in items else f"{items[at]}, {told}"  # several kernels are all installed
    finally:
        database.close()
    return items


def rpm_header(blob: bytes) -> tuple[str, str, str, str]:
    """(name, version, release, architecture) of a package's header: index entries of 16 bytes, then their data."""
    count, size = struct.unpack_from(">II", blob)
    data = 8 + 16 * count
    if data + size > len(blob):
        raise ValueError("a header that is longer than its row")
    told = {}
    for number in range(count):
        tag, kind, offset, _ = struct.unpack_from(">IIII", blob, 8 + 16 * number)
        if tag in (1000, 1001, 1002, 1022) and kind == 6:
            told[tag] = blob[data + offset : blob.index(b"\0", data + offset)].decode(errors="replace")
    return told[1000], told[1001], told.get(1002, ""), told.get(1022, "")


def python(tool_patterns: Sequence[str]) -> Found:
    """Distributions of the Pythons beside the tools, by the names of their metadata: ``folder/name`` -> version."""
    items: dict[str, str] = {}
    homes, blind = expand_all(tool_patterns)
    done: set[str] = set()
    for home in dict.fromkeys(os.path.dirname(home) for home in homes):  # noqa: PTH120
        for lib in ("lib", "lib64"):
            versions, hidden = expand(f"{home}/{lib}/python3*")
            blind |= hidden
            for folder in (f"{version}/{site}-packages" for version in versions for site in ("site", "dist")):
                real = os.path.realpath(folder)
                if real not in done:
                    done.add(real)
                    _distributions(folder, items, blind)
    return items, blind


def _distributions(folder: str, items: dict[str, str], blind: dict[str, str]) -> None:
    try:
        names = names_in(folder)
    except ABSENT:
        return
    except OSError as error:
        blind[folder] = why(error)
        return
    for name in names:
        found = re.fullmatch(r"(.+?)-([^-]+)(-py[\d.]+)?\.(dist-info|egg-info)", name)
        if found is not None:
            items[f"{folder}/{found[1]}"] = found[2]
