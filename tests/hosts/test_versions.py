"""A host's agent is replaced by another version and back again while a job runs: it notices nothing.

The other version is what this repository was at one commit, with its own ``PYTHONPATH`` on the same home folder. It
speaks version 1 of the wire.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kill.harness import Home, homes, is_alive, members

pytestmark = pytest.mark.timeout(240)

#: ``git archive c2ea6bd src/tenure`` without command line, SDK and simulations: kept, because not every checkout has
#: its history.
OLD = Path(__file__).parents[1] / "upgrade" / "c2ea6bd.tar.xz"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source folder of the other version."""
    folder = tmp_path_factory.mktemp("old")
    subprocess.run(["tar", "-xJf", OLD, "-C", folder], check=True, timeout=60)
    return folder / "src"


class Agents:
    """The agent of one home, of whichever version."""

    def __init__(self, home: Home, old: Path) -> None:
        self.home, self.old = home, old
        self.process: subprocess.Popen[bytes] | None = None

    def replace(self, version: str, number: int = signal.SIGTERM) -> None:
        """Ends the agent that runs, and starts one of a version; waits until it is in contact."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(30)
        env = {**self.home.environment, **({"PYTHONPATH": str(self.old)} if version == "old" else {})}
        words = [sys.executable, "-P", "-c", "import tenure; print(tenure.__file__)"]
        found = subprocess.run(words, env=env, capture_output=True, text=True, check=True, timeout=30).stdout
        assert found.startswith(str(self.old)) == (version == "old"), found
        before = self.instance()
        with self.home.layout.agent_log.open("ab") as out:
            process = self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tenure.agent", "--verbose"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd="/",
                env=env,
                start_new_session=True,
            )
        self.home.wait(
            lambda: (
                process.poll() is not None or (self.instance() != before and self.home.devices()["gpu0"]["contact"])
            ),
            f"the {version} agent",
            30,
        )
        assert process.poll() is None, f"the {version} agent ended with {process.returncode}\n{self.home.logs(20)}"

    def instance(self) -> str:
        agents = self.home.ask("GET", "/v1/status")["agents"]
        return str(agents[0]["instance"]) if agents else ""


@pytest.fixture
def agents(old: Path) -> Iterator[Agents]:
    with homes() as make:
        home = make(sim="1xH100", restart_controller=False)
        with home.layout.controller_log.open("ab") as out:
            home.children.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tenure.controller"],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    cwd="/",
                    env=home.environment,
                    start_new_session=True,
                )
            )
        home.answers()
        yield Agents(home, old)


LINES = "i=0; while [ ! -e {over} ]; do echo line $i; i=$((i+1)); sleep 0.02; done; exit 7"


@pytest.mark.parametrize(("first", "number"), [("old", signal.SIGTERM), ("new", signal.SIGKILL)], ids=["old", "new"])
def test_a_job_goes_on_under_agents_of_two_versions(agents: Agents, tmp_path: Path, first: str, number: int) -> None:
    home, second = agents.home, "new" if first == "old" else "old"
    agents.replace(first)
    home.device("gpu0", "ready")
    over = tmp_path / "over"
    job = home.submit(["/bin/sh", "-c", LINES.format(over=over)], device="h:gpu0")["id"]
    pid = home.reaches(job, "running")["pid"]
    for version in (second, first, second):
        lines = len(home.output(job).splitlines())
        _more(home, str(job), lines + 20)
        agents.replace(version, number)
        home.device("gpu0", "busy")
        assert is_alive(pid)
        assert home.job(job)["pid"] == pid
    over.touch()
    record = home.ended(job)
    assert (record["outcome"]["ending"], record["exit_status"], record["pid"]) == ("exited", 7, pid)
    said = home.output(job).decode().splitlines()
    assert said == [f"line {n}" for n in range(len(said))]
    assert len(said) > 60
    home.device("gpu0", "ready")


def _more(home: Home, job: str, lines: int) -> None:
    home.wait(lambda: len(home.output(job).splitlines()) > lines, f"more than {lines} lines of output")


@pytest.mark.parametrize("first", ["old", "new"])
def test_a_job_of_one_version_is_stopped_by_the_other(agents: Agents, first: str) -> None:
    home, second = agents.home, "new" if first == "old" else "old"
    agents.replace(first)
    home.device("gpu0", "ready")
    job = home.submit(["/bin/sh", "-c", "setsid sleep 600 & sleep 600"], device="h:gpu0", grace_s=0.5)["id"]
    home.reaches(job, "running")
    home.wait(lambda: len(members(job)) >= 3, "its tree")
    agents.replace(second)
    home.ask("POST", f"/v1/jobs/{job}/stop", {"reason": "test"})
    assert home.ended(job)["outcome"]["ending"] == "signaled"
    assert not members(job)
    home.device("gpu0", "ready")


def _controller(home: Home, path: Path | None) -> subprocess.Popen[bytes]:
    """A controller of today, or of the version at ``path``."""
    env = {**home.environment, **({"PYTHONPATH": str(path)} if path is not None else {})}
    with home.layout.controller_log.open("ab") as out:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "tenure.controller"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd="/",
            env=env,
            start_new_session=True,
        )
    home.children.append(child)
    return child


def test_a_controller_goes_back_to_the_other_version_and_forward_again(agents: Agents, tmp_path: Path) -> None:
    home = agents.home
    agents.replace("new")
    home.device("gpu0", "ready")
    before = home.submit(["/bin/sh", "-c", "echo before; exit 3"], device="h:gpu0")["id"]
    assert home.ended(before)["exit_status"] == 3
    over = tmp_path / "over"
    job = home.submit(["/bin/sh", "-c", LINES.format(over=over)], device="h:gpu0")["id"]
    pid = home.reaches(job, "running")["pid"]
    back = [sys.executable, "-m", "tenure.ledger.migrations", "0001"]

    def take_back() -> subprocess.CompletedProcess[str]:
        return subprocess.run(back, env=home.environment, capture_output=True, text=True, check=False, timeout=60)

    running = take_back()
    assert running.returncode == 73, running
    assert "rc down --leave" in running.stderr
    home.kill("controller")

    # As it is, the other version refuses it, by name, and changes nothing.
    ledger = home.layout.ledger_db.read_bytes()
    assert _controller(home, agents.old).wait(30) == 74
    assert "its schema is 0002" in home.layout.controller_log.read_text()
    assert home.layout.ledger_db.read_bytes() == ledger

    for version in (agents.old, None):
        if version is not None:
            done = take_back()
            assert done.returncode == 0, done
        _controller(home, version)
        home.answers()
        home.device("gpu0", "busy")
        found = home.job(job)
        assert (found["state"], found["pid"], found["attempt"]) == ("running", pid, 1)
        assert home.job(before)["exit_status"] == 3
        assert home.output(before) == b"before\n"
        lines = len(home.output(job).splitlines())
        _more(home, str(job), lines + 20)
        if version is not None:
            home.kill("controller")
    over.touch()
    assert home.ended(job)["exit_status"] == 7
    said = home.output(job).decode().splitlines()
    assert said == [f"line {n}" for n in range(len(said))]
    home.device("gpu0", "ready")


def test_the_journal_of_today_is_read_by_the_other_version(agents: Agents) -> None:
    home = agents.home
    settings = home.layout.root / "embedded.json"
    body = json.loads(settings.read_text())
    body["agent"] |= {"leftovers_every_s": 0.1, "bounds": {"default": {"max_runtime": "1h"}}}
    settings.write_text(json.dumps(body))
    agents.replace("new")
    home.device("gpu0", "ready")
    whole = {"max_runtime_s": 60.0, "idle_timeout_s": 60.0, "needs": ["tool:sh"], "keep": True, "umask": 0o27}
    for code in (3, 4):
        job = home.submit(["/bin/sh", "-c", f"echo x; exit {code}"], device="h:gpu0", **whole)["id"]
        assert home.ended(job)["exit_status"] == code
    slow = home.submit(["/bin/sleep", "600"], device="h:gpu0", grace_s=0.2, **{**whole, "max_runtime_s": 2.0})["id"]
    assert "runtime" in home.ended(slow)["words"]
    home.device("gpu0", "ready")
    going = home.submit(["/bin/sleep", "600"], device="h:gpu0", grace_s=0.2, **whole)["id"]
    pid = home.reaches(going, "running")["pid"]
    home.wait(lambda: b"JobsUnlooked" in home.layout.journal.read_bytes(), "a look at what was left")
    agents.replace("old")
    home.device("gpu0", "busy")
    assert home.job(going)["pid"] == pid
    home.ask("POST", f"/v1/jobs/{going}/stop", {"reason": "test"})
    assert home.ended(going)["outcome"]["ending"] == "signaled"
    agents.replace("new")
    home.device("gpu0", "ready")
