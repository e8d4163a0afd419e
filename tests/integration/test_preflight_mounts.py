"""Requirements on mounts, on real ones: tmpfs of every temper in a mount namespace, a share without links, a
dead one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tenure.domain.requirement import Look, Result, expand
from tenure.probes import preflight

SHARE = Path(__file__).parents[1] / "e2e" / "fuse_share.py"
#: Looks in a namespace of its own, after ``arrange`` was run there; prints what it found.
_INSIDE = """
import asyncio, json, subprocess, sys
from tenure.domain.requirement import expand
from tenure.probes import preflight
place, arrange, *texts = sys.argv[1:]
subprocess.run(["sh", "-ec", arrange], check=True, cwd=place)
start = preflight.Start({"PATH": "/usr/bin:/bin"}, place, "true", place + "/scratch")
looks = asyncio.run(preflight.look(expand(texts), start, [], deadline_s=30.0))
print(json.dumps([look.to() for look in looks]))
"""


def inside(place: Path, arrange: str, *texts: str) -> list[dict[str, Any]]:
    (place / "scratch").mkdir(exist_ok=True)
    (place / "m").mkdir(exist_ok=True)
    argv = ["unshare", "--mount", sys.executable, "-c", dedent(_INSIDE), str(place), arrange]
    done = subprocess.run([*argv, *texts], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_a_mount_with_all_that_is_asked(tmp_path: Path) -> None:
    m = tmp_path / "m"
    arrange = "mount -t tmpfs -o size=64M tenure m"
    (row,) = inside(tmp_path, arrange, f"mount:{m},exec,symlink,write,free>=60M")
    assert row["result"] == "present", row
    for said in ("tmpfs", "a program was run", "a symbolic link was made", "a file was written", "free"):
        assert said in row["words"]


@pytest.mark.parametrize(
    ("options", "asked", "result", "words"),
    [
        ("noexec", "exec", "absent", "noexec"),
        ("noexec", "write,symlink", "present", ""),
        ("ro", "write", "absent", "Read-only file system"),
        ("ro", "exec", "could_not_look", "Read-only file system"),
        ("ro", "symlink", "could_not_look", "Read-only file system"),
        ("ro,noexec", "exec", "absent", "noexec"),
        ("size=1M", "free>=2M", "absent", "1M of 2M"),
        ("nr_inodes=1", "write", "absent", "No space left"),
        ("nr_inodes=1", "exec", "could_not_look", "No space left"),
    ],
)
def test_each_property_is_tried(tmp_path: Path, options: str, asked: str, result: str, words: str) -> None:
    m = tmp_path / "m"
    (row, plain) = inside(tmp_path, f"mount -t tmpfs -o {options} tenure m", f"mount:{m},{asked}", f"mount:{m}")
    assert (row["result"], plain["result"]) == (result, "present"), row
    assert words in row["words"]
    # Nothing is left of the trying.
    listed = f"mount -t tmpfs -o {options} tenure m; mount --bind m scratch; ls -A m > left"
    inside(tmp_path, listed, f"mount:{m},{asked}")
    assert (tmp_path / "left").read_text() == ""


def test_a_folder_is_no_mount_and_what_covers_another_counts(tmp_path: Path) -> None:
    m = tmp_path / "m"
    arrange = "mount -t tmpfs -o noexec tenure m; mount -t tmpfs tenure m; mkdir m/inner; ln -s m link"
    texts = (f"mount:{m},exec", f"mount:{m}/inner", f"mount:{tmp_path}/link", f"mount:{tmp_path}/none", "mount:/")
    covering, inner, link, gone, root = inside(tmp_path, arrange, *texts)
    assert covering["result"] == link["result"] == root["result"] == "present"
    assert inner["result"] == gone["result"] == "absent"
    assert f"lies on {m}" in inner["words"]
    assert f"{tmp_path} is" in gone["words"]


def test_where_the_scratch_cannot_run_a_program_either_nothing_is_said_of_the_mount(tmp_path: Path) -> None:
    # The interpreter of the program that is tried does not run: that says nothing of the mount.
    m = tmp_path / "m"
    arrange = "mount -t tmpfs tenure m; printf x > noprogram; mount --bind noprogram /bin/sh"
    (row,) = inside(tmp_path, arrange, f"mount:{m},exec")
    assert row["result"] == "could_not_look", row
    assert "nor does one run in the scratch" in row["words"]


# -- shares ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def share(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    place = tmp_path / "share"
    place.mkdir()
    words = [sys.executable, str(SHARE), str(place), "server:/export", *getattr(request, "param", ())]
    server = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"mounted\n"
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)
        server.kill()
        server.wait()


def look(tmp_path: Path, *texts: str, deadline_s: float = 30.0) -> list[Look]:
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    start = preflight.Start({"PATH": "/usr/bin:/bin"}, str(scratch), "true", str(scratch))
    return list(asyncio.run(preflight.look(expand(texts), start, [], deadline_s=deadline_s)))


def test_a_share_without_links_fails_by_that_name(share: Path, tmp_path: Path) -> None:
    texts = (f"mount:{share}", f"mount:{share},symlink", f"mount:{share},write", f"mount:{share},free>=1G")
    there, links, write, room = look(tmp_path, *texts)
    assert there.result is Result.PRESENT
    assert "fuse.sshfs from server:/export" in there.words
    assert links.result is write.result is room.result is Result.ABSENT
    assert "making a symbolic link: Function not implemented" in links.words
    assert "3.9M of 1G" in room.words


@pytest.mark.parametrize("share", [("mute",)], indirect=True)
def test_a_dead_share_is_not_waited_for(share: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("there")
    began = time.monotonic()
    texts = (f"mount:{share}", f"file:{share}/x", f"file:{tmp_path}/file", "tool:sh")
    mount, file, beside, tool = look(tmp_path, *texts, deadline_s=4.0)
    assert time.monotonic() - began < 8
    assert (mount.result, mount.reason) == (file.result, file.reason) == (Result.COULD_NOT_LOOK, "timeout")
    assert f"stat {share}" in mount.words
    assert f"stat {share}/x" in file.words
    assert beside.result is tool.result is Result.PRESENT
    # A tool that lies there is no reason to hang either, nor to call it absent.
    start = preflight.Start({"PATH": f"{share}:/usr/bin"}, str(tmp_path), "true", str(tmp_path))
    (found,) = asyncio.run(preflight.look(expand(["tool:sh"]), start, [], deadline_s=3.0))
    assert (found.result, found.reason) == (Result.COULD_NOT_LOOK, "timeout")
