"""The ledger's file: made whole or not at all, refused when it is damaged, left as it was, and bounded in size."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from tests.contract import ledger_world as world

from tenure.domain import commands as cmd
from tenure.domain.fleet import handle
from tenure.domain.state import FleetState
from tenure.errors import TenureError
from tenure.ledger import Ledger, Writer, tables
from tenure.ledger.check import disagreements
from tenure.ledger.sqlite import SqliteLedger, _engine


def at(folder: Path) -> Path:
    return folder / "controller" / "ledger.db"


def fill(path: Path, jobs: int = 3, *, close: bool = True) -> Ledger:
    """A ledger with some history in it."""
    ledger, state = Ledger.open(path), FleetState()
    ledger.load(state)
    commands: list[cmd.Command] = [world.register()]
    commands += [world.submit(f"j{n}", label="x" * 200) for n in range(jobs)]
    for command in commands:
        ledger.commit(handle(state, command, world.T0).events, state)
        state.drain()
    if close:
        ledger.close()
    return ledger


def crash(path: Path, jobs: int = 3) -> None:
    """A ledger with history, as a process leaves it that is killed: with its write-ahead log."""
    child = os.fork()
    if child == 0:
        try:
            kept = fill(path, jobs, close=False)
            os._exit(0 if kept else 1)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert log_bytes(path) > 0


def log_bytes(path: Path) -> int:
    log = path.with_name("ledger.db-wal")
    return log.stat().st_size if log.exists() else 0


def prints(folder: Path) -> dict[str, str]:
    """A fingerprint of every file; the -shm is memory that SQLite shares and rebuilds, not content."""
    return {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest() if each.is_file() else "folder"
        for each in folder.iterdir()
        if not each.name.endswith("-shm")
    }


def open_and_load(path: Path) -> FleetState:
    ledger, state = Ledger.open(path), FleetState()
    try:
        ledger.load(state)
        assert disagreements(ledger, state) == []
    finally:
        ledger.close()
    return state


def refused(path: Path, code: str = "damaged_state") -> TenureError:
    """Opening is refused with this code, twice the same, naming the file and what to do, and changes nothing."""
    before = prints(path.parent)
    said = []
    for _ in range(2):
        with pytest.raises(TenureError) as caught:
            open_and_load(path)
        said.append((caught.value.code, caught.value.message, caught.value.do))
        assert prints(path.parent) == before
    assert said[0] == said[1]
    assert caught.value.code == code
    assert str(path) in caught.value.message
    assert caught.value.facts["path"] == str(path)
    assert str(path.parent) in caught.value.do or "newer version" in caught.value.do
    return caught.value


# -- making and opening ------------------------------------------------------------------------------------------------


def test_a_new_ledger_has_its_folder_its_mode_and_nothing_beside_it(tmp_path: Path) -> None:
    Ledger.open(at(tmp_path)).close()
    assert [each.name for each in at(tmp_path).parent.iterdir()] == ["ledger.db"]
    assert stat.S_IMODE(at(tmp_path).stat().st_mode) == 0o600
    with sqlite3.connect(at(tmp_path)) as raw:
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_writing_connection_syncs_every_commit(tmp_path: Path) -> None:
    ledger = Ledger.open(at(tmp_path))
    with ledger._transaction() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    with ledger._reading.connect() as connection, pytest.raises(sa.exc.OperationalError, match="readonly"):
        connection.exec_driver_sql("DELETE FROM head")
    ledger.close()


def test_what_a_killed_start_left_is_cleared_and_a_strangers_file_is_not(tmp_path: Path) -> None:
    folder = at(tmp_path).parent
    folder.mkdir()
    (folder / ".ledger.db.tenure-tmp-4711").write_bytes(b"half")
    (folder / ".ledger.db.tenure-tmp-4711-wal").write_bytes(b"half")
    (folder / "notes").write_bytes(b"mine")
    Ledger.open(at(tmp_path)).close()
    assert sorted(each.name for each in folder.iterdir()) == ["ledger.db", "notes"]


@pytest.mark.parametrize("name", ["space and 'quote'", "question?mark#hash%25", "ünï\udcff"])
def test_any_path_will_do(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "ledger.db"
    fill(path)
    ledger = Ledger.open(path)
    assert len(ledger.jobs()) == 3
    ledger.close()
    assert [each.name for each in path.parent.iterdir()] == ["ledger.db"]


def test_opening_what_is_up_to_date_imports_no_migrations(tmp_path: Path) -> None:
    code = f"""
        import sys
        from tenure.ledger import Ledger
        Ledger.open({str(at(tmp_path))!r}).close()
        Ledger.open({str(at(tmp_path))!r}).close()
        assert not [name for name in sys.modules if name.startswith(("alembic", "tenure.ledger.migrations"))]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=30)


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise TenureError("network_file_system", f"{path} is on nfs4")

    monkeypatch.setattr("tenure.ledger.sqlite.require_local", refuse)
    with pytest.raises(TenureError, match="nfs4"):
        Ledger.open(at(tmp_path))
    assert not at(tmp_path).parent.exists()


