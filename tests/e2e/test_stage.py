"""A tree staged through all of it: packed by ``rc``, kept by the controller, unpacked and checked by the agent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import House, until

from tenure.sdk import Client

GIT = ("git", "-c", "user.email=a@example.org", "-c", "user.name=A", "-c", "protocol.file.allow=always")
LIST = "find . -printf '%P %y %m %l\\n' | LC_ALL=C sort; find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum"


def git(folder: Path, *words: str) -> str:
    return subprocess.run([*GIT, "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "src/run.sh").write_text("#!/bin/sh\necho it ran\n")
    (folder / "src/run.sh").chmod(0o755)
    (folder / "src/link").symlink_to("run.sh")
    (folder / "src/data").write_bytes(bytes(range(256)))
    (folder / ".gitignore").write_text("*.o\n")
    (folder / "src/main.o").write_text("never carried")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    (folder / "untracked").write_text("carried too")
    return folder


def staged(job: dict[str, Any]) -> dict[str, Any]:
    stage: dict[str, Any] = job["spec"]["stage"]
    return stage


def test_the_tree_arrives_whole_and_its_origin_is_on_record(house: House, repository: Path) -> None:
    done = house.rc("run", "-q", "--stage", str(repository), "--", "sh", "-c", f"./src/run.sh; {LIST}")
    assert done.returncode == 0, done
    assert done.stdout.startswith(b"it ran\n")
    expected = subprocess.run(
        ["sh", "-c", LIST.replace("find .", "find . -path ./.git -prune -o -name '*.o' -prune -o", 1)],
        cwd=repository,
        capture_output=True,
        check=True,
    ).stdout
    names = [line.split(b" ")[0] for line in done.stdout.splitlines()]
    assert {b".gitignore", b"src/run.sh", b"src/link", b"src/data", b"untracked"} <= set(names)
    assert not [name for name in names if b".o" in name or b".git/" in name]
    for line in (b"src/link l 777 run.sh", b"src/run.sh f 755 ", b"src/data f 644 "):
        assert line in done.stdout
        assert line in expected
    stage = staged(house.newest())
    assert stage["commit"] == git(repository, "rev-parse", "HEAD").strip()
    assert stage["dirty"] is True
    assert stage["source"] == str(repository)
    assert len(stage["hash"]) == 64
    shown = house.rc("describe", house.newest()["id"]).stdout.decode()
    assert f"  {stage['hash'][:12]} of {repository}, commit {stage['commit'][:12]}" in shown
    assert "with changes that are not committed" in shown


def test_the_same_content_is_stored_and_sent_once(house: House, repository: Path) -> None:
    (repository / "untracked").unlink()
    assert house.rc("run", "-q", "--stage", str(repository), "--", "true").returncode == 0
    first = staged(house.newest())
    assert first["dirty"] is False
    copy = repository.parent / "elsewhere"
    git(repository.parent, "clone", "-q", str(repository), str(copy))
    (copy / "src/link").unlink()
    (copy / "src/link").symlink_to("run.sh")
    for path in copy.rglob("*"):
        os.utime(path, (0, 0), follow_symlinks=False)
    stored = house.paths.stages / f"{first['hash']}.tree"
    inode = stored.stat().st_ino
    assert house.rc("run", "-q", "--stage", str(copy), "--", "true").returncode == 0
    assert staged(house.newest())["hash"] == first["hash"]
    assert stored.stat().st_ino == inode
    assert list(house.paths.stages.glob("*.part")) == []


def test_what_git_has_and_the_folder_has_not_is_said(house: House, repository: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    (library / "lib.py").write_text("x = 1\n")
    git(library, "add", "-A")
    git(library, "commit", "-qm", "lib")
    git(repository, "submodule", "add", "-q", str(library), "lib")
    git(repository, "submodule", "add", "-q", str(library), "unused")
    git(repository, "commit", "-qm", "two")
    git(repository, "submodule", "deinit", "-q", "-f", "unused")
    (repository / "src/data").unlink()
    os.mkfifo(repository / "pipe")
    done = house.rc("run", "-q", "--stage", str(repository), "--", "sh", "-c", "cat lib/lib.py; ls -d unused; find .")
    assert done.returncode == 0, done
    assert done.stdout.startswith(b"x = 1\nunused\n")
    assert b"src/data" not in done.stdout
    said = done.stderr.decode()
    assert "the submodule 'unused' is not checked out: it is staged as an empty folder" in said
    assert "'src/data' is tracked and not there; it was not staged" in said


def test_a_sparse_checkout_stages_what_it_holds_and_says_so(house: House, repository: Path) -> None:
    (repository / "large").mkdir()
    (repository / "large/file").write_text("x")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "large")
    git(repository, "sparse-checkout", "set", "src")
    done = house.rc("run", "-q", "--stage", str(repository), "--", "sh", "-c", "ls")
    assert done.returncode == 0, done
    assert b"large" not in done.stdout
    assert b"1 files that the sparse checkout leaves out were not staged" in done.stderr
    assert staged(house.newest())["dirty"] is False


def test_without_git_everything_goes_and_names_are_bytes(house: House, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    (folder / "empty").mkdir(parents=True)
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff name\n")).write_text("bytes")
    done = house.rc("run", "-q", "--stage", str(folder), "--", "sh", "-c", "ls -d empty; cat ./*name*")
    assert done.returncode == 0, done
    assert done.stdout == b"empty\nbytes"
    assert staged(house.newest())["commit"] == ""
    assert "dirty" not in staged(house.newest())


def test_a_folder_of_the_tree_is_where_it_begins(house: House, repository: Path) -> None:
    done = house.rc("run", "-q", "--stage", str(repository), "--cwd", "src", "--", "./run.sh")
    assert (done.returncode, done.stdout) == (0, b"it ran\n")
    assert house.rc("run", "-q", "--stage", str(repository), "--cwd", "../..", "--", "true").returncode == 64
    done = house.rc("run", "--stage", str(repository), "--cwd", "nosuch", "--", "true")
    assert done.returncode == 126
    assert b"tree/nosuch: No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: None, "is not there"),
        (lambda folder: folder.write_text(""), "is no folder"),
        (lambda folder: folder.mkdir(), "is empty, or git ignores all of it"),
    ],
)
def test_what_cannot_be_staged_is_refused_by_name(house: House, tmp_path: Path, make: Any, words: str) -> None:
    make(tmp_path / "wrong")
    done = house.rc("run", "--stage", str(tmp_path / "wrong"), "--", "true")
    assert done.returncode == 74
    assert words in done.stderr.decode()
    assert str(tmp_path / "wrong") in done.stderr.decode()


def test_the_key_makes_one_job_of_one_tree(house: House, repository: Path) -> None:
    words = ("run", "-q", "--key", f"k{repository}", "--stage", str(repository), "--", "sh", "-c", "cat untracked")
    assert house.rc(*words).stdout == b"carried too"
    first = house.newest()["id"]
    (house.paths.stages / f"{staged(house.newest())['hash']}.tree").unlink()  # gone with its retention
    assert house.rc(*words).stdout == b"carried too"
    assert house.newest()["id"] == first
    (repository / "untracked").write_text("another tree")
    assert house.rc(*words).returncode == 65


# -- what goes wrong


def test_a_stored_tree_that_was_damaged_fails_by_name_and_runs_nothing(house: House, repository: Path) -> None:
    assert house.rc("run", "-q", "--stage", str(repository), "--", "true").returncode == 0
    stored = house.paths.stages / f"{staged(house.newest())['hash']}.tree"
    stored.write_bytes(stored.read_bytes().replace(bytes(range(256)), bytes(reversed(range(256)))))
    done = house.rc("run", "--stage", str(repository), "--", "echo", "must not run")
    assert done.returncode == 74
    assert done.stdout == b""
    assert "stage failed (the bytes of 'src/data' are not those that were packed)" in done.stderr.decode()
    stored.unlink()


def big(folder: Path, megabytes: int = 96) -> Path:
    """Files that nobody can shorten, and many small ones."""
    folder.mkdir()
    for number in range(4):
        (folder / f"big{number}").write_bytes(os.urandom(megabytes // 4 << 20))
    for number in range(2000):
        (folder / f"d{number % 40}").mkdir(exist_ok=True)
        (folder / f"d{number % 40}" / f"small{number}").write_text(str(number))
    return folder


def sums(folder: Path) -> bytes:
    return subprocess.run(
        ["sh", "-c", "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"],
        cwd=folder,
        capture_output=True,
        check=True,
    ).stdout


SUMS = "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"


def test_an_agent_killed_while_it_unpacks_is_replaced_and_the_tree_is_whole(own_house: House, tmp_path: Path) -> None:
    source = big(tmp_path / "big")
    running = own_house.start("run", "-q", "--stage", str(source), "--", "sh", "-c", SUMS)
    partial = until(lambda: list(own_house.paths.attempts.glob("*/scratch/.tree.partial/big1")), "unpacking", 60)
    agent = own_house.pid_of(own_house.paths.agent_lock)
    assert agent is not None
    os.kill(agent, signal.SIGKILL)
    out, err = running.communicate(timeout=100)
    assert running.returncode == 0, err
    assert out == sums(source)
    assert not partial[0].exists()
    until(lambda: not list(own_house.paths.attempts.glob("*/scratch/*")), "its scratch gone")


def test_a_controller_killed_during_the_upload_is_replaced_and_the_upload_goes_on(
    own_house: House, tmp_path: Path
) -> None:
    source = big(tmp_path / "big", 160)
    running = own_house.start("run", "-q", "--stage", str(source), "--", "sh", "-c", SUMS)
    until(lambda: [p for p in own_house.paths.stages.glob("*.part") if p.stat().st_size > 8 << 20], "an upload", 60)
    controller = own_house.pid_of(own_house.paths.controller_lock)
    assert controller is not None
    os.kill(controller, signal.SIGKILL)
    out, err = running.communicate(timeout=100)
    assert running.returncode == 0, err
    assert out == sums(source)


def test_a_stop_ends_what_is_being_staged(own_house: House, tmp_path: Path) -> None:
    source = big(tmp_path / "big")
    running = own_house.start("run", "-q", "--stage", str(source), "--", "echo", "must not run")
    until(lambda: list(own_house.paths.attempts.glob("*/scratch/.tree.partial")), "unpacking", 60)
    agent = own_house.pid_of(own_house.paths.agent_lock)
    assert agent is not None
    os.kill(agent, signal.SIGSTOP)  # so that it cannot be through before the stop is there
    job = own_house.newest()["id"]
    assert own_house.rc("kill", job).returncode == 0
    os.kill(agent, signal.SIGCONT)
    out, _ = running.communicate(timeout=60)
    assert out == b""
    assert own_house.newest()["outcome"]["ending"] == "cancelled"
    until(lambda: own_house.json("ps")["jobs"] == [] and not _leased(own_house), "its device given back")
    until(lambda: not list(own_house.paths.attempts.glob("*/scratch*")), "its scratch gone")


def test_a_tree_beyond_the_limit_is_refused_before_it_is_sent(own_house: House, tmp_path: Path) -> None:
    assert own_house.rc("down").returncode == 0
    settings = own_house.paths.root / "embedded.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "stage_limit_bytes": 1 << 20}))
    own_house.up()
    (tmp_path / "s").mkdir()
    (tmp_path / "s/large").write_bytes(b"x" * (2 << 20))
    done = own_house.rc("run", "--stage", str(tmp_path / "s"), "--", "true")
    assert done.returncode == 64
    assert b"larger than the 1048576 bytes that one may have here" in done.stderr
    assert list(own_house.paths.stages.iterdir()) == []


@pytest.mark.root(reason="small file systems that are really full: at the controller, and under a job's scratch")
@pytest.mark.parametrize("where", ["controller", "agent"])
def test_a_full_disk_is_named_and_leaves_nothing_behind(empty_house: House, tmp_path: Path, where: str) -> None:
    house = empty_house
    place = house.paths.stages if where == "controller" else house.paths.attempts
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", str(place)], check=True)
    try:
        house.up()
        source = big(tmp_path / "big", 40)
        done = house.rc("run", "-d", "gpu0", "--stage", str(source), "--", "echo", "must not run")
        assert done.returncode == 74, done
        assert done.stdout == b""
        if where == "controller":
            assert b"the controller has no room for" in done.stderr
            assert str(place).encode() in done.stderr
        else:
            assert b"stage failed (the disk of" in done.stderr
            assert b"is full at 'big" in done.stderr
        until(lambda: not [p for p in place.rglob("*") if p.is_file() and p.stat().st_size > 1 << 20], "room again")
        (tmp_path / "small").mkdir()
        (tmp_path / "small/f").write_text("it goes on")
        done = house.rc("run", "-q", "-d", "gpu0", "--stage", str(tmp_path / "small"), "--", "cat", "f")
        assert (done.returncode, done.stdout) == (0, b"it goes on"), done
    finally:
        house.rc("down", "--leave")
        subprocess.run(["umount", "-l", str(place)], check=True)


def _leased(house: House) -> list[str]:
    return [device["name"] for device in house.json("devices")["devices"] if device["lease"]]


# -- scratch


def test_scratch_goes_at_the_end_and_kept_ones_are_listed_and_cleaned(own_house: House) -> None:
    house = own_house
    script = "mkdir -p a/b; echo x > a/b/c; chmod 500 a/b a; pwd"
    done = house.rc("run", "-q", "-d", "gpu0", "--", "sh", "-c", script)
    place = Path(done.stdout.decode().strip())
    until(lambda: not place.exists(), "its scratch gone")
    assert house.rc("jobs", "--kept").stdout == b"no scratch is kept\n"
    done = house.rc("run", "-q", "--keep", "-d", "gpu0", "--", "sh", "-c", "head -c 1000000 /dev/zero > data; pwd")
    place = Path(done.stdout.decode().strip())
    job = house.newest()["id"]
    listed = house.json("jobs", "--kept")["hosts"][0]
    assert [(one["job"], one["path"]) for one in listed["kept"]] == [(job, str(place))]
    assert 1_000_000 <= listed["kept"][0]["bytes"] < 1_100_000
    assert str(place).encode() in house.rc("jobs", "--kept").stdout
    assert str(place).encode() in house.rc("describe", job).stdout
    assert house.rc("admin", "clean").stdout == b"nothing was removed\n"
    assert house.rc("admin", "clean", "--kept", "--older-than", "1h").stdout == b"nothing was removed\n"
    planned = house.rc("admin", "clean", "--kept", "--dry-run", job)
    assert b"would be removed: 1" in planned.stdout
    assert (place / "data").exists()
    assert b"removed: 1, " in house.rc("admin", "clean", "--kept", job).stdout
    assert not place.exists()
    assert house.rc("jobs", "--kept").stdout == b"no scratch is kept\n"


def test_a_live_jobs_scratch_is_never_cleaned(own_house: House) -> None:
    house = own_house
    holder = house.rc("run", "--detach", "--keep", "-d", "gpu0", "--", "sh", "-c", "echo x > data; sleep 300").stdout
    job = holder.decode().strip()
    data = house.paths.attempt(job, 1) / "scratch/data"
    until(data.exists, "the job began")
    done = house.rc("admin", "clean", "--kept", job)
    assert (done.returncode, done.stdout) == (0, b"nothing was removed\n")
    assert data.exists()
    assert house.rc("jobs", "--kept").stdout == b"no scratch is kept\n"
    house.rc("kill", "--wait", job)


def test_scratch_goes_although_the_agent_died_before_it_could(own_house: House) -> None:
    house = own_house
    start = house.start("run", "-q", "-d", "gpu0", "--", "sh", "-c", "echo x > data; pwd; sleep 1")
    folder = until(lambda: list(house.paths.attempts.glob("*/scratch/data")), "the job began")[0].parent
    agent = house.pid_of(house.paths.agent_lock)
    assert agent is not None
    os.kill(agent, signal.SIGSTOP)
    until((folder.parent / "exit.json").exists, "the job ended")
    os.kill(agent, signal.SIGKILL)
    start.communicate(timeout=60)
    until(lambda: not folder.exists(), "its scratch gone", 60)


def test_a_large_scratch_does_not_delay_the_end(own_house: House) -> None:
    script = "for i in $(seq 60); do mkdir d$i; (cd d$i; seq 1000 | xargs touch); done; date +%s.%N"
    done = own_house.rc("run", "-q", "-d", "gpu0", "--", "sh", "-c", script, timeout=100)
    late = time.time() - float(done.stdout)
    assert done.returncode == 0
    assert late < 2.0, f"the end was told {late:.1f} s after the last line"
    until(lambda: not list(own_house.paths.attempts.glob("*/scratch*")), "its scratch gone", 60)


def test_orphans_of_another_life_are_cleaned(own_house: House) -> None:
    orphan = own_house.paths.attempts / "jorphan0000.1"
    shutil.copytree(Path(__file__).parent, orphan / "scratch")
    (orphan / "exit.json").write_text('{"kind": "exited", "output_bytes": 0}')
    planned = own_house.rc("admin", "clean", "--dry-run")
    assert b"jorphan0000" in planned.stdout
    assert orphan.exists()
    assert b"removed: 1, " in own_house.rc("admin", "clean").stdout
    assert not orphan.exists()


def test_the_client_stages_too(house: House, repository: Path) -> None:
    with Client(str(house.paths.ctl_sock)) as client:
        job = client.submit(["cat", "untracked"], stage=repository, env={"PATH": os.environ["PATH"]})
        assert client.wait(job.id).exit_status == 0
        assert client.output(job.id) == b"carried too"
