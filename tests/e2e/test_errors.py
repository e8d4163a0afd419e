"""Each thing that can be wrong with what a user gave or a disk holds: its code, exit status, the file or key at fault,
and the advice, which is followed to show that the error goes away. Nothing is lost, and the good part goes on.

Everything is real: the program, the controller, the agent, the files. Only the NVML library answers from a scenario.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import RC, House, _house, until
from tests.e2e.wrong import Case, Spoilt, flip, in_words, into_folder, refused

from tenure.errors import TenureError
from tenure.mounts import find_mount
from tenure.sdk import embedded
from tenure.testing.nvml import Scenario

# -- what a user gives ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "at_fault"),
    [
        (("run", "--select", "vram>>1", "--", "true"), "invalid_selector", "vram>"),
        (("run", "--select", "vram>=1X", "--", "true"), "invalid_selector", "vram>="),
        (("explain", "class in (a"), "invalid_selector", "class"),
        (("run", "--select", "vram>=4000G", "--", "true"), "no_matching_device", "vram>=4000G"),
        (("run", "--select", "vramm>=1G", "--", "true"), "no_matching_device", "no such label"),
        (("run", "--select", "simulated=true", "--count", "9", "--", "true"), "no_matching_device", "9"),
        (("run", "-d", "gpu77", "--", "true"), "unknown_device", "gpu77"),
        (("describe", "no:gpu0"), "unknown_device", "no:gpu0"),
        (("logs", "jnothing"), "unknown_job", "jnothing"),
        (("wait", "jnothing"), "unknown_job", "jnothing"),
        (("kill", "jnothing"), "unknown_job", "jnothing"),
        (("verify", "jnothing"), "unknown_job", "jnothing"),
        (("run", "--window", "period=0", "--", "true"), "usage", "period=0"),
        (("run", "--env", "=x", "--", "true"), "usage", "=x"),
        (("run", "--priority", "99", "--", "true"), "invalid_request", "priority"),
    ],
)
def test_a_request_that_cannot_be_met_runs_nothing(
    house: House, words: tuple[str, ...], code: str, at_fault: str
) -> None:
    before = len(house.json("jobs")["jobs"])
    error = refused(house, *words, code=code)
    assert at_fault in error.message
    if code != "usage":
        in_words(house, error, *words)
    # What it says to type next works: a command of ours, or the example of a selector.
    typed = re.search(r"rc (describe DEVICE|devices|jobs|run --help|run \[OPTIONS\])", error.do)
    example = re.search(r"--select '([^']+)'", error.do)
    listed = re.search(r"the devices are: (\S+?)(?:,|;|$)", error.do)
    fewer = re.search(r"ask for at most (\d+)", error.do)
    assert typed or example or listed or fewer or code == "invalid_request", error.do
    if fewer:
        assert house.rc("explain", "simulated=true", "--count", fewer[1]).returncode == 0
    if typed and typed[1] in ("devices", "jobs"):
        assert house.rc(typed[1]).returncode == 0
    if typed and typed[1] == "describe DEVICE":
        assert b"vram" in house.rc("describe", house.gpu(0)).stdout
    if example:
        assert house.rc("explain", example[1]).returncode in (0, 67)
    if listed:
        assert house.rc("describe", listed[1]).returncode == 0
    assert len(house.json("jobs")["jobs"]) == before


@pytest.mark.parametrize(
    ("content", "code", "key"),
    [
        (b"color = \n", "invalid_configuration", ""),
        (b"color = '\xff'\n", "invalid_configuration", ""),
        (b"color = 7\n", "invalid_configuration", "color"),
        (b"[window]\nspan = 'long'\n", "invalid_configuration", "window"),
        (b"colour = 'never'\n", "invalid_configuration", "colour"),
        (None, "not_configured", ""),
    ],
)
def test_a_configuration_that_cannot_be_used(house: House, content: bytes | None, code: str, key: str) -> None:
    config = house.paths.config
    config.mkdir() if content is None else config.write_bytes(content)
    try:
        error = refused(house, "run", "-q", "-d", house.gpu(0), "--", "true", code=code)
        assert str(config) in error.message
        assert key in error.message
        assert (error.facts["path"], error.facts.get("key") or "") == (str(config), key)
        # What does not need it goes on, and tables say that it was left out.
        listed = house.rc("devices")
        assert (listed.returncode, listed.stdout.count(b" simulated ")) == (0, 3)
        assert key == "window" or str(config).encode() in listed.stderr
        if key:
            config.write_text("".join(line for line in config.read_text().splitlines(True) if key not in line)[:0])
        else:
            error.obey()
        assert house.rc("run", "-q", "-d", house.gpu(0), "--", "true").returncode == 0
    finally:
        for left in (config, config.with_name("config.toml.aside")):
            if left.is_dir():
                left.rmdir()
            left.unlink(missing_ok=True)


def test_a_variable_that_cannot_be_used(house: House) -> None:
    error = refused(house, "run", "--", "true", code="invalid_configuration", TENURE_WINDOW="samples=none")
    assert "TENURE_WINDOW" in error.message
    assert error.do.endswith("unset TENURE_WINDOW")


def test_a_bad_label_of_one_device_hides_no_other(own_house: House) -> None:
    house, scenario = own_house, Scenario(own_house.paths.sim_scenario)
    bad = house.gpu(0)
    scenario.fault(0, "nvmlDeviceGetMemoryInfo*", "NOT_SUPPORTED")
    scenario.set(1, "name", "\x1b[31mH100\x07 (tm)")
    assert house.rc("down").returncode == 0
    house.up()
    told = house.json("explain", "vram>=70G")["devices"]
    assert told[bad]["reason"] != "matches"
    assert "vram" in told[bad]["reason"]
    assert [name for name, row in told.items() if row["reason"] == "matches"] == [house.gpu(1), house.gpu(2)]
    page = house.rc("devices").stdout.decode()
    assert page.count(" simulated ") == 3
    assert all(line.isprintable() for line in page.splitlines())
    assert house.rc("run", "-q", "--select", "vram>=70G", "--", "true").returncode == 0


# -- what a disk holds ---------------------------------------------------------------------------------------------


def ledger(house: House) -> Path:
    return house.paths.ledger_db


def newer_schema(house: House) -> None:
    with contextlib.closing(sqlite3.connect(house.paths.ledger_db)) as raw, raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")


def older_schema_again(house: House) -> None:
    with contextlib.closing(sqlite3.connect(house.paths.ledger_db)) as raw, raw:
        from tenure.ledger import tables

        raw.execute("UPDATE alembic_version SET version_num = ?", (tables.REVISION,))


def write_file(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.write_text("x")


def take_output_away(house: House) -> None:
    house.paths.output.rename(house.home / "output")
    write_file(house.paths.output)


def put_back_output(house: House) -> None:
    house.paths.output.unlink()
    (house.home / "output").rename(house.paths.output)


def settings(house: House) -> Path:
    return house.paths.root / "embedded.json"


def baselines(house: House) -> Path:
    return house.paths.agent / "baselines.json"


CASES = [
    Case("ledger random", "damaged_state", ledger, lambda h: ledger(h).write_bytes(os.urandom(9000)), keeps=False),
    Case("ledger cut off", "damaged_state", ledger, lambda h: os.truncate(ledger(h), 20_000), keeps=False),
    Case("ledger empty", "damaged_state", ledger, lambda h: os.truncate(ledger(h), 0), keeps=False),
    Case("ledger a folder", "damaged_state", ledger, lambda h: into_folder(ledger(h)), keeps=False),
    Case("ledger newer", "damaged_state", ledger, newer_schema, mend=older_schema_again),
    Case(
        "socket a file",
        "io_error",
        lambda h: h.paths.ctl_sock,
        lambda h: write_file(h.paths.ctl_sock),
    ),
    Case(
        "a file for a folder",
        "io_error",
        lambda h: h.paths.output,
        take_output_away,
        mend=put_back_output,
    ),
    Case("settings no JSON", "invalid_configuration", settings, lambda h: settings(h).write_text("{")),
    Case("settings empty", "invalid_configuration", settings, lambda h: settings(h).write_text("")),
    Case("settings a list", "invalid_configuration", settings, lambda h: settings(h).write_text("[]")),
    Case("settings a folder", "invalid_configuration", settings, lambda h: into_folder(settings(h))),
    Case(
        "settings of a wrong type",
        "invalid_configuration",
        settings,
        lambda h: settings(h).write_text('{"agent": {"sample_every_s": "often"}}'),
        key="agent.sample_every_s",
        mend=lambda h: settings(h).write_text('{"sim": "2xH100"}'),
        serves=True,
    ),
    Case(
        "scenario random",
        "damaged_state",
        lambda h: h.paths.sim_scenario,
        lambda h: h.paths.sim_scenario.write_bytes(os.urandom(500)),
    ),
    Case(
        "identity cut off",
        "damaged_state",
        lambda h: h.paths.identity,
        lambda h: os.truncate(h.paths.identity, 20),
        serves=True,
    ),
    Case(
        "identity empty",
        "damaged_state",
        lambda h: h.paths.identity,
        lambda h: os.truncate(h.paths.identity, 0),
        serves=True,
    ),
    Case(
        "identity a folder",
        "io_error",
        lambda h: h.paths.identity,
        lambda h: into_folder(h.paths.identity),
        serves=True,
    ),
    Case(
        "journal damaged in the middle",
        "damaged_state",
        lambda h: h.paths.journal,
        lambda h: flip(h.paths.journal, 100),
        serves=True,
    ),
    Case(
        "journal empty",
        "damaged_state",
        lambda h: h.paths.journal,
        lambda h: os.truncate(h.paths.journal, 0),
        serves=True,
    ),
    Case(
        "journal a folder", "io_error", lambda h: h.paths.journal, lambda h: into_folder(h.paths.journal), serves=True
    ),
]


@pytest.fixture(scope="module")
def spoilt(library: Path) -> Iterator[Spoilt]:
    for house in _house(library):
        made = Spoilt(house)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_state_that_cannot_be_used(spoilt: Spoilt, case: Case) -> None:
    house = spoilt.house
    spoilt.restore()
    case.harm(house)
    file = case.file(house)
    before = file.read_bytes() if file.is_file() else None
    error = refused(house, "up", "--sim", "2xH100", code=case.code)
    assert str(file) in error.message
    assert case.key in error.message
    assert error.facts["path"] == str(file)
    # Nothing at fault is touched; the settings get what this command was asked for, and keep what was there.
    assert before is None or file.read_bytes() == before or (case.key and b"often" in file.read_bytes())
    if case.serves:
        # The controller answers, and says of the agent what rc up said.
        assert spoilt.history_is_whole()
        status = house.json("status")
        assert (status["agent_failure"]["code"], status["agent_failure"]["do"]) == (error.code, error.do)
        assert str(file) in house.rc("status").stdout.decode()
        assert {d["state"] for d in house.json("devices")["devices"]} == {"unknown"}
    else:
        assert house.rc("status").returncode == 69
    if case.mend is not None:
        case.mend(house)
    else:
        error.obey()
    if before is not None and case.mend is None and "mv" in error.do:
        assert any(left.read_bytes() == before for left in file.parent.glob(f"{file.name}.*")), "it is kept aside"
    house.up("2xH100")
    assert house.rc("run", "-q", "--select", "simulated=true", "--", "true").returncode == 0
    if case.keeps:
        assert spoilt.history_is_whole()
    elif before is not None:
        kept = house.paths.controller.with_name("controller.damaged") / "output"
        assert [path.read_bytes() for path in kept.glob(f"{spoilt.job}.*.bin")] == [b"kept\n"]


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("a torn tail of the journal", lambda h: h.paths.journal.open("ab").write(b"\xf7\x01 torn")),
        ("damaged baselines", lambda h: baselines(h).write_text("{")),
        ("no baselines", lambda h: baselines(h).unlink()),
        ("an unknown key of the settings", lambda h: settings(h).write_text('{"from": "later", "agent": {"x": 1}}')),
    ],
)
def test_what_is_no_error(spoilt: Spoilt, name: str, harm: object) -> None:
    house = spoilt.house
    spoilt.restore()
    assert callable(harm)
    harm(house)
    house.up("2xH100")
    assert spoilt.history_is_whole()
    until(lambda: [d["state"] for d in house.json("devices")["devices"] if d["simulated"]] == ["ready"] * 2, name)
    assert house.rc("run", "-q", "-d", house.gpu(0), "--", "true").returncode == 0
    if baselines(house).name in name or "baselines" in name:
        measured = until(lambda: baselines(house).exists() and json.loads(baselines(house).read_text()), "measured")
        assert measured


@pytest.mark.parametrize(
    "harm", [lambda path: flip(path, 60), lambda path: os.truncate(path, 0)], ids=["flip", "empty"]
)
def test_a_job_goes_on_while_the_agents_journal_is_damaged(
    own_house: House, tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    house, go = own_house, tmp_path / "go"
    script = f"echo begun; until [ -e {go} ]; do sleep 0.05; done; echo ended; exit 9"
    job = house.rc("run", "--detach", "-d", house.gpu(0), "--", "sh", "-c", script).stdout.decode().strip()
    until(lambda: house.rc("logs", job).stdout == b"begun\n", "it has begun")
    pid = house.json("describe", job)["pid"]
    assert house.rc("down", "--leave").returncode == 0
    whole = house.paths.journal.read_bytes()
    harm(house.paths.journal)
    error = refused(house, "up", code="damaged_state")
    assert str(house.paths.journal) in error.message
    assert [j["id"] for j in house.json("ps")["jobs"]] == [job]
    assert house.rc("logs", job).stdout == b"begun\n"
    assert Path(f"/proc/{pid}").exists()
    # The device is not free while nobody can look at it.
    assert {d["free"] for d in house.json("devices")["devices"]} == {False}
    house.paths.journal.write_bytes(whole)  # a backup in its place; the agent is tried again by itself
    until(lambda: house.json("status")["agent_failure"] is None, "the agent comes up", 40)
    go.touch()
    assert house.rc("wait", job).returncode == 9
    assert house.rc("logs", job).stdout == b"begun\nended\n"


# -- who is there already ------------------------------------------------------------------------------------------


def test_a_second_up_a_second_controller_and_a_lock_held_by_another(own_house: House) -> None:
    house = own_house
    pid = house.json("status")["pid"]
    assert house.json("up", "--sim", "3xH100")["started"] is False
    error = refused(house, "up", "--sim", "4xA100", code="already_running")
    assert (f"pid {pid}" in error.message, error.facts["pid"]) == (True, pid)
    assert "rc down" in error.do
    assert "rc up --sim 4xA100" in error.do
    second = subprocess.run(
        [sys.executable, "-m", "tenure.controller", "--embedded"], env=house.env, capture_output=True, timeout=30
    )
    assert second.returncode == 73
    assert f"pid {pid}" in second.stderr.decode()
    assert house.json("status")["pid"] == pid
    for words in (("down",), ("up", "--sim", "4xA100")):  # as it said
        assert house.rc(*words).returncode == 0
    assert len([d for d in house.json("devices")["devices"] if d["simulated"] and d["state"] == "ready"]) == 4
    assert house.rc("down").returncode == 0
    with house.paths.controller_lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.truncate(0)
        held.write(f"{os.getpid()}\n")
        held.flush()
        with pytest.raises(TenureError) as raised:
            embedded.ensure_running(house.paths, deadline_s=4)
    assert raised.value.code == "already_running"
    assert str(house.paths.controller_lock) in raised.value.message
    assert f"process {os.getpid()}" in raised.value.message
    house.up("4xA100")


# -- disks ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(place: Path, size_kib: int) -> Iterator[Path]:
    """A file system of its own in memory."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, leave_kib: int) -> Path:
    """Fills a disk but for so many KiB; gives the file that does it."""
    filler = disk / "filler"
    found = os.statvfs(disk)
    with filler.open("wb", buffering=0) as file:
        left = found.f_bavail * found.f_frsize - leave_kib * 1024
        with contextlib.suppress(OSError):
            while left > 0:
                left -= file.write(b"\0" * min(left, 1 << 16))
    return filler


