"""What every store of the ledger has to do: one transaction, rows that are the truth, reads of what is committed."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from tests.contract import ledger_world as world
from tests.contract.ledger_world import T0, Store

from tenure.domain import commands as cmd
from tenure.domain import events as ev
from tenure.domain.device import Condition, DeviceState
from tenure.domain.fleet import handle
from tenure.domain.job import JobState
from tenure.domain.state import FleetState
from tenure.ledger import Ledger, LedgerError, sqlite
from tenure.ledger.check import disagreements


class Book:
    """A ledger with the fleet in memory over it, written to without a writer."""

    def __init__(self, store: Store) -> None:
        self.ledger = store.open()
        self.state = FleetState()
        self.ledger.load(self.state)
        self.now = T0

    def decide(self, command: cmd.Command) -> list[ev.Event]:
        self.now += 0.5
        outcomes = handle(self.state, command, self.now)
        assert outcomes.refusal is None, outcomes.refusal
        assert not outcomes.ignored
        return outcomes.events

    def do(self, *commands: cmd.Command) -> None:
        """Decides commands and commits them together."""
        events = [event for command in commands for event in self.decide(command)]
        self.ledger.commit(events, self.state)
        self.state.drain()


@pytest.fixture
def book(store: Store) -> Iterator[Book]:
    book = Book(store)
    yield book
    book.ledger.close()


def test_a_new_ledger_is_empty_and_can_be_opened_again(store: Store) -> None:
    for _ in range(2):
        ledger, state = store.open(), FleetState()
        ledger.load(state)
        assert (state.version, state.sequence, state.devices, state.jobs) == (0, 0, {}, {})
        assert (ledger.version(), ledger.events_after(0), ledger.jobs(), ledger.devices()) == (0, [], [], [])
        assert ledger.key_lookup("ann", "k") is None
        ledger.close()


def test_events_are_numbered_without_gaps_and_come_back_as_they_were(book: Book) -> None:
    first = book.decide(world.register())
    stored = book.ledger.commit(first, book.state)
    book.state.drain()
    second = [*book.decide(world.submit("j1", key="k")), *book.decide(world.submit("j2"))]
    stored += book.ledger.commit(second, book.state)
    assert [each.seq for each in stored] == list(range(1, len(first) + len(second) + 1))
    assert book.ledger.version() == book.state.version == len(first) + len(second)
    assert book.ledger.events_after(0) == stored
    assert [each.event for each in stored] == [*first, *second]
    assert book.ledger.events_after(len(first)) == stored[len(first) :]
    assert book.ledger.events_after(1, limit=2) == stored[1:3]
    assert [each.kind for each in book.ledger.events_of_job("j1")] == ["job_submitted", "lease_granted"]


def test_the_body_of_an_event_is_compact_json_without_what_has_a_column(book: Book) -> None:
    stored = book.ledger.commit(book.decide(world.register(devices=1)), book.state)
    last = stored[-1]
    assert (last.kind, last.actor, last.at) == ("agent_registered", "agent:a-h", T0 + 0.5)
    assert last.body == (
        '{"agent":"a-h","host":"h","boot_id":"b1","namespace":"ns","instance":"i1","user":"ann","facts":{"kernel":"6.1"}}'
    )


def test_a_whole_lifecycle_reads_back_from_rows(book: Book) -> None:
    book.do(world.register(devices=1))
    book.do(world.submit("j1", key="k1", body_hash="hash", label="night run", priority=2))
    book.do(world.started(book.state, "j1"))
    job = book.ledger.job("j1")
    assert job == book.state.jobs["j1"]
    assert job is not None
    assert (job.state, job.pid, job.devices, job.evidence) == (JobState.RUNNING, 4711, ("h:gpu0",), "cgroup2")
    book.do(world.ended(book.state, "j1"))
    job = book.ledger.job("j1")
    assert job is not None
    assert (job.state, job.outcome, job.output_bytes, job.key) == (JobState.ENDED, world.EXITED, 12, "k1")
    assert job.spec.env == {"A": "b"}
    assert (job.spec.label, job.use) == ("night run", {"verdict": "used", "devices": [{"n": 1.5}]})
    (lease,) = book.ledger.leases_of("j1")
    assert (lease.state, lease.token, lease.released_at, lease.proof) == ("released", 1, T0 + 2.0, "clear")
    assert book.ledger.leases_of("j1", 1) == [lease]
    assert book.ledger.leases_of("j1", 2) == []
    assert book.ledger.devices() == [book.state.devices["h:gpu0"]]
    assert book.ledger.key_lookup("ann", "k1") == ("j1", "hash")
    assert disagreements(book.ledger, book.state) == []


def test_a_batch_writes_the_last_of_each_row_once(book: Book) -> None:
    """A lease granted, ended, released and the device granted again, all in one transaction."""
    book.do(world.register(devices=1))
    events = book.decide(world.submit("j1"))
    events += book.decide(world.submit("j2"))
    events += book.decide(world.ended(book.state, "j1"))
    book.ledger.commit(events, book.state)
    book.state.drain()
    assert [lease.state for lease in book.ledger.leases_of("j1")] == ["released"]
    assert [(lease.state, lease.token) for lease in book.ledger.leases_of("j2")] == [("held", 2)]
    assert disagreements(book.ledger, book.state) == []


def test_reopened_the_open_state_is_the_same(store: Store) -> None:
    book = Book(store)
    book.do(cmd.Begin())
    book.do(world.register("h"), world.register("g"))
    book.do(cmd.LoseContact("a-g", 20.0))
    book.do(*(world.submit(f"j{n}", count=1 + n % 2, priority=n % 3) for n in range(6)))
    book.do(world.ended(book.state, "j0", Condition("unknown", "timeout")))
    book.ledger.close()
    before, after = book.state, Book(store)
    records = ("devices", "agents", "uuids", "devices_of_agent", "jobs", "leases", "tokens")
    for name in (*records, "version", "sequence", "last_arrival", "token_floor"):
        assert getattr(after.state, name) == getattr(before, name), name
    assert world.queued(after.state) == world.queued(before) != []
    assert disagreements(after.ledger, after.state) == []
    after.ledger.close()


def test_what_waits_waits_on_after_a_restart_for_the_devices_that_allow_its_bounds(store: Store) -> None:
    book = Book(store)
    free = world.register(devices=2)
    bounds = {"max_runtime_ceiling": 7200, "idle_ceiling": 600}
    capped = dataclasses.replace(free.devices[0], facts={"bounds": bounds})
    book.do(cmd.Begin(), dataclasses.replace(free, devices=(capped, free.devices[1])))
    book.do(*(world.submit(f"j{n}", max_runtime_s=seconds) for n, seconds in enumerate((60.0, 9000.0, 90.0, 9999.0))))
    assert [book.state.jobs[job].devices for job in ("j0", "j1")] == [("h:gpu0",), ("h:gpu1",)]
    book.ledger.close()
    again = Book(store)
    again.state.validate()
    assert again.state.ceilings == book.state.ceilings == ((7200.0,), (600.0,))
    fits = {job: again.state.queue.classes[again.state.need_of(again.state.jobs[job])].fits for job in ("j2", "j3")}
    assert fits == {"j2": {"h:gpu0", "h:gpu1"}, "j3": {"h:gpu1"}}
    again.ledger.close()


def test_tokens_go_on_from_the_floor_after_a_restart(store: Store) -> None:
    """The clock of the start is the floor; a clock that is set back does not take it back."""
    book = Book(store)
    book.do(cmd.Begin())
    floor = int(book.now * 1000)
    book.ledger.close()
    book = Book(store)
    book.now = T0 - 10_000
    book.do(cmd.Begin(), world.register(devices=1), world.submit("j1"))
    assert book.ledger.leases_of("j1")[0].token == floor + 1
    book.ledger.close()


def test_a_granted_job_goes_on_after_a_restart(store: Store) -> None:
    book = Book(store)
    book.do(world.register())
    book.do(world.submit("j1", count=2))
    book.ledger.close()
    book = Book(store)
    book.do(cmd.Begin())
    assert {device.state for device in book.state.devices.values()} == {DeviceState.UNKNOWN}
    book.do(world.register())
    assert {device.state for device in book.state.devices.values()} == {DeviceState.BUSY}
    book.do(world.started(book.state, "j1"))
    book.do(world.ended(book.state, "j1"))
    assert world.ready(book.state) == ["h:gpu0", "h:gpu1"]
    assert book.state.jobs == {}
    assert disagreements(book.ledger, book.state) == []
    book.ledger.close()


def test_two_names_that_swap_their_devices(book: Book) -> None:
    book.do(world.register())
    command = world.register()
    one, two = command.devices
    swapped = (dataclasses.replace(one, uuid=two.uuid), dataclasses.replace(two, uuid=one.uuid))
    book.do(dataclasses.replace(command, devices=swapped))
    assert book.state.uuids == {"GPU-h-0": "h:gpu1", "GPU-h-1": "h:gpu0"}
    assert disagreements(book.ledger, book.state) == []


def test_the_database_refuses_a_second_live_lease_of_a_device(book: Book) -> None:
    """The second wall: by SQL, past everything that the core would have said."""
    book.do(world.register())
    book.do(world.submit("j1"), world.submit("j2"))
    copy = sa.text(
        "INSERT INTO leases (id, device, uuid, agent, job, attempt, token, granted_at, state, proof, version) "
        "SELECT 'other', 'else:gpu9', uuid, agent, 'j2', 7, token + 1, granted_at, :state, '', version "
        "FROM leases WHERE job = 'j1'"
    )
    for state in ("held", "ending", "anything"):
        with pytest.raises(LedgerError) as caught, book.ledger._transaction() as connection:
            connection.execute(copy, {"state": state})
        assert caught.value.code == "internal"
        assert "refused" in caught.value.message
    with book.ledger._transaction() as connection:
        connection.execute(copy, {"state": "released"})
    with pytest.raises(LedgerError), book.ledger._transaction() as connection:
        connection.execute(sa.text("UPDATE leases SET state = 'held' WHERE id = 'other'"))
    assert [lease.state for lease in book.ledger.leases_of("j1")] == ["held"]


def test_a_core_that_grants_twice_is_stopped_by_the_database(book: Book) -> None:
    book.do(world.register(devices=1))
    book.do(world.submit("j1"))
    forged = FleetState()
    book.ledger.load(forged)
    lease = next(iter(forged.leases.values()))
    events = handle(forged, world.submit("j2"), T0 + 9).events
    forged.released[lease.id] = forged.leases.pop(lease.id)
    event = ev.LeaseGranted(at=T0 + 9, job="j2", attempt=1, leases=(("forged", lease.device, 2),))
    from tenure.domain.evolve import evolve

    evolve(forged, event)
    with pytest.raises(LedgerError):
        book.ledger.commit([*events, event], forged)
    assert disagreements(book.ledger, book.state) == []


def test_the_database_refuses_a_second_job_for_a_key(book: Book) -> None:
    book.do(world.register())
    book.do(world.submit("j1", key="k"))
    book.state.keys.clear()
    events = book.decide(world.submit("j2", key="k"))
    with pytest.raises(LedgerError):
        book.ledger.commit(events, book.state)
    assert [job.id for job in book.ledger.jobs()] == ["j1"]


def test_a_failed_commit_leaves_nothing_and_a_restored_state_goes_on(book: Book) -> None:
    book.do(world.register())
    version = book.state.version
    events = book.decide(world.submit("j1"))
    book.state.touched[("jobs", "nobody")] = None
    with pytest.raises(KeyError):
        book.ledger.commit(events, book.state)
    assert book.ledger.version() == version
    book.ledger.load(book.state)
    assert book.state.version == version
    book.do(world.submit("j1"))
    assert disagreements(book.ledger, book.state) == []


def test_a_second_writer_is_noticed(store: Store) -> None:
    one, two = Book(store), Book(store)
    one.do(world.register())
    events = two.decide(world.register("g"))
    with pytest.raises(LedgerError) as caught:
        two.ledger.commit(events, two.state)
    assert caught.value.code == "already_running"
    assert [device.name for device in one.ledger.devices()] == ["h:gpu0", "h:gpu1"]
    one.ledger.close()
    two.ledger.close()


def test_jobs_are_listed_newest_first_by_page_and_filter(book: Book) -> None:
    book.do(world.register())
    for n in range(8):
        book.do(world.submit(f"j{n}", owner="bob" if n % 3 == 0 else "ann"))
    book.do(world.ended(book.state, "j0"))

    def ids(**wanted: object) -> list[str]:
        return [job.id for job in book.ledger.jobs(**wanted)]  # type: ignore[arg-type]

    assert ids() == [f"j{n}" for n in reversed(range(8))]
    page = book.ledger.jobs(limit=3)
    assert [job.id for job in page] == ["j7", "j6", "j5"]
    assert ids(limit=3, before=page[-1].submitted_at) == ["j4", "j3", "j2"]
    assert ids(owner="bob") == ["j6", "j3", "j0"]
    assert ids(state="ended") == ["j0"]
    assert ids(state="queued", owner="bob") == ["j6", "j3"]
    assert ids(state="open") == [f"j{n}" for n in reversed(range(1, 8))]
    assert ids(device="h:gpu0") == ["j2", "j0"]
    assert ids(device="h:gpu7") == []


def test_a_job_is_found_by_the_beginning_of_its_id(book: Book) -> None:
    book.do(world.register())
    book.do(*(world.submit(job) for job in ("jab", "jabc", "jb", "j%", "j_x", "jé")))

    def found(prefix: str) -> list[str]:
        return [job.id for job in book.ledger.jobs_by_prefix(prefix, 9)]

    assert found("jab") == ["jab", "jabc"]
    assert found("jb") == ["jb"]
    assert found("j%") == ["j%"]  # no wildcards
    assert found("j_") == ["j_x"]
    assert found("jé") == ["jé"]
    assert found("J") == found("x") == []
    assert len(book.ledger.jobs_by_prefix("j", 2)) == 2


def test_keys_belong_to_their_owner_and_are_looked_up_together(book: Book) -> None:
    book.do(world.register())
    book.do(*(world.submit(f"j{n}", key=f"k{n}", body_hash=str(n), owner="ann") for n in range(3)))
    book.do(world.submit("j9", key="k0", owner="bob"))
    pairs = [("ann", "k0"), ("ann", "k2"), ("ann", "k9"), ("bob", "k0"), ("bob", "k1")]
    assert book.ledger.keys_lookup(pairs) == {
        ("ann", "k0"): ("j0", "0"),
        ("ann", "k2"): ("j2", "2"),
        ("bob", "k0"): ("j9", ""),
    }
    many = [("ann", f"k{n}") for n in range(1200)]
    assert set(book.ledger.keys_lookup(many)) == {("ann", f"k{n}") for n in range(3)}


def test_text_that_is_no_text_is_kept_or_refused_but_never_changed(book: Book) -> None:
    book.do(world.register())
    argv = ("cat", "caf\udce9", "nul\0byte", "line\nfeed", "\U0001f680")
    book.do(world.submit("j1", argv=argv, label="\udcff\0"))
    job = book.ledger.job("j1")
    assert job is not None
    assert job.spec.argv == argv
    assert book.ledger.events_of_job("j1")[0].event.spec["label"] == "\udcff\0"  # type: ignore[attr-defined]


def test_numbers_that_json_cannot_say_are_refused(book: Book) -> None:
    book.do(world.register())
    book.do(world.submit("j1"))
    report = world.started(book.state, "j1")
    events = book.decide(cmd.ReportUse(report.agent, "j1", 1, report.tokens, {"share": float("nan")}))
    with pytest.raises(ValueError, match="JSON"):
        book.ledger.commit(events, book.state)
    book.ledger.load(book.state)
    assert disagreements(book.ledger, book.state) == []


def test_readers_see_committed_data_only_and_from_any_thread(book: Book) -> None:
    book.do(world.register())
    seen: list[int] = []

    def look() -> None:
        seen.append(len(book.ledger.jobs()))

    with book.ledger._transaction() as connection:
        connection.execute(sa.text("UPDATE head SET sequence = sequence + 1"))
        events = book.decide(world.submit("j1"))
        threads = [threading.Thread(target=look) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert seen == [0] * 8
    book.ledger.commit(events, book.state)
    look()
    assert seen[-1] == 1


def test_what_a_start_costs_does_not_follow_history(book: Book, store: Store) -> None:
    """By the store's own account of its plan: no table that grows with history is scanned."""
    book.do(world.register(devices=4))
    statements: list[str] = []

    def note(conn: object, cursor: object, statement: str, values: object, context: object, many: bool) -> None:
        statements.append(statement)

    sa.event.listen(book.ledger._writing, "before_cursor_execute", note)
    book.do(*(world.submit(f"j{n}") for n in range(8)))
    statements.clear()
    book.ledger.load(FleetState())
    selects = [each for each in statements if each.startswith("SELECT")]
    assert len(selects) >= 6
    assert not any("FROM events" in each for each in selects)
    if store.name == "sqlite":
        with book.ledger._transaction() as connection:
            for each in selects:
                plan = connection.exec_driver_sql(
                    f"EXPLAIN QUERY PLAN {each}", tuple(range(each.count("?")))
                ).fetchall()
                steps = [str(step[-1]) for step in plan]
                assert not any(
                    step.startswith("SCAN") and ("jobs" in step or "leases" in step) and "INDEX" not in step
                    for step in steps
                ), (each, steps)
    lookups: list[Callable[[Ledger], object]] = [
        lambda ledger: ledger.key_lookup("ann", "k"),
        lambda ledger: ledger.job("j1"),
        lambda ledger: ledger.jobs(limit=3),
        lambda ledger: ledger.jobs(owner="ann", limit=3),
        lambda ledger: ledger.events_after(5, 10),
        lambda ledger: ledger.events_of_job("j1"),
        lambda ledger: ledger.jobs_by_prefix("j"),
    ]
    asked: list[tuple[str, object]] = []
    sa.event.listen(
        book.ledger._reading,
        "before_cursor_execute",
        lambda conn, cursor, statement, values, context, many: asked.append((statement, values)),
    )
    for look in lookups:
        look(book.ledger)
    if store.name == "sqlite":
        asked.append((sqlite.BY_KEY, ("ann", "k")))  # it does not pass here
    assert len(asked) == len(lookups)
    if store.name == "sqlite":
        for statement, values in list(asked):
            with book.ledger._reading.connect() as connection:
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()  # type: ignore[arg-type]
            steps = [str(step[-1]) for step in plan]
            assert all("USING" in step for step in steps if step.startswith(("SCAN", "SEARCH"))), (statement, steps)
            assert not any("TEMP B-TREE" in step for step in steps), (statement, steps)