# -- the schema --------------------------------------------------------------------------------------------------------


def schema(path: Path) -> set[tuple[str, str]]:
    with sqlite3.connect(path) as raw:
        return set(raw.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


def unversioned(path: Path) -> None:
    """A ledger of before the first revision: nothing but Alembic's own table, empty."""
    path.parent.mkdir()
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE alembic_version (version_num TEXT NOT NULL, CONSTRAINT pk PRIMARY KEY (version_num))")


def test_the_migrations_lead_to_the_schema_that_a_new_ledger_has(tmp_path: Path) -> None:
    old, new = at(tmp_path / "old"), at(tmp_path / "new")
    old.parent.parent.mkdir()
    unversioned(old)
    Ledger.open(old).close()
    fill(new)
    made = {name: sql for name, sql in schema(new) if name != "alembic_version"}
    migrated = {name: sql for name, sql in schema(old) if name != "alembic_version"}
    assert set(made) == set(migrated)
    for name in made:
        assert normal(made[name]) == normal(migrated[name]), name
    ledger = Ledger.open(old)
    with ledger._transaction() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.METADATA) == []
        assert connection.execute(sa.select(tables.revision.c.version_num)).scalar_one() == tables.REVISION
    ledger.close()
    ledger = fill(old, close=False)
    ledger.close()


def normal(sql: str) -> tuple[str, ...]:
    """A statement without the order of its parts and the names that SQLite keeps for its own."""
    body = sql.replace("\t", " ").replace("\n", " ").replace('"', "")
    return tuple(sorted(" ".join(part.split()) for part in body.replace("(", ",").replace(")", ",").split(",")))


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unversioned(at(tmp_path))
    from tenure.ledger import migrations

    def half(connection: sa.Connection) -> None:
        connection.exec_driver_sql("CREATE TABLE half (n INTEGER)")
        raise RuntimeError("in the middle")

    monkeypatch.setattr(migrations, "upgrade", half)
    before = schema(at(tmp_path))
    with pytest.raises(RuntimeError, match="in the middle"):
        Ledger.open(at(tmp_path))
    assert schema(at(tmp_path)) == before


# -- damage ------------------------------------------------------------------------------------------------------------


def put(at_byte: int, data: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at_byte)
            file.write(data)

    return damage


def cut(length: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, length)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "random bytes in the header": put(0, bytes(range(7, 107))),
    "random bytes behind the magic": put(16, bytes(range(7, 91))),
    "the first page overwritten": put(100, b"\xa5" * 3996),
    "cut to nothing": cut(0),
    "cut within the header": cut(57),
    "cut after the header": cut(100),
    "cut after a page": cut(4096),
    "cut within a page": cut(9000),
    "text": put(0, b"my notes\n" * 10_000),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.parametrize("logged", [False, True], ids=["closed", "killed"])