@pytest.mark.root(reason="mounts a small disk, to show what a full one makes of a start")
@pytest.mark.parametrize("leave_kib", [0, 8, 64])
def test_a_start_on_a_full_disk(empty_house: House, tmp_path: Path, leave_kib: int) -> None:
    with small_disk(tmp_path / "disk", 8192) as disk:
        house = House(disk / "home", empty_house.paths.sim)
        try:
            house.paths.create()
            filler = fill(disk, leave_kib)
            error = refused(house, "up", code="disk_full")
            assert str(disk) in error.message
            assert "df -h" in error.do
            shown = subprocess.run(error.do[error.do.index("df -h") :].split(), capture_output=True, check=True)
            assert str(disk).encode() in shown.stdout
            filler.unlink()
            house.up("1xH100")
            assert house.rc("run", "-q", "-d", house.gpu(0), "--", "true").returncode == 0
        finally:
            house.tear_down()


@pytest.mark.root(reason="mounts a small disk, to show what becomes of jobs while it is full")
def test_a_disk_that_runs_full(empty_house: House, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16384) as disk:
        house = House(disk / "home", empty_house.paths.sim)
        try:
            house.up("2xH100")
            go = tmp_path / "go"
            script = f"echo begun; until [ -e {go} ]; do sleep 0.05; done; exit 9"
            running = house.rc("run", "--detach", "-d", house.gpu(0), "--", "sh", "-c", script).stdout.decode().strip()
            until(lambda: house.rc("logs", running).stdout == b"begun\n", "it has begun")
            name = house.gpu(1)
            filler = fill(disk, 0)
            error = refused(house, "run", "-d", name, "--key", "k", "--", "true", code="disk_full")
            assert str(house.paths.ledger_db) in error.message
            assert "df -h" in error.do
            assert house.rc("devices").returncode == house.rc("ps").returncode == 0
            assert [j["id"] for j in house.json("jobs")["jobs"]] == [running]
            filler.unlink()
            assert house.rc("run", "-q", "-d", name, "--key", "k", "--", "true").returncode == 0
            go.touch()
            assert house.rc("wait", running).returncode == 9
        finally:
            house.tear_down()


