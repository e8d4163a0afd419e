"""What a job leaves on its worker is said of that job: real rc, controller and agent, with a root of the test's own."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import House, until

NVCC = "#!/bin/sh\\necho 'Cuda compilation tools, release 12.4, V12.4.131'\\n"


class Worker:
    """A house whose agent looks at a small root instead of the machine's."""

    def __init__(self, house: House, folder: Path, **settings: Any) -> None:
        self.house = house
        self.root = folder / "root"
        self.bin = self.root / "usr/local/bin"
        for made in (self.bin, self.root / "usr/bin", self.root / "opt", self.root / "var/lib/dpkg"):
            made.mkdir(parents=True)
        self.install(self.root / "usr/bin/gcc", "#!/bin/sh\necho gcc 12.2.0\n")
        self.status = self.root / "var/lib/dpkg/status"
        self.status.write_text("".join(map(stanza, ("base-files", "libc6"))))
        claims = folder / "claims"
        claims.mkdir()
        agent = {
            "claims_dir": str(claims),
            "leftovers_root": str(self.root),
            "leftovers_home": str(folder / "home"),
            "leftovers_every_s": 0.1,
            "leftovers_idle_s": 3600,
            **settings,
        }
        house.paths.root.mkdir(parents=True, exist_ok=True)
        (house.paths.root / "embedded.json").write_text(json.dumps({"agent": agent}))
        house.up("2xH100")
        self.device = house.gpu(0)
        until(lambda: self.told() is not None, "the worker was looked at while it was fresh")

    @staticmethod
    def install(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def told(self) -> Any:
        return self.house.json("describe", self.device)["leftovers"]

    def shell(self, script: str, *words: str) -> str:
        """Runs a job to its end; gives its id."""
        done = self.house.rc("run", *words, "--", "/bin/sh", "-c", script)
        assert done.returncode == 0, done
        return str(self.house.newest()["id"])

    def settled(self, job: str) -> dict[str, Any]:
        """What the worker has, once a look began after the end of a job."""

        def seen() -> Any:
            told = self.told()
            return told if job in told["looked_after"] else None

        found: dict[str, Any] = until(seen, f"a look after {job}")
        return found

    def by(self, item: Path | str) -> dict[str, Any]:
        found: dict[str, Any] = next(each["by"] for each in self.told()["leftovers"] if each["item"] == str(item))
        return found


def stanza(name: str, version: str = "1.0") -> str:
    return f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {version}\n\n"


@pytest.fixture
def worker(empty_house: House, tmp_path: Path) -> Worker:
    return Worker(empty_house, tmp_path)


def test_what_a_job_installs_is_said_of_it_to_the_next_and_of_the_worker(worker: Worker) -> None:
    house, nvcc = worker.house, worker.bin / "nvcc"
    assert worker.told()["count"] == 0
    first = worker.shell(
        f'printf "{NVCC}" > {nvcc} && chmod +x {nvcc};'
        f" printf 'Package: cuda-nvcc\\nStatus: install ok installed\\nVersion: 12.4\\n\\n' >> {worker.status}"
    )
    told = worker.settled(first)
    assert told["count"] == 3, told
    assert {each["item"]: each["by"]["jobs"] for each in told["leftovers"]} == {
        str(nvcc): [first],
        "cuda-nvcc": [first],
        str(worker.root / "usr/local"): [first],
    }
    # Half a toolkit is told as what it is: nvcc alone lets nothing be compiled.
    assert any("partial: nvcc; no headers, no libcudart" in each["words"] for each in told["leftovers"])
    assert told["image"]["counts"] == {"tools": 1, "cuda": 0, "packages": 2, "mounts": 0}

    record = house.json("describe", first)["left"]
    assert f"nvcc 12.4 ({nvcc})" in record["words"]
    assert record["count"] == 3
    assert f"nvcc 12.4 ({nvcc})" in house.rc("describe", first).stdout.decode()

    second = worker.shell("sleep 2.5")
    noticed = [n for n in house.json("describe", second)["notices"] if n["kind"] == "leftovers"]
    assert len(noticed) == 1, "told once"
    assert first in noticed[0]["words"]
    assert noticed[0]["facts"]["count"] == 3
    stats = house.json("describe", second)["outcome"]["stats"]["leftovers"]
    assert (stats["count"], stats["from"]) == (3, [first])
    assert house.json("describe", first)["outcome"]["stats"]["leftovers"]["count"] == 0
    shown = house.rc("describe", second).stdout.decode()
    assert f"from {first}" in shown, shown

    page = house.rc("describe", worker.device).stdout.decode()
    row = next(line for line in page.splitlines() if str(nvcc) in line)
    assert first in row, page
    assert "image of" in page

    # What is removed again is no leftover any more, and the one that installed it keeps no blame.
    third = worker.shell(f"rm {nvcc}")
    assert [each["item"] for each in worker.settled(third)["leftovers"]] == ["cuda-nvcc"]


def test_of_two_jobs_at_once_either_may_have_done_it(worker: Worker) -> None:
    house = worker.house
    running = house.start("run", "--", "/bin/sh", "-c", "sleep 4")
    other = until(lambda: next((j["id"] for j in house.json("ps")["jobs"] if j["state"] == "running"), None), "it runs")
    tool = worker.bin / "helper"
    first = worker.shell(f"printf '#!/bin/sh\\n' > {tool}; chmod +x {tool}")
    worker.settled(first)
    assert worker.by(tool)["kind"] == "one_of"
    assert set(worker.by(tool)["jobs"]) == {first, other}
    assert "one of" in house.rc("describe", worker.device).stdout.decode()
    assert other in house.json("describe", first)["left"]["words"]
    assert first in house.json("describe", other)["left"]["words"]
    running.wait(60)
    # By itself again, the next one is the only one it can have been.
    worker.settled(other)
    later = worker.bin / "later"
    third = worker.shell(f"printf '#!/bin/sh\\n' > {later}; chmod +x {later}")
    worker.settled(third)
    assert worker.by(later) == {"kind": "job", "jobs": [third], "more": 0, "words": third}


def test_a_toolkit_without_headers_is_partial_and_of_the_job_that_left_it(worker: Worker) -> None:
    kit = worker.root / "usr/local/cuda-12.4"
    first = worker.shell(f"mkdir -p {kit}/bin && printf '#!/bin/sh\\n' > {kit}/bin/nvcc && chmod +x {kit}/bin/nvcc")
    told = worker.settled(first)
    found = next(each for each in told["leftovers"] if each["item"] == str(kit))
    assert found["words"] == f"CUDA toolkit {kit} (partial: nvcc; no headers, no libcudart)"
    assert found["by"]["jobs"] == [first]
    second = worker.shell(
        f"mkdir -p {kit}/include {kit}/lib64 && : > {kit}/include/cuda_runtime.h && : > {kit}/lib64/libcudart.so.12"
    )
    found = next(each for each in worker.settled(second)["leftovers"] if each["item"] == str(kit))
    assert found["words"] == f"CUDA toolkit {kit} (whole: nvcc, headers, libcudart)"
    assert (found["by"]["jobs"], found["earlier"], found["how"]) == ([second], [first], "added")


def test_an_agent_killed_between_an_end_and_its_look_asks_the_same_job(empty_house: House, tmp_path: Path) -> None:
    # The pause between two looks is longer than the test: the first agent cannot have looked after the job's end.
    worker = Worker(empty_house, tmp_path, leftovers_every_s=3600.0)
    house, tool = worker.house, worker.bin / "left"
    first = worker.shell(f"printf '#!/bin/sh\\n' > {tool}; chmod +x {tool}")
    assert house.json("describe", first)["state"] == "ended"
    assert worker.told()["count"] == 0
    journal = house.paths.journal
    pid = house.pid_of(house.paths.agent_lock)
    assert pid is not None
    until(lambda: not (house.paths.attempts / f"{first}.1" / "spec.json").exists(), "the attempt was forgotten")
    os.kill(pid, signal.SIGKILL)
    assert b"JobsUnlooked" in journal.read_bytes() or first.encode() in journal.read_bytes()
    until(lambda: house.pid_of(house.paths.agent_lock) not in (pid, None), "another agent came up")
    until(lambda: worker.told()["count"] == 1, "the look was made after all", 60)
    assert worker.by(tool) == {"kind": "job", "jobs": [first], "more": 0, "words": first}


def test_what_changes_while_no_job_runs_is_nobodys_and_another_root_is_another_worker(
    empty_house: House, tmp_path: Path
) -> None:
    worker = Worker(empty_house, tmp_path, leftovers_idle_s=0.3)
    house, tool = worker.house, worker.bin / "by-hand"
    first = worker.shell("true")
    worker.settled(first)
    worker.install(tool, "#!/bin/sh\n")
    until(lambda: worker.told()["count"] == 1, "it was seen")
    assert worker.by(tool)["words"] == "outside any job"
    assert house.json("describe", first)["left"]["count"] == 0

    # A rebuilt worker: another root under the same name. What it comes with is its image.
    before = worker.told()["image"]["worker"]
    assert house.rc("down").returncode == 0
    worker.root.rename(tmp_path / "before")
    (worker.root / "usr/bin").mkdir(parents=True)
    worker.install(worker.root / "usr/bin/fresh", "#!/bin/sh\n")
    house.up("2xH100")
    # Until the new agent has looked, the controller tells what the one before it said.
    told = until(lambda: (t := worker.told()) and t["image"]["worker"] != before and t, "the new image", 60)
    assert (told["count"], told["image"]["counts"]["tools"]) == (0, 1)

    # An image that somebody declares takes in what is there.
    worker.install(worker.root / "usr/bin/second", "#!/bin/sh\n")
    until(lambda: worker.told()["count"] == 1, "the second was seen")
    assert house.rc("down").returncode == 0
    settings = house.paths.root / "embedded.json"
    body = json.loads(settings.read_text())
    body["agent"]["image"] = "with the second tool"
    settings.write_text(json.dumps(body))
    house.up("2xH100")
    told = until(lambda: (t := worker.told()) and t["image"]["declared"] and t, "the declared image")
    assert (told["count"], told["image"]["counts"]["tools"]) == (0, 2)
