"""Requirements from the command line to the host and back: what is lacking is named, each piece, and nothing is run."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import House, until


class Toolkit:
    """A folder with an ``nvcc`` and nothing else of a toolkit, on ``path``."""

    def __init__(self, root: Path) -> None:
        self.root = root / "toolkit"
        self.nvcc = self.root / "bin/nvcc"
        self.nvcc.parent.mkdir(parents=True)
        self.nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.131'\n")
        self.nvcc.chmod(0o755)
        self.path = f"{self.nvcc.parent}:/usr/bin:/bin"

    def complete(self) -> None:
        """Adds what it lacks."""
        (self.root / "include").mkdir()
        (self.root / "include/needed_by_tests.h").touch()
        (self.root / "lib64").mkdir()
        words = ["cc", "-shared", "-nostdlib", "-x", "c", "-o", f"{self.root}/lib64/libneeded_by_tests.so.12", "-"]
        subprocess.run(words, input=b"int x;", check=True)


@pytest.fixture
def toolkit(tmp_path: Path) -> Toolkit:
    return Toolkit(tmp_path)


NEEDS = ("--need", "tool:nvcc>=12", "--need", "header:needed_by_tests.h", "--need", "lib:needed_by_tests")


def rows_of(house: House) -> dict[str, dict[str, Any]]:
    return {row["text"]: row for row in house.newest()["outcome"]["stats"]["requirements"]}


def test_a_toolkit_in_part_is_named_piece_by_piece_and_nothing_runs(
    house: House, toolkit: Toolkit, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    gpu = house.gpu(0)
    done = house.rc("run", "-d", gpu, *NEEDS, "--", "touch", str(ran), PATH=toolkit.path)
    said = done.stderr.decode().splitlines()
    assert done.returncode == 72, done
    assert done.stdout == b""
    assert not ran.exists()
    assert said[0].startswith("rc: header:needed_by_tests.h: absent: ")
    assert "finds stdio.h" in said[0]
    assert said[1].startswith("rc: lib:needed_by_tests: absent: ")
    assert said[2] == f"rc: present: tool:nvcc>=12 ({toolkit.nvcc} 12.4)"
    assert (
        "requirement not met (header:needed_by_tests.h absent, lib:needed_by_tests absent; nothing was run)" in said[3]
    )
    assert said[4] == "rc: nothing was run, so nothing was used"
    assert len(said) == 5
    assert {text: row["result"] for text, row in rows_of(house).items()} == {
        "tool:nvcc>=12": "present",
        "header:needed_by_tests.h": "absent",
        "lib:needed_by_tests": "absent",
    }
    verdict = house.rc("verify", house.newest()["id"])
    assert verdict.returncode == 2
    assert b"nothing of the job was run" in verdict.stdout
    # The device is free at once: the next job takes it without waiting.
    assert house.rc("run", "-q", "-d", gpu, "--no-wait", "--", "true").returncode == 0
    # With what it lacked it runs.
    toolkit.complete()
    line = ("run", "-d", gpu, "--env", f"LD_LIBRARY_PATH={toolkit.root}/lib64", *NEEDS, "--", "touch", str(ran))
    done = house.rc(*line, PATH=toolkit.path)
    assert done.returncode == 0, done
    assert ran.exists()
    rows = rows_of(house)
    assert {row["result"] for row in rows.values()} == {"present"}
    assert rows["header:needed_by_tests.h"]["path"] == f"{toolkit.root}/include/needed_by_tests.h"
    assert rows["lib:needed_by_tests"]["path"] == f"{toolkit.root}/lib64/libneeded_by_tests.so.12"


def test_every_way_of_looking_shows_them(house: House, toolkit: Toolkit) -> None:
    done = house.rc("run", "-q", "-o", "json", *NEEDS, "--need-mem", "90000T", "--", "true", PATH=toolkit.path)
    assert done.returncode == 72
    told = json.loads(done.stdout)
    assert told["outcome"]["ending"] == "requirement_not_met"
    assert told["spec"]["needs"] == [*NEEDS[1::2], "memory>=90000T"]
    assert [row["text"] for row in told["outcome"]["stats"]["requirements"]] == told["spec"]["needs"]
    shown = house.rc("describe", told["id"]).stdout.decode()
    table = shown.partition("\n\n")[2].splitlines()
    assert table[0].split() == ["REQUIREMENT", "RESULT", "FOUND"]
    assert [line.split()[:2] for line in table[1:5]] == [
        ["tool:nvcc>=12", "present"],
        ["header:needed_by_tests.h", "absent"],
        ["lib:needed_by_tests", "absent"],
        ["memory>=90000T", "absent"],
    ]
    assert str(toolkit.nvcc) in table[1]
    # Whoever waits for it is told the same, and quietly too: it is why nothing was run.
    for words in (("wait", told["id"]), ("wait", "-q", told["id"])):
        waited = house.rc(*words)
        assert waited.returncode == 72
        assert b"rc: lib:needed_by_tests: absent: " in waited.stderr


def test_a_staged_tree_is_where_relative_paths_begin(house: House, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "config.json").write_text("{}")
    (tree / "tool").write_text("#!/bin/sh\necho 3.1\n")
    (tree / "tool").chmod(0o755)
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    staged = ("run", "--stage", str(tree), "--need", "file:config.json", "--need", "tool:./tool>=3")
    assert house.rc(*staged, "--", "true").returncode == 0
    path = str(rows_of(house)["file:config.json"]["path"])
    assert path.startswith(str(house.paths.attempts))
    assert house.rc(*staged, "--need", "file:other.json", "--", "true").returncode == 72
    assert rows_of(house)["file:other.json"]["result"] == "absent"


def test_explain_says_that_nobody_has_looked(house: House) -> None:
    done = house.rc("run", "--explain", "--need", "cuda-toolkit", "--need-disk", "20480M", "--", "true")
    assert done.returncode == 0
    last = done.stdout.decode().splitlines()[-1]
    assert last.endswith("tool:nvcc, header:cuda_runtime.h, lib:cudart, disk>=20G")
    assert "before the command starts (not looked at now)" in last
    asked = house.rc("run", "--explain", "-o", "json", "--need", "tool:sh", "--", "true")
    assert json.loads(asked.stdout)["needs"] == ["tool:sh"]


@pytest.mark.parametrize(
    ("words", "at"),
    [
        (("--need", "tool:x>>1"), "character 7"),
        (("--need", "nvcc"), "character 1"),
        (("--need", "mount:/data,exec,noexec"), "character 18"),
        (("--need-disk", "20"), "character 7"),
        (("--need-mem", "16GB"), "character 12"),
    ],
)
def test_what_cannot_be_read_is_refused_before_anything_is_asked_for(
    house: House, words: tuple[str, ...], at: str
) -> None:
    before = house.newest()["id"] if house.json("jobs")["jobs"] else None
    done = house.rc("run", "-o", "json", *words, "--", "true")
    error = json.loads(done.stderr.decode().splitlines()[-1])["error"]
    assert (done.returncode, error["code"]) == (64, "invalid_request")
    assert at in error["message"]
    assert error["do"].startswith("for example: --need '")
    example = error["do"].split("'")[1]
    assert house.rc("run", "--explain", "--need", example, "--", "true").returncode == 0
    assert (house.newest()["id"] if house.json("jobs")["jobs"] else None) == before


def test_the_controller_refuses_what_the_command_line_did_not_read(house: House) -> None:
    from tenure.errors import TenureError
    from tenure.sdk.client import Client

    with Client(str(house.paths.ctl_sock)) as client:
        with pytest.raises(TenureError, match="character 7") as refused:
            client.submit(["true"], needs=["tool:x>>1"])
        assert refused.value.code == "invalid_request"
        job = client.wait(client.submit(["true"], needs=[" tool: sh", "disk>=1024K", "disk>=1M"]).id)
    assert job.raw["spec"]["needs"] == ["tool:sh", "disk>=1M"]
    assert job.exit_status == 0


def test_a_job_that_is_killed_while_it_is_looked_ends_quickly(house: House, tmp_path: Path) -> None:
    hold, slow = tmp_path / "hold", tmp_path / "bin/slow"
    slow.parent.mkdir()
    slow.write_text(f"#!/bin/sh\ntouch {hold}\nexec sleep 987\n")
    slow.chmod(0o755)
    gpu = house.gpu(1)
    path = f"{slow.parent}:/usr/bin:/bin"
    asked = house.rc("run", "--detach", "-d", gpu, "--need", "tool:slow>=1", "--", "true", PATH=path)
    job = asked.stdout.decode().strip()
    until(hold.exists, "the tool is asked")
    assert "RESULT" in house.rc("describe", job).stdout.decode()
    began = time.monotonic()
    assert house.rc("kill", "--wait", job).returncode == 0
    assert time.monotonic() - began < 4.0
    done = house.rc("wait", job)
    assert done.returncode == 130, done
    until(lambda: house.rc("run", "-q", "-d", gpu, "--no-wait", "--", "true").returncode == 0, "the device is free")
