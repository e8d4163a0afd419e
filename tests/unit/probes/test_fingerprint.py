"""The fingerprint of a small root of the test's own: every part as it is, as it changes, and as nobody can read it."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import time
from pathlib import Path

import pytest

from tenure.domain.leftovers import Listing
from tenure.domain.reading import Reason, Unavailable, Value
from tenure.probes import fingerprint_look as look
from tenure.probes import fingerprint_packages as packages
from tenure.probes.fingerprint import FingerprintProbe, Look, Read, Roots, root_identity


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    executable(made / "usr/bin/gcc", "#!/bin/sh\necho 'gcc (Debian) 12.2.0'\n")
    executable(made / "opt/vendor/bin/tool")
    (made / "bin").symlink_to("usr/bin")
    (made / "var/lib/dpkg").mkdir(parents=True)
    (made / "var/lib/dpkg/status").write_text("Package: a\nStatus: install ok installed\nVersion: 1\n\n")
    return made


def probe_of(root: Path, *, deadline_s: float = 20.0, version_s: float = 5.0) -> FingerprintProbe:
    roots = Roots(root=str(root), home=str(root / "home"), attempts=str(root / "attempts"))
    return FingerprintProbe(roots, deadline_s=deadline_s, version_s=version_s)


def known(seen: Look) -> dict[str, Read]:
    return {part: each.value for part, each in seen.parts.items() if isinstance(each, Value)}


def listing(seen: Look, part: str) -> Listing:
    found = seen.parts[part]
    assert isinstance(found, Value), found
    return found.value.listing


async def test_each_part_is_read_and_an_unchanged_one_is_not_sent_again(root: Path) -> None:
    probe = probe_of(root)
    first = await probe.look({})
    assert list(listing(first, f"tools:{root}/usr/bin").items) == [f"{root}/usr/bin/gcc"]
    assert not listing(first, f"tools:{root}/bin").items, "a folder that is another by a link is told once"
    assert list(listing(first, f"tools:{root}/opt/*/bin").items) == [f"{root}/opt/vendor/bin/tool"]
    assert listing(first, "packages:dpkg").items == {"a": "1"}
    assert listing(first, "versions").items[f"{root}/usr/bin/gcc"].endswith(" 12.2.0")
    missing = first.parts["mounts"]
    assert isinstance(missing, Unavailable), "no mountinfo in this root: nobody could look, which is no empty list"
    assert missing.reason is Reason.NOT_SUPPORTED

    again = await probe.look(known(first))
    assert again.same == frozenset(known(first))
    assert known(again) == known(first)
    executable(root / "usr/bin/new")
    after = await probe.look(known(again))
    assert frozenset(known(first)) - after.same == {f"tools:{root}/usr/bin"}
    assert sorted(listing(after, f"tools:{root}/usr/bin").items) == [f"{root}/usr/bin/gcc", f"{root}/usr/bin/new"]
    probe.close()


async def test_a_tool_written_over_in_place_is_seen_though_its_folder_did_not_change(root: Path) -> None:
    probe, gcc = probe_of(root), root / "usr/bin/gcc"
    first = await probe.look({})
    folder = (root / "usr/bin").stat().st_mtime_ns
    with gcc.open("r+") as file:
        file.write("#!/bin/sh\necho 'gcc 13.1.0'        \n")
    assert (root / "usr/bin").stat().st_mtime_ns == folder
    after = await probe.look(known(first))
    part = f"tools:{root}/usr/bin"
    assert listing(after, part).items[str(gcc)] != listing(first, part).items[str(gcc)]
    assert listing(after, "versions").items[str(gcc)].endswith(" 13.1.0")
    probe.close()


async def test_a_version_is_asked_only_when_the_file_changed(root: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    executable(root / "usr/bin/nvcc", f"#!/bin/sh\necho x >> {asked}\necho 'release 12.4, V12.4.131'\n")
    probe = probe_of(root)
    seen = await probe.look({})
    assert listing(seen, "versions").items[f"{root}/usr/bin/nvcc"].endswith(" 12.4")
    for _ in range(3):
        seen = await probe.look(known(seen))
    assert asked.read_text() == "x\n"
    probe.close()


async def test_a_tool_that_hangs_costs_its_version_and_no_more(root: Path) -> None:
    executable(root / "usr/bin/nvcc", "#!/bin/sh\ntrap '' TERM\nsleep 600 & wait\n")
    probe = probe_of(root, version_s=0.3)
    began = time.monotonic()
    seen = await probe.look({})
    assert time.monotonic() - began < 15
    assert listing(seen, "versions").items[f"{root}/usr/bin/nvcc"].endswith(" ")
    assert listing(seen, "versions").items[f"{root}/usr/bin/gcc"].endswith(" 12.2.0")
    probe.close()


async def test_a_part_that_hangs_is_unavailable_and_the_rest_is_read(root: Path) -> None:
    # A FIFO without a writer hangs whoever opens it, as a file on a dead mount does.
    status = root / "var/lib/dpkg/status"
    status.unlink()
    os.mkfifo(status)
    probe = probe_of(root, deadline_s=2.0)
    seen = await probe.look({})
    hung = seen.parts["packages:dpkg"]
    assert isinstance(hung, Unavailable)
    assert hung.reason is Reason.TIMEOUT
    assert set(probe.roots.parts) == set(seen.parts)
    assert isinstance(seen.parts["packages:python"], Value)
    probe.close()


def test_a_folder_that_is_a_file_is_empty_and_one_of_links_in_a_ring_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert look.tools(f"{tmp_path}/file", []) == ({}, {})
    assert look.tools(f"{tmp_path}/none", []) == ({}, {})
    (tmp_path / "ring").symlink_to("ring")
    items, blind = look.tools(f"{tmp_path}/ring", [])
    assert not items
    assert list(blind) == [f"{tmp_path}/ring"]


def test_toolkits_whole_partial_linked_and_beside_the_tools(tmp_path: Path) -> None:
    whole = tmp_path / "usr/local/cuda-13.0"
    executable(whole / "bin/nvcc")
    for name in ("targets/x86_64-linux/include/cuda_runtime.h", "lib64/libcudart.so.13"):
        (whole / name).parent.mkdir(parents=True)
        (whole / name).write_text("")
    (tmp_path / "usr/local/cuda").symlink_to("cuda-13.0")
    executable(tmp_path / "opt/cuda-12/bin/nvcc")
    (tmp_path / "usr/local/cuda-empty").mkdir()
    executable(tmp_path / "usr/bin/nvcc")
    (tmp_path / "usr/include").mkdir()
    (tmp_path / "usr/include/cuda_runtime.h").write_text("")
    items, blind = look.cuda([f"{tmp_path}/usr/local/cuda*", f"{tmp_path}/opt/cuda*"], [f"{tmp_path}/usr/bin"])
    assert not blind
    assert items == {
        f"{tmp_path}/usr/local/cuda": f"-> {whole}",
        str(whole): "nvcc,headers,libcudart",
        f"{tmp_path}/opt/cuda-12": "nvcc;headers,libcudart",
        f"{tmp_path}/usr/local/cuda-empty": ";nvcc,headers,libcudart",
        f"{tmp_path}/usr": "nvcc,headers;libcudart",
    }


def test_dpkg_knows_what_is_installed_and_no_more() -> None:
    text = (
        "Package: a\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:2-3\nDescription: x\n Version: 9\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n"
        "Package: a\nStatus: install ok installed\nArchitecture: i386\nVersion: 1:2-4\n"
    )
    assert packages.parse_dpkg(text) == {"a": "1:2-3", "a:i386": "1:2-4"}


def header(name: str, version: str, release: str, arch: str) -> bytes:
    index, data = b"", b""
    for tag, text in ((1000, name), (1001, version), (1002, release), (1022, arch)):
        index += struct.pack(">IIII", tag, 6, len(data), 1)
        data += text.encode() + b"\0"
    return struct.pack(">II", 4, len(data)) + index + data


def test_rpm_is_read_from_its_database_and_an_older_kind_is_not_supported(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "rpmdb.sqlite")
    database.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY, blob BLOB)")
    rows = [("bash", "5.2", "1.el9", "x86_64"), ("kernel", "5.1", "1", "x86_64"), ("kernel", "5.2", "1", "x86_64")]
    database.executemany("INSERT INTO Packages (blob) VALUES (?)", [(header(*row),) for row in rows])
    database.commit()
    database.close()
    assert packages.rpm([str(tmp_path)]) == ({"bash.x86_64": "5.2-1.el9", "kernel.x86_64": "5.1-1, 5.2-1"}, {})
    (tmp_path / "rpmdb.sqlite").write_bytes(b"no database")
    assert packages.rpm([str(tmp_path)])[1][""].startswith("unparseable")
    (tmp_path / "rpmdb.sqlite").unlink()
    assert packages.rpm([str(tmp_path)]) == ({}, {})
    (tmp_path / "Packages").write_text("")
    assert packages.rpm([str(tmp_path)])[1][""].startswith("not_supported")


def test_python_packages_by_the_names_of_their_metadata(tmp_path: Path) -> None:
    site = tmp_path / "usr/lib/python3.11/site-packages"
    for name in ("numpy-2.1.0.dist-info", "my_pkg-0.1-py3.11.egg-info", "numpy", "x.dist-info"):
        (site / name).mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/lib64").symlink_to("lib")
    assert packages.python([f"{tmp_path}/usr/bin"]) == ({f"{site}/numpy": "2.1.0", f"{site}/my_pkg": "0.1"}, {})


def test_mounts_by_point_without_what_comes_and_goes() -> None:
    text = (
        "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "28 27 0:5 / /mnt/my\\040data ro - nfs4 host:/x rw,addr=1\n"
        "29 27 0:6 / /proc rw - proc proc rw\n"
        "30 27 0:7 / /var/lib/docker/overlay2/abc/merged rw - overlay overlay rw\n"
        "31 27 0:8 / /mnt/my\\040data rw - tmpfs tmpfs rw\n"
        "torn\n"
    )
    assert look.parse_mounts(text) == {
        "/": "ext4 /dev/vda rw,relatime",
        "/mnt/my data": "nfs4 host:/x ro; tmpfs tmpfs rw",
    }


def test_scratch_by_attempt_is_what_it_takes_on_the_disk(tmp_path: Path) -> None:
    folder = tmp_path / "j1.1/scratch/deep"
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "j2.1").mkdir()
    (tmp_path / "j3.1").mkdir()
    (tmp_path / "j3.1/scratch.json").write_text(json.dumps({"path": str(folder), "kept": True}))
    (tmp_path / "j4.1").mkdir()
    (tmp_path / "j4.1/scratch.json").write_text("{")
    items, blind = look.scratch(str(tmp_path))
    assert list(blind) == ["j4.1"]
    assert list(items) == ["j1.1", "j3.1"]
    assert 100_000 <= int(items["j1.1"]) < 200_000
    assert items["j3.1"].endswith(" kept")


@pytest.mark.parametrize(
    ("line", "identity"),
    [
        ("1 0 0:3 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/d/abc/diff,workdir=/w", "overlay /d/abc/diff"),
        ("1 0 0:3 / / rw - overlay overlay rw", "overlay 7"),
        ("1 0 0:3 / / rw - tmpfs tmpfs rw", "tmpfs of boot b"),
        ("1 0 254:0 / / rw shared:1 - ext4 /dev/vda rw", "ext4 /"),
        ("1 0 0:9 /@two / rw - btrfs /dev/vdb rw", "btrfs /@two"),
        ("", "folder 7"),
    ],
)
def test_a_root_is_known_by_what_is_made_with_it(line: str, identity: str) -> None:
    assert root_identity(line, "b", 7) == identity