def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, damage: Callable[[Path], None], logged: bool) -> None:
    (crash if logged else fill)(at(tmp_path))
    if logged:
        damage(at(tmp_path))
        at(tmp_path).with_name("ledger.db-shm").unlink(missing_ok=True)
        _refused_or_whole(at(tmp_path))
    else:
        damage(at(tmp_path))
        error = refused(at(tmp_path))
        assert "cp -a" in error.do
        assert "mv " in error.do


def _refused_or_whole(path: Path) -> None:
    """With the log beside it, a damaged page may well be whole in the log: then all of it must be there."""
    before, state = prints(path.parent), None
    try:
        state = open_and_load(path)
    except TenureError as caught:
        error = caught
    if state is not None:
        assert set(state.jobs) == {"j0", "j1", "j2"}
    else:
        assert (error.code, prints(path.parent)) == ("damaged_state", before)


def test_an_empty_file_beside_a_log_is_a_loss_and_no_new_ledger(tmp_path: Path) -> None:
    crash(at(tmp_path))
    os.truncate(at(tmp_path), 0)
    assert "empty" in refused(at(tmp_path)).message


def test_a_log_without_its_file_is_a_loss_and_no_new_ledger(tmp_path: Path) -> None:
    crash(at(tmp_path))
    at(tmp_path).unlink()
    assert "gone" in refused(at(tmp_path)).message


def test_a_killed_ledger_opens_with_all_that_was_committed(tmp_path: Path) -> None:
    crash(at(tmp_path), jobs=5)
    assert sorted(open_and_load(at(tmp_path)).jobs) == [f"j{n}" for n in range(5)]


def test_damage_further_down_is_told_when_it_is_met(tmp_path: Path) -> None:
    fill(at(tmp_path), jobs=200)
    size = at(tmp_path).stat().st_size
    put(5 * 4096, os.urandom(size - 5 * 4096))(at(tmp_path))
    refused(at(tmp_path))


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    at(tmp_path).mkdir(parents=True)
    assert "a folder" in refused(at(tmp_path)).message


def test_a_pipe_in_its_place(tmp_path: Path) -> None:
    at(tmp_path).parent.mkdir()
    os.mkfifo(at(tmp_path))
    with pytest.raises(TenureError, match="not a regular file"):
        Ledger.open(at(tmp_path))


def test_a_link_to_nothing(tmp_path: Path) -> None:
    at(tmp_path).parent.mkdir()
    at(tmp_path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TenureError) as caught:
        Ledger.open(at(tmp_path))
    assert caught.value.code == "io_error"
    assert not (tmp_path / "elsewhere").exists()


def test_another_programs_database(tmp_path: Path) -> None:
    at(tmp_path).parent.mkdir()
    with sqlite3.connect(at(tmp_path)) as raw:
        raw.execute("CREATE TABLE photos (id INTEGER)")
    assert "not a ledger of Tenure" in refused(at(tmp_path)).message


def test_a_schema_of_a_newer_version(tmp_path: Path) -> None:
    fill(at(tmp_path))
    with sqlite3.connect(at(tmp_path)) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '0999'")
    raw.close()
    error = refused(at(tmp_path))
    assert "written by a newer Tenure: its schema is 0999" in error.message
    assert "mv" not in error.do


AS_NOBODY = """
    import os, sys
    from pathlib import Path
    from tenure.errors import TenureError
    from tenure.ledger import Ledger
    import tenure.ledger.sqlite
    if os.geteuid() == 0:
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
    try:
        Ledger.open(sys.argv[1])
    except TenureError as error:
        print(error.code, error)
"""


