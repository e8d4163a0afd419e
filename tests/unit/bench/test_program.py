"""The program that is started and the pipe it speaks on, for real."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench import processes
from bench.program import Stamps, compile_program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("stamp"))


@pytest.fixture
def stamps(tmp_path: Path, program: Path) -> Iterator[Stamps]:
    made = Stamps(tmp_path, program)
    yield made
    made.close()


def test_it_says_when_it_began_on_the_clock_of_this_process(stamps: Stamps) -> None:
    tags = [stamps.tag() for _ in range(3)]
    before = time.monotonic_ns()
    for tag in tags:
        subprocess.run(stamps.argv(tag), check=True, timeout=10)
    began = stamps.wait_all(list(reversed(tags)), 10)
    assert before < began[2] < began[1] < began[0] < time.monotonic_ns()


def test_who_never_begins_is_counted(stamps: Stamps) -> None:
    with pytest.raises(TimeoutError, match="1 of 1 jobs"):
        stamps.wait(stamps.tag(), 0.05)


def test_without_a_reader_it_fails_and_does_not_wait(tmp_path: Path, program: Path) -> None:
    made = Stamps(tmp_path, program)
    made.close()
    assert subprocess.run(made.argv("t"), timeout=10, check=False).returncode == 1


def test_the_stubborn_one_ignores_sigterm_from_its_stamp_on(stamps: Stamps) -> None:
    tag = stamps.tag()
    with subprocess.Popen(stamps.argv(tag, "stubborn")) as process:
        try:
            stamps.wait(tag, 10)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.1)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL


def test_a_tree_is_so_many_processes_and_is_found_by_its_folder(stamps: Stamps, tmp_path: Path) -> None:
    tag = stamps.tag()
    with subprocess.Popen(stamps.argv(tag, "tree", "4"), start_new_session=True) as process:
        try:
            stamps.wait(tag, 10)
            tree = processes.descendants([process.pid])
            assert len(tree) == 4
            assert tree <= processes.mentioning(str(tmp_path))
            assert processes.cpu_seconds(tree) < 1.0
            assert processes.memory_kib(process.pid)["Pss"] > 0
        finally:
            # A pid that does not carry the mark is let be, whoever gave it.
            processes.end(processes.descendants([process.pid]), mark="another folder")
            assert process.poll() is None
            processes.end(processes.descendants([process.pid]), mark=str(tmp_path))
    assert not processes.mentioning(str(tmp_path))


def test_what_is_gone_weighs_and_spends_nothing() -> None:
    process = subprocess.Popen(["true"])
    process.wait(10)
    assert processes.gone(process.pid)
    assert processes.memory_kib(process.pid) == {}
    assert processes.cpu_seconds([process.pid]) == 0
    assert processes.command(process.pid) == ""
    assert processes.descendants([process.pid]) == set()