@pytest.mark.root(reason="gives up root's right to read everything, to show what one may not read")
def test_a_ledger_that_may_not_be_read(spoilt: Spoilt) -> None:
    spoilt.restore()
    house, file = spoilt.house, spoilt.house.paths.ledger_db
    plain = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]

    def rc(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*plain, RC, *words], env=house.env, capture_output=True, timeout=60, check=False)

    file.chmod(0)
    done = rc("up", "-o", "json")
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert (done.returncode, error["code"]) == (74, "io_error")
    assert str(file) in error["message"]
    subprocess.run([*plain, *error["do"][error["do"].index("chmod") :].split()], check=True)
    assert rc("up").returncode == 0
    assert spoilt.history_is_whole()


# -- network file systems ------------------------------------------------------------------------------------------


@pytest.mark.root(reason="mounts a file system that the kernel lists as sshfs, to show that it is refused by name")
def test_a_home_on_a_network_file_system(tmp_path: Path, empty_house: House) -> None:
    place = tmp_path / "share"
    place.mkdir()
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("fuse_share.py")), str(place), "server:/export"],
        stdout=subprocess.PIPE,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"mounted\n"
        assert f" {place} " in (mounts := Path("/proc/self/mountinfo").read_text()), mounts
        error = refused(empty_house, "up", code="network_file_system", TENURE_HOME=str(place / "home"), timeout=60)
        assert "fuse.sshfs" in error.message
        assert "server:/export" in error.message
        assert error.facts["mount_point"] == str(place)
        local = re.search(r"TENURE_HOME=(\S+?)\.?$", error.do)
        assert local, error.do
        assert not list(place.iterdir())
        mount = find_mount(Path(local[1]).parent)
        assert mount is None or not mount.is_network
        assert empty_house.rc("up").returncode == 0  # a home beside it goes on
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)
        server.kill()
        server.wait()