@pytest.mark.parametrize(("mode", "word"), [(0o000, "read"), (0o444, "written")])
def test_a_file_that_this_user_may_not_use(mode: int, word: str) -> None:
    """As another user where this is root, which may do everything. In a folder of its own that others may enter."""
    with tempfile.TemporaryDirectory(prefix="tenure-may-not-") as folder:
        path = at(Path(folder))
        fill(path)
        before = prints(path.parent)
        for inside in (Path(folder), path.parent):
            inside.chmod(0o755)
        path.chmod(mode)
        code = textwrap.dedent(AS_NOBODY)
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=30)
        path.chmod(0o600)
        assert done.stdout.startswith("io_error "), done.stderr
        assert f"may not be {word}" in done.stdout
        assert f"ls -ld {path.parent} {path}" in done.stdout
        assert prints(path.parent) == before


# -- a full disk -------------------------------------------------------------------------------------------------------


async def fills_up(ledger: Ledger, make_room: Callable[[], None]) -> TenureError:
    """Big commands meet a full disk and are told so; small ones in the same batch go through; later all do again."""
    async with Writer(ledger) as writer:
        await writer.submit(world.register())
        big = [world.submit(f"big{n}", label="x" * 300_000) for n in range(40)]
        answers = await asyncio.gather(*map(writer.submit, big), return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, TenureError)]
        kept = [answer.job for answer in answers if not isinstance(answer, BaseException)]
        assert errors
        assert {error.code for error in errors} == {"disk_full"}
        assert sorted(job.id for job in ledger.jobs(limit=99)) == sorted(map(str, kept))
        assert disagreements(ledger, writer.state) == []
        make_room()
        assert (await writer.submit(world.submit("j1"))).job == "j1"
        assert disagreements(ledger, writer.state) == []
    ledger.close()
    return errors[0]


