"""Every capture through its parser: what a tool or pseudo-file printed, and the record that must come out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.reading import Unavailable, Value
from tenure.probes import discovery, host, identity, proc, smi

CAPTURES = sorted((Path(__file__).parents[2] / "captures").glob("*.json"))
NOBODY = identity.HostIdentity("f" * 32, "/etc/machine-id", None, None, None, "host", None)


def plain(reading: Any) -> Any:
    """A reading as captures write it: the value, or the word of the reason."""
    return str(reading.reason) if isinstance(reading, Unavailable) else reading.value


def stat(raw: str) -> Any:
    entry = proc.parse_stat(raw, 0)
    return None if entry is None else {k: v for k, v in entry._asdict().items() if k != "uid"}


def maps(raw: str) -> Any:
    libraries = proc.parse_maps(raw.encode())
    return {"libraries": list(libraries), "compute_capable": proc.Handles((), libraries, frozenset()).compute_capable}


def links(raw: str) -> Any:
    files, kinds = proc.parse_links(raw.splitlines())
    capable = proc.Handles(files, (), kinds).compute_capable
    return {"files": list(files), "kinds": sorted(kinds), "compute_capable": capable}


def jetson(raw: str, folder: Path) -> Any:
    (folder / "proc/device-tree").mkdir(parents=True)
    (folder / "proc/device-tree/model").write_text(raw)
    found = discovery.assemble([], NOBODY, discovery.read_platform(folder), at=1.0, now=2.0).devices
    assert len(found) == 1
    gpu = found[0].kind != "cpu"
    return {
        "kind": found[0].kind,
        "model": plain(found[0].model) if gpu else None,
        "memory": plain(found[0].memory) if gpu else None,
    }


def table(raw: str) -> Any:
    got = smi.process_table(raw, 1.0)
    return [list(astuple(row)) for row in got.value] if isinstance(got, Value) else plain(got)


def query(raw: str) -> Any:
    return [{name: plain(reading) for name, reading in row.items()} for row in smi.query_csv(raw, 1.0)]


def swaps(raw: str) -> Any:
    areas = host.parse_swaps(raw)
    return None if areas is None else [list(astuple(area)) for area in areas]


def pressure(raw: str) -> Any:
    got = host.parse_pressure(raw)
    return None if got is None else list(astuple(got))


READERS: Mapping[str, Callable[[str], Any]] = {
    "meminfo": host.parse_meminfo,
    "swaps": swaps,
    "pressure": pressure,
    "loadavg": host.parse_loadavg,
    "stat": stat,
    "maps": maps,
    "links": links,
    "machine_id": identity.parse_machine_id,
    "smi_process_table": table,
    "smi_csv": query,
}


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_capture(path: Path, tmp_path: Path) -> None:
    capture = json.loads(path.read_text())
    reader = capture["reader"]
    got = jetson(capture["input"], tmp_path) if reader == "jetson" else READERS[reader](capture["input"])
    assert got == capture["right"]


def test_there_are_captures() -> None:
    assert len(CAPTURES) >= 25