async def test_a_limit_on_the_size_is_told_as_a_full_disk(tmp_path: Path) -> None:
    ledger = Ledger.open(at(tmp_path))

    def limit(pages: int) -> None:
        with ledger._transaction() as connection:
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    limit(400)
    error = await fills_up(ledger, lambda: limit(100_000))
    assert str(at(tmp_path)) in error.message
    assert error.facts["free_bytes"] > 1_000_000
    assert "a quota or a limit" in error.message


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A small file system of the size that the test names."""
    folder = tmp_path / "disk"
    folder.mkdir()
    size = f"size={request.param}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=True, timeout=10)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True, timeout=10)


@pytest.mark.root(reason="mounts a small tmpfs: shows what a disk without room does to a batch and to those in it")
@pytest.mark.parametrize("disk", ["3m"], indirect=True)
async def test_a_full_disk_is_told_and_left_when_there_is_room_again(disk: Path) -> None:
    ledger = Ledger.open(at(disk))
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(1_000_000))
    error = await fills_up(ledger, ballast.unlink)
    assert str(at(disk)) in error.message
    assert error.do == f"Make room, then try again: df -h {at(disk).parent}"
    assert isinstance(error.facts["free_bytes"], int)
    assert "j1" in open_and_load(at(disk)).jobs


@pytest.mark.root(reason="mounts a small tmpfs: shows that a ledger is made whole or not at all on a full disk")
@pytest.mark.parametrize("disk", ["64k"], indirect=True)
def test_no_room_for_a_new_ledger(disk: Path) -> None:
    with pytest.raises(TenureError) as caught:
        Ledger.open(at(disk))
    assert caught.value.code == "disk_full"
    assert [each.name for each in at(disk).parent.iterdir()] == []


# -- size --------------------------------------------------------------------------------------------------------------


def test_the_log_stays_bounded_while_readers_come_and_go(tmp_path: Path) -> None:
    ledger, state = Ledger.open(at(tmp_path)), FleetState()
    assert isinstance(ledger, SqliteLedger)
    ledger.load(state)
    commands: list[cmd.Command] = [world.register()]
    commands += [world.submit(f"j{n}", label="x" * 20_000) for n in range(200)]
    most = seen = 0
    for command in commands:
        ledger.commit(handle(state, command, world.T0).events, state)
        state.drain()
        for stored in ledger.events_after(seen, 2):  # a reader in the middle of its pages
            seen = stored.seq
        most = max(most, log_bytes(at(tmp_path)))
    ledger.rest()
    assert at(tmp_path).stat().st_size > 7_000_000
    assert most < 5_000_000
    assert log_bytes(at(tmp_path)) == 0
    ledger.close()


def test_a_strangers_long_read_makes_the_log_grow_only_until_it_ends(tmp_path: Path) -> None:
    ledger, state = fill(at(tmp_path), close=False), FleetState()
    ledger.load(state)
    stranger = sqlite3.connect(at(tmp_path), isolation_level=None)
    stranger.execute("BEGIN")
    stranger.execute("SELECT count(*) FROM jobs").fetchone()
    for n in range(100):
        ledger.commit(handle(state, world.submit(f"k{n}", label="x" * 100_000), world.T0).events, state)
        state.drain()
    ledger.rest()  # in the way: it neither waits nor fails
    grown = log_bytes(at(tmp_path))
    assert grown > 10_000_000
    stranger.execute("COMMIT")
    ledger.rest()
    assert log_bytes(at(tmp_path)) == 0
    assert disagreements(ledger, state) == []
    stranger.close()
    ledger.close()


def test_after_an_error_that_leaves_it_open_the_log_is_emptied_before_anything_else(tmp_path: Path) -> None:
    ledger, state = fill(at(tmp_path), close=False), FleetState()
    assert isinstance(ledger, SqliteLedger)
    ledger.load(state)
    assert log_bytes(at(tmp_path)) > 0
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode, error.sqlite_errorname = 1034, "SQLITE_IOERR_FSYNC"
    with pytest.raises(TenureError) as caught, ledger._transaction():
        raise sa.exc.OperationalError("COMMIT", None, error)
    assert caught.value.code == "io_error"
    assert "SQLITE_IOERR_FSYNC" in caught.value.message
    assert ledger._writer is None
    ledger.load(state)
    assert log_bytes(at(tmp_path)) == 0
    assert disagreements(ledger, state) == []
    ledger.close()


def test_a_start_costs_the_same_after_a_long_history(tmp_path: Path) -> None:
    """Work is counted, not time: the instructions that SQLite executes to load, with 20 and with 20,000 closed jobs."""

    def closed(path: Path, count: int) -> int:
        fill(path)
        with sqlite3.connect(path) as raw:
            raw.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) INSERT INTO jobs "
                "SELECT 'old' || i, owner, 'key' || i, body_hash, submitted_at - i, order_at, -i, spec, 'ended', 1, "
                "body, version FROM n, jobs WHERE id = 'j0'",
                (count,),
            )
            raw.execute(
                "INSERT INTO leases SELECT 'lease of ' || jobs.id, device, uuid, agent, jobs.id, 1, -rank, granted_at, "
                "'released', 1.0, '', leases.boot_id, leases.version "
                "FROM (SELECT id, -order_seq AS rank FROM jobs WHERE state = 'ended') AS jobs, leases "
                "WHERE leases.job = 'j0'"
            )
        raw.close()
        ledger, state, steps = Ledger.open(path), FleetState(), 0

        def count_steps() -> int:
            nonlocal steps
            steps += 1
            return 0

        with ledger._transaction() as connection:
            connection.connection.dbapi_connection.set_progress_handler(count_steps, 10)  # type: ignore[union-attr]
        ledger.load(state)
        assert len(state.jobs) == 3
        assert ledger.key_lookup("ann", "key7") == ("old7", "")
        ledger.close()
        return steps

    few, many = closed(at(tmp_path / "few"), 20), closed(at(tmp_path / "many"), 20_000)
    assert 0 < many <= few + 2


def test_engine_refuses_to_make_a_file_that_is_gone(tmp_path: Path) -> None:
    engine = _engine(tmp_path / "gone.db", sa.pool.NullPool, [])
    with pytest.raises(sa.exc.OperationalError), engine.connect():
        pass
    assert not (tmp_path / "gone.db").exists()
